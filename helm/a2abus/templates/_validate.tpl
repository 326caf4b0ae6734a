{{/* Refuses values that do not fit together; values.schema.json refuses those that are wrong by themselves. */}}
{{- define "a2abus.check" -}}
{{- $config := include "a2abus.config" . | fromJson }}
{{- if eq false (dig "admin" "enabled" true $config) }}{{ fail "`admin.enabled` is false, but the probes of the pod ask the admin listener" }}{{ end }}
{{- if eq (int .Values.ports.http) (int .Values.ports.admin) }}{{ fail (printf "`ports.http` and `ports.admin` are both %d" (int .Values.ports.http)) }}{{ end }}
{{- include "a2abus.checkNames" . }}
{{- include "a2abus.checkVolumes" . }}
{{- if eq .Values.mode "workload" }}{{ include "a2abus.checkWorkload" . }}{{ else }}{{ include "a2abus.checkSidecar" . }}{{ end }}
{{- if not .Values.persistence.enabled }}
{{- if hasKey ($config.calls | default dict) "replica" }}{{ fail "`calls.replica` is the number of one replica, but all pods read this configuration: leave it out; with `persistence.enabled` each pod of a workload gets its own" }}{{ end }}
{{- range $name, $transport := $config.transports }}
{{- if hasKey $transport "instance_id" }}{{ fail (printf "`transports.%s.instance_id` is the name of one process, but all pods read this configuration, and each would end the subscriptions of the others: leave it out; with `persistence.enabled` each pod of a workload gets its own" $name) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The release's name is Helm's to check, but Services have narrower rules. */}}
{{- define "a2abus.checkNames" -}}
{{- $name := include "a2abus.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}{{ fail (printf "%q cannot be the name of a Service (lower-case letters, digits and -, a letter first): set `fullnameOverride`" $name) }}{{ end }}
{{- $taken := dict }}
{{- range $name, $transport := (include "a2abus.config" . | fromJson).transports }}
{{- $variable := include "a2abus.variable" $name }}
{{- if and $.Values.persistence.enabled (eq (toString $transport.type) "kafka") }}
{{- with get $taken $variable }}{{ fail (printf "the transports `%s` and `%s` have one environment variable, A2ABUS_TRANSPORTS__%s__INSTANCE_ID: rename one of them" . $name $variable) }}{{ end }}
{{- $_ := set $taken $variable $name }}
{{- end }}
{{- end }}
{{- end }}

{{- define "a2abus.checkVolumes" -}}
{{- $volumes := list "a2abus-config" }}
{{- if .Values.persistence.enabled }}{{ $volumes = append $volumes "data" }}{{ end }}
{{- $paths := list "/etc/a2abus" "/var/lib/a2abus" }}
{{- $secrets := concat .Values.secrets .Values.externalSecrets .Values.csiSecrets }}
{{- range $secrets }}
{{- if has (print "/run/secrets/" .name) $paths }}{{ fail (printf "`%s` is twice among `secrets`, `externalSecrets` and `csiSecrets`: each is mounted at /run/secrets/NAME (an ExternalSecret needs no entry in `secrets`)" .name) }}{{ end }}
{{- $paths = append $paths (print "/run/secrets/" .name) }}
{{- $volumes = append $volumes (include "a2abus.volumeName" .name) }}
{{- end }}
{{- range .Values.extraVolumes }}
{{- if has (toString .name) $volumes }}{{ fail (printf "`extraVolumes`: there is another volume %q" (toString .name)) }}{{ end }}
{{- $volumes = append $volumes (toString .name) }}
{{- end }}
{{- range .Values.extraVolumeMounts }}
{{- if has (toString .mountPath) $paths }}{{ fail (printf "`extraVolumeMounts`: something else is mounted at %q" (toString .mountPath)) }}{{ end }}
{{- $paths = append $paths (toString .mountPath) }}
{{- end }}
{{- end }}

{{/* What belongs to the pod, or stands beside it, is for the chart of the agent to set. */}}
{{- define "a2abus.checkSidecar" -}}
{{- if .Values.persistence.enabled }}{{ fail "`persistence` needs `mode: workload`: the pods of a sidecar are those of the agent, and their volumes too (`extraVolumes`, `extraVolumeMounts`)" }}{{ end }}
{{- range $name := list "ingress" "gateway" }}
{{- if (get $.Values $name).enabled }}{{ fail (printf "`%s` needs `mode: workload`: only the agent beside a sidecar can call it" $name) }}{{ end }}
{{- end }}
{{- range $name := list "networkPolicy" "autoscaling" "keda" "serviceMonitor" "prometheusRule" "dashboard" }}
{{- if (get $.Values $name).enabled }}{{ fail (printf "`%s` needs `mode: workload`: the pods of a sidecar are those of the agent, whose chart must have it" $name) }}{{ end }}
{{- end }}
{{- range $name := list "imagePullSecrets" "podAnnotations" "podLabels" "nodeSelector" "tolerations" "affinity" "priorityClassName" "topologySpreadConstraints" }}
{{- if get $.Values $name }}{{ fail (printf "`%s` needs `mode: workload`: the pods of a sidecar are those of the agent, whose chart must have it" $name) }}{{ end }}
{{- end }}
{{- end }}

{{- define "a2abus.checkWorkload" -}}
{{- $config := include "a2abus.config" . | fromJson }}
{{- if and .Values.autoscaling.enabled .Values.keda.enabled }}{{ fail "`autoscaling` and `keda` cannot both decide the number of replicas" }}{{ end }}
{{- $requests := dig "requests" "cpu" "" .Values.resources | default (dig "limits" "cpu" "" .Values.resources) }}
{{- if and .Values.autoscaling.enabled (not $requests) }}{{ fail "`autoscaling` scales on a percentage of `resources.requests.cpu`, which is not set" }}{{ end }}
{{- $most := include "a2abus.mostReplicas" . | int }}
{{- if eq "embedded" (dig "state" "log" "" $config) }}
{{- if not .Values.persistence.enabled }}{{ fail "`state.log` is `embedded`: its files need `persistence.enabled`" }}{{ end }}
{{- if gt $most 1 }}{{ fail "`state.log` is `embedded`: each replica would have tasks of its own; run one replica, or name a Kafka or NATS transport in `state.log`" }}{{ end }}
{{- end }}
{{- $kafka := list }}
{{- range $name, $transport := $config.transports }}{{ if eq (toString $transport.type) "kafka" }}{{ $kafka = append $kafka $name }}{{ end }}{{ end }}
{{- $partitions := dig "calls" "reply_partitions" 32 $config }}
{{- if and $kafka (dig "calls" "enabled" true $config) (gt $most (int $partitions)) }}{{ fail (printf "%d replicas are more than `calls.reply_partitions` (%d): replicas without a reply partition of their own share one" $most (int $partitions)) }}{{ end }}
{{- if not (include "a2abus.http" .) }}
{{- range $name := list "ingress" "gateway" }}
{{- if (get $.Values $name).enabled }}{{ fail (printf "`%s` leads to the Service for callers, which `http.enabled: false` switches off" $name) }}{{ end }}
{{- end }}
{{- end }}
{{- if and .Values.networkPolicy.enabled .Values.serviceMonitor.enabled (not .Values.networkPolicy.monitoring) }}{{ fail "`networkPolicy` keeps Prometheus away from what `serviceMonitor` names: set `networkPolicy.monitoring`, as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]" }}{{ end }}
{{- include "a2abus.checkDisruptions" . }}
{{- end }}

{{/* The most replicas that there can be. */}}
{{- define "a2abus.mostReplicas" -}}
{{- $most := .Values.replicas }}
{{- range $name := list "autoscaling" "keda" }}
{{- $scaling := get $.Values $name }}
{{- if $scaling.enabled }}
{{- $most = $scaling.maxReplicas }}
{{- if gt (int $scaling.minReplicas) (int $most) }}{{ fail (printf "`%s.minReplicas` (%d) is more than `%s.maxReplicas` (%d)" $name (int $scaling.minReplicas) $name (int $most)) }}{{ end }}
{{- end }}
{{- end }}
{{- $most }}
{{- end }}

{{- define "a2abus.checkDisruptions" -}}
{{- $budget := .Values.podDisruptionBudget }}
{{- $least := $budget.minAvailable }}
{{- if not (or (kindIs "invalid" $least) (kindIs "invalid" $budget.maxUnavailable)) }}{{ fail "`podDisruptionBudget` has both `minAvailable` and `maxUnavailable`: Kubernetes takes one" }}{{ end }}
{{- $fewest := .Values.replicas }}
{{- range $scaling := list .Values.autoscaling .Values.keda }}{{ if $scaling.enabled }}{{ $fewest = $scaling.minReplicas }}{{ end }}{{ end }}
{{- $isAll := eq (toString $least) "100%" }}
{{- if not (or (kindIs "invalid" $least) (kindIs "string" $least)) }}{{ $isAll = ge (int $least) (int $fewest) }}{{ end }}
{{- if and $budget.enabled $isAll }}{{ fail (printf "`podDisruptionBudget.minAvailable` (%v) is all of %d replicas: no node could ever be drained" $least (int $fewest)) }}{{ end }}
{{- end }}

{{/* Fails on combinations of values that cannot work; values.schema.json checks each value by itself. */}}
{{- define "a2abus.check" -}}
{{- $config := include "a2abus.config" . | fromJson }}
{{- if not (or $config.transports .Values.existingConfigMap) }}{{ fail "the configuration has no `transports`: set `config`, or pass your file with --set-file configFile=a2abus.yaml" }}{{ end }}
{{- range $section := list "transports" "agents" }}
{{- range $name, $entry := (get $config $section | default dict) }}
{{- /* A `configFile` reaches the bridge as text; its names matter only where the chart makes a variable of them. */}}
{{- $isInVariable := and $.Values.persistence.enabled (eq $section "transports") (eq "kafka" (toString ($entry | default dict).type)) }}
{{- if and (has (toString $name) (list "true" "false")) (or $.Values.config $isInVariable) }}{{ fail (printf "`%s` of the configuration has an entry that Helm reads as %s: names like y, n, yes, no, on and off are Booleans in its YAML 1.1, so choose another name" $section (toString $name)) }}{{ end }}
{{- end }}
{{- end }}
{{- if eq false (dig "admin" "enabled" true $config) }}{{ fail "`admin.enabled` is false, but the probes of the pod use the admin listener: remove it" }}{{ end }}
{{- if eq (int .Values.ports.http) (int .Values.ports.admin) }}{{ fail (printf "`ports.http` and `ports.admin` are both %d" (int .Values.ports.http)) }}{{ end }}
{{- if regexMatch "^(127\\.|\\[[0:]*1\\]$|\\[[0:]*:ffff:127\\.)" (lower .Values.listenAddress) }}{{ fail (printf "`listenAddress` is %s, but the kubelet and the Service connect to the address of the pod: use 0.0.0.0, or [::] for IPv6" .Values.listenAddress) }}{{ end }}
{{- /* Helm has lost how a number or a Boolean was written. */}}
{{- range $section := list "http" "admin" }}
{{- range $index, $host := dig $section "allowed_hosts" list $config }}
{{- if not (kindIs "string" $host) }}{{ fail (printf "Helm reads `%s.allowed_hosts[%d]` of the configuration as %s, which is not a text: write it in quotes" $section $index (toJson $host)) }}{{ end }}
{{- end }}
{{- end }}
{{- include "a2abus.checkImage" . }}
{{- include "a2abus.checkNames" . }}
{{- include "a2abus.checkEnvironment" . }}
{{- include "a2abus.checkVolumes" . }}
{{- include "a2abus.checkSecrets" $config }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.egress) }}
{{- range $name, $agent := $config.agents }}
{{- if dig "attach" "url" "" ($agent | default dict) }}{{ fail (printf "`networkPolicy` blocks connections to `agents.%s.attach.url`: allow them in `networkPolicy.egress`, for example [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: tools}}}], ports: [{port: 8000}]}]" $name) }}{{ end }}
{{- end }}
{{- end }}
{{- if eq .Values.mode "workload" }}{{ include "a2abus.checkWorkload" . }}{{ else }}{{ include "a2abus.checkSidecar" . }}{{ end }}
{{- if not .Values.persistence.enabled }}
{{- if hasKey ($config.calls | default dict) "replica" }}{{ fail "`calls.replica` identifies one replica, but all pods read this configuration: remove it (with `persistence.enabled` the chart sets one for each pod of a workload)" }}{{ end }}
{{- range $name, $transport := $config.transports }}
{{- if hasKey $transport "instance_id" }}{{ fail (printf "`transports.%s.instance_id` identifies one process, but all pods read this configuration, and each would end the subscriptions of the others: remove it (with `persistence.enabled` the chart sets one for each pod of a workload)" $name) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Fails on secrets in the configuration: they would be readable in the ConfigMap and in the Helm release. These are the keys that
take {file: ...} or {env: ...}, the usual headers with credentials, Kafka properties whose names say that they hold a secret,
and logins in addresses of NATS servers. It does not know which variables of `attach.env` and which other headers are secret.
*/}}
{{- define "a2abus.checkSecrets" -}}
{{- $keys := dict "sasl" (list "password") "auth" (list "password" "token" "nkey") "tls" (list "key_password") }}
{{- /* The values of all secrets, by their paths. */}}
{{- $values := dict }}
{{- range $name, $transport := .transports }}
{{- range $section, $secrets := $keys }}
{{- $given := dig $section dict ($transport | default dict) }}
{{- range $secrets }}
{{- if and (kindIs "map" $given) (hasKey $given .) }}{{ $_ := set $values (printf "transports.%s.%s.%s" $name $section .) (get $given .) }}{{ end }}
{{- end }}
{{- end }}
{{- $properties := dig "properties" dict ($transport | default dict) }}
{{- range $property, $_ := kindIs "map" $properties | ternary $properties dict }}
{{- if regexMatch "credential|jaas|key\\.pem|passphrase|password|secret|token|^ssl_key$" (lower $property) }}{{ fail (printf "`transports.%s.properties.%s` of the configuration is a secret in plain text: use `sasl` and `tls`, which take secrets as {file: ...} or {env: ...}" $name $property) }}{{ end }}
{{- end }}
{{- range include "a2abus.jsonList" (dig "servers" list ($transport | default dict)) | fromJsonArray }}
{{- if contains "@" (toString .) }}{{ fail (printf "`transports.%s.servers` has a login in plain text: move it to `auth`, as {file: ...} or {env: ...}" $name) }}{{ end }}
{{- end }}
{{- end }}
{{- range $name, $agent := .agents }}
{{- range $header, $value := dig "attach" "headers" dict ($agent | default dict) }}
{{- if has (lower $header) (list "authorization" "proxy-authorization" "cookie" "x-api-key") }}{{ $_ := set $values (printf "agents.%s.attach.headers.%s" $name $header) $value }}{{ end }}
{{- end }}
{{- end }}
{{- range $index, $agent := dig "workflows" "agents" list . }}
{{- include "a2abus.addKeys" (dict "values" $values "path" (printf "workflows.agents[%d].keys" $index) "keys" (get $agent "keys")) }}
{{- end }}
{{- range $index, $credential := dig "workflows" "credentials" list . }}
{{- if hasKey $credential "value" }}{{ $_ := set $values (printf "workflows.credentials[%d].value" $index) $credential.value }}{{ end }}
{{- end }}
{{- include "a2abus.addKeys" (dict "values" $values "path" "a2a.push_notifications.keys" "keys" (dig "a2a" "push_notifications" "keys" list .)) }}
{{- range $path, $value := $values }}
{{- if not (kindIs "map" $value) }}{{ fail (printf "`%s` of the configuration is a secret in plain text: name an existing Secret in `secrets`, and write {file: /run/secrets/NAME/KEY}" $path) }}{{ end }}
{{- end }}
{{- end }}

{{/* Adds the keys of a list to `values`, by their paths. */}}
{{- define "a2abus.addKeys" -}}
{{- $list := kindIs "slice" .keys | ternary .keys (compact (list .keys)) }}
{{- range $index, $key := $list }}{{ $_ := set $.values (printf "%s[%d]" $.path $index) $key }}{{ end }}
{{- end }}

{{/* Fails on a tag or digest in `image.repository`. */}}
{{- define "a2abus.checkImage" -}}
{{- $repository := .Values.image.repository }}
{{- if contains "@" $repository }}{{ fail (printf "`image.repository` is %s: write the digest in `image.digest`" $repository) }}{{ end }}
{{- if contains ":" (splitList "/" $repository | last) }}{{ fail (printf "`image.repository` is %s: write the tag in `image.tag`" $repository) }}{{ end }}
{{- end }}

{{/* Helm checks the name of the release, but the rules for names of Services are stricter. */}}
{{- define "a2abus.checkNames" -}}
{{- $name := include "a2abus.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}{{ fail (printf "%q is not a valid Service name (lower-case letters, digits and -, beginning with a letter): set `fullnameOverride`" $name) }}{{ end }}
{{- /* A sub-chart with an alias may be one of several instances in its release. */}}
{{- $isAlias := ne .Chart.Name "a2abus" }}
{{- $whole := printf "%s-%s" .Release.Name (default .Chart.Name .Values.nameOverride) }}
{{- if and $isAlias (not .Values.fullnameOverride) (ne $name $whole) (ne $name .Release.Name) }}{{ fail (printf "`%s`: the name %s is too long, and would be cut off to %s, which other instances in this release could get too: set `fullnameOverride` (if this instance is already installed, to the shorter name)" .Chart.Name $whole $name) }}{{ end }}
{{- $transports := dict }}
{{- range $name, $transport := (include "a2abus.config" . | fromJson).transports }}
{{- $variable := include "a2abus.envName" $name }}
{{- if and $.Values.persistence.enabled (eq (toString $transport.type) "kafka") }}
{{- with get $transports $variable }}{{ fail (printf "the transports `%s` and `%s` share the environment variable A2ABUS_TRANSPORTS__%s__INSTANCE_ID: rename one of them" . $name $variable) }}{{ end }}
{{- $_ := set $transports $variable $name }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Fails on environment variables that occur twice, because the last one would win silently, and on variables for keys that the
chart needs: it reads them only from the configuration. The bridge also accepts lower-case names of variables.
*/}}
{{- define "a2abus.checkEnvironment" -}}
{{- $chartVariables := list }}
{{- range include "a2abus.environment" (dict "root" . "listen" .Values.listenAddress) | fromYamlArray }}{{ $chartVariables = append $chartVariables .name }}{{ end }}
{{- $transport := "TRANSPORTS(__([^_]|_[^_])+(__(%s)(__.*)?)?)?" }}
{{- $chartKeys := list "CALLS(__REPLICA)?" "HTTP__DRAIN_GRACE" (printf $transport "INSTANCE_ID") }}
{{- if not .Values.existingConfigMap }}
{{- $chartKeys = list "INSTANCE" "HTTP(__(ENABLED|LISTEN|ALLOWED_HOSTS|DRAIN_GRACE)(__.*)?)?" "ADMIN(__.*)?" "CALLS(__(ENABLED|REPLICA|REPLY_PARTITIONS))?" "STATE(__(LOG|DIRECTORY))?" "WORKFLOWS(__DATA_DIRECTORY)?" "REGISTRY(__ENABLED)?" "BINDINGS(__.*)?" "AGENTS(__.*)?" (printf $transport "TYPE|BROKERS|SERVERS|INSTANCE_ID") }}
{{- end }}
{{- $names := list }}
{{- range .Values.env }}
{{- $name := .name }}
{{- if hasPrefix "A2ABUS_" $name }}{{ $name = upper $name }}{{ end }}
{{- if has $name $chartVariables }}{{ fail (printf "`env` has %s, which the chart sets: remove it, and use `ports`, `listenAddress`, `persistence` or the configuration" .name) }}{{ end }}
{{- if and (hasKey . "value") (regexMatch (printf "^A2ABUS_(%s)$" (join "|" $chartKeys)) $name) }}{{ fail (printf "`env` has %s, but the chart needs the value: set `%s` in the configuration" .name (trimPrefix "A2ABUS_" $name | lower | replace "__" ".")) }}{{ end }}
{{- if has $name $names }}{{ fail (printf "`env` has %s twice" .name) }}{{ end }}
{{- $names = append $names $name }}
{{- end }}
{{- if not .Values.envFrom }}
{{- range regexFindAll "\\{\"env\":\"[A-Z][A-Z0-9_]*\"\\}" (include "a2abus.config" .) -1 }}
{{- $name := (fromJson .).env }}
{{- if not (has $name $names) }}{{ fail (printf "the configuration reads a secret from the environment variable %s, which nothing sets: add it to `env` (as `{name: %s, valueFrom: {secretKeyRef: {name: ..., key: ...}}}`) or to `envFrom`" $name $name) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails on labels and annotations that the chart sets itself. */}}
{{- define "a2abus.checkLabels" -}}
{{- $labels := include "a2abus.labels" . | fromYaml }}
{{- $annotations := include "a2abus.podAnnotations" . | fromYaml }}
{{- $labelValues := dict "podLabels" .Values.podLabels "serviceMonitor.labels" .Values.serviceMonitor.labels "prometheusRule.labels" .Values.prometheusRule.labels "dashboard.labels" .Values.dashboard.labels }}
{{- range $name, $given := $labelValues }}
{{- range $key, $_ := $given }}{{ if hasKey $labels $key }}{{ fail (printf "`%s` has %s, which the chart sets" $name $key) }}{{ end }}{{ end }}
{{- end }}
{{- range $key, $_ := .Values.podAnnotations }}{{ if hasKey $annotations $key }}{{ fail (printf "`podAnnotations` has %s, which the chart sets" $key) }}{{ end }}{{ end }}
{{- end }}

{{/* Fails on volumes and mounts that collide, and on files and directories of the configuration that no volume holds. */}}
{{- define "a2abus.checkVolumes" -}}
{{- $volumes := list "a2abus-config" }}
{{- if .Values.persistence.enabled }}{{ $volumes = append $volumes "data" }}{{ end }}
{{- $paths := list "/etc/a2abus" "/var/lib/a2abus" }}
{{- $secrets := concat .Values.secrets .Values.externalSecrets .Values.csiSecrets }}
{{- range $secrets }}
{{- if has (print "/run/secrets/" .name) $paths }}{{ fail (printf "`%s` occurs twice in `secrets`, `externalSecrets` and `csiSecrets`: each is mounted at /run/secrets/NAME (an ExternalSecret needs no entry in `secrets`)" .name) }}{{ end }}
{{- $paths = append $paths (print "/run/secrets/" .name) }}
{{- $volumes = append $volumes (include "a2abus.volumeName" .name) }}
{{- end }}
{{- range .Values.extraVolumes }}
{{- if has (toString .name) $volumes }}{{ fail (printf "`extraVolumes`: the name %q is already in use" (toString .name)) }}{{ end }}
{{- $volumes = append $volumes (toString .name) }}
{{- end }}
{{- range .Values.extraVolumeMounts }}
{{- if has (toString .mountPath) $paths }}{{ fail (printf "`extraVolumeMounts`: something else is mounted at %q" (toString .mountPath)) }}{{ end }}
{{- if hasPrefix "/etc/a2abus/" (toString .mountPath) }}{{ fail (printf "`extraVolumeMounts`: nothing can be mounted at %s, inside the ConfigMap: choose another path, such as /run/secrets/NAME" (toString .mountPath)) }}{{ end }}
{{- /* The volumes of a sidecar may be those of the agent's chart. */}}
{{- if and (eq $.Values.mode "workload") (not (has (toString .name) $volumes)) }}{{ fail (printf "`extraVolumeMounts`: there is no volume %q: add it to `extraVolumes`" (toString .name)) }}{{ end }}
{{- $paths = append $paths (toString .mountPath) }}
{{- end }}
{{- $config := include "a2abus.config" . }}
{{- range regexFindAll "\"/(run/secrets|etc/a2abus)/[^\"]+\"" $config -1 }}
{{- $file := trimAll "\"" . }}
{{- if not (or (eq $file "/etc/a2abus/a2abus.yaml") (include "a2abus.isMounted" (dict "root" $ "path" $file))) }}
{{- $cure := "put it into a Secret, name the Secret in `secrets`, and write /run/secrets/NAME/KEY" }}
{{- if regexMatch "^/run/secrets/[^/]+/" $file }}{{ $cure = printf "add `{name: %s}` to `secrets`" (regexReplaceAll "^/run/secrets/([^/]*).*$" $file "${1}") }}{{ end }}
{{- fail (printf "the configuration names %s, but nothing is mounted there: %s" $file $cure) }}
{{- end }}
{{- end }}
{{- include "a2abus.checkDirectories" (dict "root" . "config" ($config | fromJson)) }}
{{- end }}

{{/* Fails on directories to which the bridge could not write: the root file system of its container is read-only. */}}
{{- define "a2abus.checkDirectories" -}}
{{- $workflows := .config.workflows | default dict }}
{{- $directories := dict }}
{{- if $workflows.enabled }}
{{- with $workflows.file_directory }}{{ $_ := set $directories "workflows.file_directory" . }}{{ end }}
{{- /* With persistence, the chart sets these two. */}}
{{- if not .root.Values.persistence.enabled }}
{{- with $workflows.data_directory }}{{ $_ := set $directories "workflows.data_directory" . }}{{ end }}
{{- end }}
{{- end }}
{{- $state := .config.state | default dict }}
{{- if and (eq "embedded" (toString $state.log)) (not .root.Values.persistence.enabled) }}
{{- with $state.directory }}{{ $_ := set $directories "state.directory" . }}{{ end }}
{{- end }}
{{- range $key, $directory := $directories }}
{{- if and ($.root.Values.securityContext | default dict).readOnlyRootFilesystem (not (include "a2abus.isMounted" (dict "root" $.root "path" $directory))) }}
{{- $cure := eq "workload" $.root.Values.mode | ternary "set `persistence.enabled` and use a directory below /var/lib/a2abus, or mount a volume with `extraVolumes` and `extraVolumeMounts`" "mount a volume with `extraVolumes` and `extraVolumeMounts`" }}
{{- if and (eq $key "state.directory") (eq "workload" $.root.Values.mode) }}{{ $cure = "its files need `persistence.enabled`" }}{{ end }}
{{- fail (printf "`%s` is %s, but the file system is read-only there: %s" $key $directory $cure) }}
{{- end }}
{{- end }}
{{- end }}

{{/* `true` if a volume other than that of the configuration holds a path, else empty. The argument is (dict "root" $ "path" PATH). */}}
{{- define "a2abus.isMounted" -}}
{{- $values := .root.Values }}
{{- $mounts := list }}
{{- if $values.persistence.enabled }}{{ $mounts = append $mounts "/var/lib/a2abus" }}{{ end }}
{{- range concat $values.secrets $values.externalSecrets $values.csiSecrets }}{{ $mounts = append $mounts (print "/run/secrets/" .name) }}{{ end }}
{{- range $values.extraVolumeMounts }}{{ $mounts = append $mounts (toString .mountPath) }}{{ end }}
{{- $isMounted := false }}
{{- range $mounts }}
{{- $mount := trimSuffix "/" . }}
{{- if or (eq $mount (trimSuffix "/" $.path)) (hasPrefix (print $mount "/") $.path) }}{{ $isMounted = true }}{{ end }}
{{- end }}
{{- if $isMounted }}true{{ end }}
{{- end }}

{{/* Fails on values that only a workload uses; files/workload.yaml lists them. In sidecar mode the chart of the agent sets these. */}}
{{- define "a2abus.checkSidecar" -}}
{{- $given := list }}
{{- range $name, $default := .Files.Get "files/workload.yaml" | fromYaml }}
{{- $value := get $.Values $name }}
{{- if not (kindIs "map" $default) }}
{{- if ne (toJson $value) (toJson $default) }}{{ $given = append $given $name }}{{ end }}
{{- else }}
{{- range $key, $member := $value }}
{{- if and (not (kindIs "invalid" $member)) (ne (toJson $member) (toJson (get $default $key))) }}{{ $given = append $given (print $name "." $key) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- with $given }}{{ fail (printf "only `mode: workload` uses `%s`: in `mode: sidecar` the chart of the agent sets these" (join "`, `" .)) }}{{ end }}
{{- end }}

{{/* Fails on values that contradict each other in workload mode. */}}
{{- define "a2abus.checkWorkload" -}}
{{- $config := include "a2abus.config" . | fromJson }}
{{- if and .Values.autoscaling.enabled .Values.keda.enabled }}{{ fail "`autoscaling` and `keda` cannot both decide the number of replicas" }}{{ end }}
{{- $resources := .Values.resources | default dict }}
{{- $requests := dig "requests" "cpu" "" $resources | default (dig "limits" "cpu" "" $resources) }}
{{- if and .Values.autoscaling.enabled (not $requests) }}{{ fail "`autoscaling` scales on a percentage of `resources.requests.cpu`, which is not set" }}{{ end }}
{{- $maxReplicas := include "a2abus.maxReplicas" . | int }}
{{- if eq "embedded" (dig "state" "log" "" $config) }}
{{- if not .Values.persistence.enabled }}{{ fail "`state.log` is `embedded`: its files need `persistence.enabled`" }}{{ end }}
{{- if gt $maxReplicas 1 }}{{ fail "`state.log` is `embedded`: each replica would have tasks of its own; run one replica, or name a Kafka or NATS transport in `state.log`" }}{{ end }}
{{- end }}
{{- $kafka := list }}
{{- range $name, $transport := $config.transports }}{{ if eq (toString $transport.type) "kafka" }}{{ $kafka = append $kafka $name }}{{ end }}{{ end }}
{{- $partitions := dig "calls" "reply_partitions" 32 $config }}
{{- if and $kafka (dig "calls" "enabled" true $config) (gt $maxReplicas (int $partitions)) }}{{ fail (printf "%d replicas exceed `calls.reply_partitions` (%d), so some would share a reply partition: raise `calls.reply_partitions`, or run fewer replicas" $maxReplicas (int $partitions)) }}{{ end }}
{{- if not (include "a2abus.httpEnabled" .) }}
{{- range $name := list "ingress" "gateway" }}
{{- if (get $.Values $name).enabled }}{{ fail (printf "`%s` leads to the Service for callers, which `http.enabled: false` switches off" $name) }}{{ end }}
{{- end }}
{{- end }}
{{- if and .Values.networkPolicy.enabled .Values.serviceMonitor.enabled (not .Values.networkPolicy.monitoring) }}{{ fail "`networkPolicy` blocks the Prometheus that `serviceMonitor` is for: set `networkPolicy.monitoring`, for example [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]" }}{{ end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.callers) (include "a2abus.httpEnabled" .) }}
{{- $entryPoints := list }}
{{- range $name := list "ingress" "gateway" }}{{ if (get $.Values $name).enabled }}{{ $entryPoints = append $entryPoints $name }}{{ end }}{{ end }}
{{- if ne .Values.service.type "ClusterIP" }}{{ $entryPoints = append $entryPoints (print "service.type: " .Values.service.type) }}{{ end }}
{{- with $entryPoints }}{{ fail (printf "`networkPolicy` without `callers` admits only pods of the namespace, so it blocks requests through `%s`: set `networkPolicy.callers` to their source, for example [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}], and {podSelector: {}} for the pods of the namespace" (first .)) }}{{ end }}
{{- end }}
{{- if and .Values.keda.nats.monitoringEndpoint (not (regexMatch "^([^:/@\\s]+|\\[[0-9a-fA-F:.]+\\]):[0-9]+$" .Values.keda.nats.monitoringEndpoint)) }}{{ fail (printf "`keda.nats.monitoringEndpoint` is %q: write host and port alone, for example nats:8222 (for https set `keda.nats.metadata.useHttps` to \"true\")" .Values.keda.nats.monitoringEndpoint) }}{{ end }}
{{- include "a2abus.checkLabels" . }}
{{- include "a2abus.checkDisruptions" . }}
{{- end }}

{{/* The maximum number of replicas. */}}
{{- define "a2abus.maxReplicas" -}}
{{- $maxReplicas := .Values.replicas }}
{{- range $name := list "autoscaling" "keda" }}
{{- $scaling := get $.Values $name }}
{{- if $scaling.enabled }}
{{- $maxReplicas = $scaling.maxReplicas }}
{{- if gt (int $scaling.minReplicas) (int $maxReplicas) }}{{ fail (printf "`%s.minReplicas` (%d) is more than `%s.maxReplicas` (%d)" $name (int $scaling.minReplicas) $name (int $maxReplicas)) }}{{ end }}
{{- end }}
{{- end }}
{{- $maxReplicas }}
{{- end }}

{{/* Fails on disruption budgets that never let a pod go. */}}
{{- define "a2abus.checkDisruptions" -}}
{{- $budget := .Values.podDisruptionBudget }}
{{- $minAvailable := $budget.minAvailable }}
{{- if not (or (kindIs "invalid" $minAvailable) (kindIs "invalid" $budget.maxUnavailable)) }}{{ fail "`podDisruptionBudget` has both `minAvailable` and `maxUnavailable`: Kubernetes accepts only one of them" }}{{ end }}
{{- $minReplicas := .Values.replicas }}
{{- range $scaling := list .Values.autoscaling .Values.keda }}{{ if $scaling.enabled }}{{ $minReplicas = $scaling.minReplicas }}{{ end }}{{ end }}
{{- $isAll := false }}
{{- /* Kubernetes rounds a percentage up. */}}
{{- if kindIs "string" $minAvailable }}{{ $isAll = ge (div (add (mul (trimSuffix "%" $minAvailable) (int $minReplicas)) 99) 100) (int64 $minReplicas) }}
{{- else if not (kindIs "invalid" $minAvailable) }}{{ $isAll = ge (int $minAvailable) (int $minReplicas) }}
{{- end }}
{{- if and $budget.enabled $isAll }}{{ fail (printf "`podDisruptionBudget.minAvailable` (%v) is all of %d replicas: no node could ever be drained" $minAvailable (int $minReplicas)) }}{{ end }}
{{- if and $budget.enabled (has (toString $budget.maxUnavailable) (list "0" "0%")) }}{{ fail (printf "`podDisruptionBudget.maxUnavailable` is %v: no node could ever be drained; set 1 or more, or `podDisruptionBudget.enabled=false`" $budget.maxUnavailable) }}{{ end }}
{{- end }}

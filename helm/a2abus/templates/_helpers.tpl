{{/* Names. */}}
{{- define "a2abus.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* 52 characters, so that what Kubernetes appends to the names of pods still fits. */}}
{{- define "a2abus.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "a2abus.selectorLabels" -}}
app.kubernetes.io/name: {{ include "a2abus.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "a2abus.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "a2abus.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "a2abus.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "a2abus.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "a2abus.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "a2abus.kind" -}}
{{- if .Values.persistence.enabled }}StatefulSet{{ else }}Deployment{{ end }}
{{- end }}

{{- define "a2abus.configMapName" -}}
{{- .Values.existingConfigMap | default (include "a2abus.fullname" .) }}
{{- end }}

{{/* The configuration as YAML: that of the values, whichever way it was given. Empty with existingConfigMap. */}}
{{- define "a2abus.config" -}}
{{- $ways := compact (list .Values.configFile .Values.existingConfigMap (empty .Values.config | ternary "" "config")) }}
{{- if gt (len $ways) 1 }}{{ fail "give the configuration once: as `config`, as `configFile`, or as `existingConfigMap`" }}{{ end }}
{{- if .Values.existingConfigMap }}{}
{{- else if .Values.configFile }}{{ .Values.configFile }}
{{- else if not .Values.config.transports }}{{ fail "`config.transports` names no bus: write the configuration below `config`, or give your file by --set-file configFile=a2abus.yaml" }}
{{- else }}{{ toYaml .Values.config }}
{{- end }}
{{- end }}

{{/* The parts of the configuration that need a restart: without those that a running bridge reads again. */}}
{{- define "a2abus.restartingConfig" -}}
{{- $config := omit (include "a2abus.config" . | fromYaml) "routes" "default_route" "limits" }}
{{- with $config.telemetry }}{{ $config = set $config "telemetry" (omit . "log") }}{{ end }}
{{- with $config.workflows }}{{ $config = set $config "workflows" (omit . "apis" "credentials" "agents") }}{{ end }}
{{- toJson $config }}
{{- end }}

{{/* Refuses values that do not fit together. */}}
{{- define "a2abus.check" -}}
{{- $config := include "a2abus.config" . | fromYaml }}
{{- if $config.Error }}{{ fail (printf "`configFile` is not YAML: %s" $config.Error) }}{{ end }}
{{- if eq false (dig "admin" "enabled" true $config) }}{{ fail "`admin.enabled` is false, but the probes of the pod ask the admin listener" }}{{ end }}
{{- if and .Values.autoscaling.enabled .Values.keda.enabled }}{{ fail "`autoscaling` and `keda` cannot both decide the number of replicas" }}{{ end }}
{{- $most := .Values.replicas }}
{{- if .Values.autoscaling.enabled }}{{ $most = .Values.autoscaling.maxReplicas }}{{ else if .Values.keda.enabled }}{{ $most = .Values.keda.maxReplicas }}{{ end }}
{{- if eq "embedded" (dig "state" "log" "" $config) }}
{{- if not .Values.persistence.enabled }}{{ fail "`state.log` is `embedded`: its files need `persistence.enabled`" }}{{ end }}
{{- if gt (int $most) 1 }}{{ fail "`state.log` is `embedded`: each replica would have tasks of its own; run one replica, or name a Kafka or NATS transport in `state.log`" }}{{ end }}
{{- end }}
{{- $partitions := dig "calls" "reply_partitions" 32 $config }}
{{- if gt (int $most) (int $partitions) }}{{ fail (printf "%d replicas are more than `calls.reply_partitions` (%d): replicas without a reply partition of their own share one" (int $most) (int $partitions)) }}{{ end }}
{{- end }}

{{/* Whether there is a listener for callers: `true` or empty. */}}
{{- define "a2abus.http" -}}
{{- if dig "http" "enabled" true (include "a2abus.config" . | fromYaml) }}true{{ end }}
{{- end }}

{{/* A duration of the configuration in whole seconds. */}}
{{- define "a2abus.seconds" -}}
{{- if regexMatch "^[0-9]+ms$" . }}{{ div (add (trimSuffix "ms" . | int) 999) 1000 }}
{{- else if regexMatch "^[0-9]+s$" . }}{{ trimSuffix "s" . | int }}
{{- else if regexMatch "^[0-9]+m$" . }}{{ mul (trimSuffix "m" . | int) 60 }}
{{- else if regexMatch "^[0-9]+h$" . }}{{ mul (trimSuffix "h" . | int) 3600 }}
{{- else }}{{ fail (printf "`http.drain_grace` is %q: write whole milliseconds, seconds, minutes or hours, as 25s" .) }}
{{- end }}
{{- end }}

{{/* The pod must live as long as preStop and the drain take. */}}
{{- define "a2abus.gracePeriod" -}}
{{- $drain := dig "http" "drain_grace" "25s" (include "a2abus.config" . | fromYaml) | toString }}
{{- $need := add (int .Values.preStopSeconds) (include "a2abus.seconds" $drain | int) }}
{{- $given := .Values.terminationGracePeriodSeconds }}
{{- if kindIs "invalid" $given }}{{ add $need 10 }}
{{- else if le (int $given) (int $need) }}{{ fail (printf "`terminationGracePeriodSeconds` is %d, but preStopSeconds and `http.drain_grace` (%s) take %d s: the drain would be cut off" (int $given) $drain (int $need)) }}
{{- else }}{{ $given }}
{{- end }}
{{- end }}

{{/* The names by which callers may ask: yours, and those of Service, Ingress and Gateway. */}}
{{- define "a2abus.allowedHosts" -}}
{{- $config := include "a2abus.config" . | fromYaml }}
{{- $name := include "a2abus.fullname" . }}
{{- $namespace := .Release.Namespace }}
{{- $service := list $name (printf "%s.%s" $name $namespace) (printf "%s.%s.svc" $name $namespace) (printf "%s.%s.svc.cluster.local" $name $namespace) }}
{{- $hosts := concat (dig "http" "allowed_hosts" list $config) $service }}
{{- if .Values.ingress.enabled }}{{ $hosts = concat $hosts .Values.ingress.hosts }}{{ end }}
{{- if .Values.gateway.enabled }}{{ $hosts = concat $hosts .Values.gateway.hostnames }}{{ end }}
{{- uniq $hosts | toJson }}
{{- end }}

{{- define "a2abus.adminHosts" -}}
{{- $config := include "a2abus.config" . | fromYaml }}
{{- $name := printf "%s-admin" (include "a2abus.fullname" .) }}
{{- concat (dig "admin" "allowed_hosts" list $config) (list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace)) | uniq | toJson }}
{{- end }}

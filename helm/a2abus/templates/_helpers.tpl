{{/* Names. */}}
{{- define "a2abus.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters, because Kubernetes appends to the names of pods. */}}
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

{{/* The configuration as YAML, from `config` or `configFile`. Empty with existingConfigMap. */}}
{{- define "a2abus.text" -}}
{{- $ways := compact (list .Values.configFile .Values.existingConfigMap (empty .Values.config | ternary "" "config")) }}
{{- if gt (len $ways) 1 }}{{ fail "set the configuration once: as `config`, as `configFile`, or as `existingConfigMap`" }}{{ end }}
{{- if .Values.existingConfigMap }}{}
{{- else if .Values.configFile }}{{ .Values.configFile }}
{{- else }}{{ toYaml .Values.config }}
{{- end }}
{{- end }}

{{/* The configuration as JSON, for the templates. */}}
{{- define "a2abus.config" -}}
{{- $config := include "a2abus.words" (include "a2abus.text" .) | fromYaml }}
{{- if $config.Error }}{{ fail (printf "`configFile` is not YAML: %s" $config.Error) }}{{ end }}
{{- $keys := .Files.Get "files/keys.json" | fromJson }}
{{- $config = (include "a2abus.part" (dict "keys" $keys "value" $config "path" "" "shown" "") | fromJson).value }}
{{- range $index, $binding := $config.bindings }}
{{- if and (hasKey $binding "topics") (not (kindIs "slice" $binding.topics)) }}{{ fail (printf "`bindings[%d].topics` of the configuration must be a list: put it in brackets" $index) }}{{ end }}
{{- end }}
{{- toJson $config }}
{{- end }}

{{/* YAML in which `no`, `on` and their like are texts, as the bridge reads them; Helm reads them as Booleans. */}}
{{- define "a2abus.words" -}}
{{- regexReplaceAll "(?im)(^|[\\s\\[{,])(y|n|yes|no|on|off)([\\s\\]},]|$)" . "${1}!!str ${2}${3}" }}
{{- end }}

{{/*
A part of the configuration, as JSON of {"value": ...}. A key without a value counts as absent. Refuses keys that the bridge
would refuse; files/keys.json lists the keys of each section.
*/}}
{{- define "a2abus.part" -}}
{{- $value := .value }}
{{- $known := get .keys .path }}
{{- $isList := hasKey .keys (print .path "[]") }}
{{- $hasNames := hasKey .keys (print .path ".<name>") }}
{{- if and (or $known $hasNames) (not (kindIs "map" $value)) }}{{ fail (printf "`%s` of the configuration must be a section of keys" .shown) }}{{ end }}
{{- if and $isList (not (kindIs "slice" $value)) }}{{ fail (printf "`%s` of the configuration must be a list" .shown) }}{{ end }}
{{- if kindIs "map" $value }}
{{- $kept := dict }}
{{- range $key, $member := $value }}
{{- $shown := print $.shown "." $key | trimPrefix "." }}
{{- if and $known (not (has $key $known)) }}{{ fail (printf "`%s` is not a key of the configuration: the keys in this section are %s" $shown (join ", " $known)) }}{{ end }}
{{- if not (kindIs "invalid" $member) }}
{{- if and $known (eq $key "enabled") (not (kindIs "bool" $member)) }}{{ fail (printf "`%s` of the configuration is %q: write true or false" $shown (toString $member)) }}{{ end }}
{{- $path := print $.path "." (ternary "<name>" $key $hasNames) | trimPrefix "." }}
{{- $_ := set $kept $key (include "a2abus.part" (dict "keys" $.keys "value" $member "path" $path "shown" $shown) | fromJson).value }}
{{- end }}
{{- end }}
{{- $value = $kept }}
{{- else if kindIs "slice" $value }}
{{- $kept := list }}
{{- range $index, $member := $value }}
{{- $part := dict "keys" $.keys "value" $member "path" (print $.path "[]") "shown" (printf "%s[%d]" $.shown $index) }}
{{- $kept = append $kept (include "a2abus.part" $part | fromJson).value }}
{{- end }}
{{- $value = $kept }}
{{- end }}
{{- dict "value" $value | toJson }}
{{- end }}

{{/* The configuration without the parts that a running bridge reloads: a change of the rest needs a restart. */}}
{{- define "a2abus.restartingConfig" -}}
{{- $config := omit (include "a2abus.config" . | fromJson) "routes" "default_route" "limits" }}
{{- if or $config.agents (dig "registry" "enabled" false $config) }}
{{- $attached := dict }}
{{- range $name, $agent := $config.agents }}{{ if $agent.attach }}{{ $_ := set $attached $name (pick $agent "attach" "to") }}{{ end }}{{ end }}
{{- /* Written even when it is empty: A2A is served. */}}
{{- $config = set $config "agents" $attached }}
{{- $config = set $config "a2a" (pick ($config.a2a | default dict) "push_notifications") }}
{{- end }}
{{- with $config.telemetry }}{{ $config = set $config "telemetry" (omit . "log") }}{{ end }}
{{- with $config.workflows }}{{ $config = set $config "workflows" (omit . "apis" "credentials" "agents") }}{{ end }}
{{- toJson $config }}
{{- end }}

{{/* The name of a volume for a Secret: short names as they are, others with a hash, so that they stay different. */}}
{{- define "a2abus.volumeName" -}}
{{- if regexMatch "^[-a-z0-9]{1,56}$" . }}{{ printf "secret-%s" . }}
{{- else }}{{ printf "secret-%s-%s" (replace "." "-" . | trunc 40 | trimSuffix "-") (sha256sum . | trunc 8) }}
{{- end }}
{{- end }}

{{/* A name in the form that environment variables use. */}}
{{- define "a2abus.variable" -}}
{{- regexReplaceAll "[-.]" . "_" | upper }}
{{- end }}

{{/* A list as JSON; it may be written as text with commas. */}}
{{- define "a2abus.list" -}}
{{- if kindIs "string" . }}{{ splitList "," . | toJson }}{{ else }}{{ . | default list | toJson }}{{ end }}
{{- end }}

{{/* The port of a broker as text, from `host:9092`, `nats://host:4222/` or `[::1]:4222`. Empty if there is none. */}}
{{- define "a2abus.port" -}}
{{- $authority := regexFind "^[^/?#]*" (regexReplaceAll "^[A-Za-z][-+.A-Za-z0-9]*://" (trim .) "") }}
{{- regexFind ":[0-9]+$" $authority | trimPrefix ":" }}
{{- end }}

{{/* The labels of the pod of `helm test`, which the NetworkPolicy always admits. */}}
{{- define "a2abus.testLabels" -}}
app.kubernetes.io/name: {{ include "a2abus.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Whether there is a listener for callers: `true` or empty. */}}
{{- define "a2abus.http" -}}
{{- if dig "http" "enabled" true (include "a2abus.config" . | fromJson) }}true{{ end }}
{{- end }}

{{/* A duration of the configuration, such as `25s` or `1m 30s`, in whole seconds. */}}
{{- define "a2abus.seconds" -}}
{{- $text := nospace . }}
{{- if not (regexMatch "^([0-9]+(ms|msec|millis|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?))+$" $text) }}{{ fail (printf "`http.drain_grace` is %q: write milliseconds, seconds, minutes or hours, such as 25s or 1m30s" .) }}{{ end }}
{{- $total := 0 }}
{{- range regexFindAll "[0-9]+[a-z]+" $text -1 }}
{{- $unit := regexFind "[a-z]+" . }}
{{- $length := 3600000 }}
{{- if regexMatch "^(ms|mil)" $unit }}{{ $length = 1 }}
{{- else if hasPrefix "s" $unit }}{{ $length = 1000 }}
{{- else if hasPrefix "m" $unit }}{{ $length = 60000 }}
{{- end }}
{{- $total = add $total (mul (regexFind "[0-9]+" .) $length) }}
{{- end }}
{{- div (add $total 999) 1000 }}
{{- end }}

{{/* The pod must live as long as preStop and the drain take. Beside a sidecar the agent stops first, with the 30 s that
Kubernetes gives by default. */}}
{{- define "a2abus.gracePeriod" -}}
{{- $drain := dig "http" "drain_grace" "25s" (include "a2abus.config" . | fromJson) | toString }}
{{- $need := add (int .Values.preStopSeconds) (include "a2abus.seconds" $drain | int) }}
{{- $given := .Values.terminationGracePeriodSeconds }}
{{- if kindIs "invalid" $given }}{{ add $need (eq .Values.mode "sidecar" | ternary 30 10) }}
{{- else if le (int $given) (int $need) }}{{ fail (printf "`terminationGracePeriodSeconds` is %d, but preStopSeconds and `http.drain_grace` (%s) take %d s: the drain would be cut off" (int $given) $drain (int $need)) }}
{{- else }}{{ $given }}
{{- end }}
{{- end }}

{{/* The host names that callers may use: those of the configuration, and of Service, Ingress and Gateway. */}}
{{- define "a2abus.allowedHosts" -}}
{{- $config := include "a2abus.config" . | fromJson }}
{{- $name := include "a2abus.fullname" . }}
{{- $namespace := .Release.Namespace }}
{{- $service := list $name (printf "%s.%s" $name $namespace) (printf "%s.%s.svc" $name $namespace) (printf "%s.%s.svc.cluster.local" $name $namespace) }}
{{- $hosts := concat (dig "http" "allowed_hosts" list $config) $service }}
{{- if .Values.ingress.enabled }}{{ $hosts = concat $hosts .Values.ingress.hosts }}{{ end }}
{{- if .Values.gateway.enabled }}{{ $hosts = concat $hosts .Values.gateway.hostnames }}{{ end }}
{{- uniq $hosts | toJson }}
{{- end }}

{{- define "a2abus.adminHosts" -}}
{{- $config := include "a2abus.config" . | fromJson }}
{{- $service := printf "%s-admin" (include "a2abus.fullname" .) }}
{{- $hosts := dig "admin" "allowed_hosts" list $config }}
{{- /* The pods of a StatefulSet have names below that of the Service. */}}
{{- range $name := .Values.persistence.enabled | ternary (list $service (print "$(POD_NAME)." $service)) (list $service) }}
{{- range $end := list "" ".svc" ".svc.cluster.local" }}
{{- if not $end }}{{ $hosts = append $hosts $name }}{{ end }}
{{- $hosts = append $hosts (print $name "." $.Release.Namespace $end) }}
{{- end }}
{{- end }}
{{- uniq $hosts | toJson }}
{{- end }}

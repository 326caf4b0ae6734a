{{/* The name of the chart, for labels. */}}
{{- define "a2abus.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* The name of the resources: at most 52 characters, because Kubernetes appends a suffix to the names of pods. */}}
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

{{/* The kind of the workload. */}}
{{- define "a2abus.workloadKind" -}}
{{- if .Values.persistence.enabled }}StatefulSet{{ else }}Deployment{{ end }}
{{- end }}

{{- define "a2abus.configMapName" -}}
{{- .Values.existingConfigMap | default (include "a2abus.fullname" .) }}
{{- end }}

{{/* The configuration as YAML, from `config` or `configFile`. Empty with existingConfigMap. */}}
{{- define "a2abus.configYaml" -}}
{{- $sources := compact (list .Values.configFile .Values.existingConfigMap (empty .Values.config | ternary "" "config")) }}
{{- if gt (len $sources) 1 }}{{ fail "set the configuration once: as `config`, as `configFile`, or as `existingConfigMap`" }}{{ end }}
{{- if .Values.existingConfigMap }}{}
{{- else if .Values.configFile }}{{ .Values.configFile }}
{{- else }}{{ toYaml .Values.config }}
{{- end }}
{{- end }}

{{/* The configuration as JSON, for the templates. */}}
{{- define "a2abus.config" -}}
{{- $config := include "a2abus.yesNoAsStrings" (include "a2abus.configYaml" .) | fromYaml }}
{{- if $config.Error }}{{ fail (printf "`configFile` is not YAML: %s" $config.Error) }}{{ end }}
{{- $keys := .Files.Get "files/keys.json" | fromJson }}
{{- $config = (include "a2abus.validatedValue" (dict "keys" $keys "value" $config "path" "" "shown" "") | fromJson).value }}
{{- range $index, $binding := $config.bindings }}
{{- if and (hasKey $binding "topics") (not (kindIs "slice" $binding.topics)) }}{{ fail (printf "`bindings[%d].topics` of the configuration must be a list: put it in brackets" $index) }}{{ end }}
{{- end }}
{{- toJson $config }}
{{- end }}

{{/*
The YAML with `yes`, `no`, `on`, `off`, `y` and `n` tagged as strings: the bridge reads them as strings, Helm as Booleans.
Those that the file itself has tagged keep their tag, because YAML permits only one.
*/}}
{{- define "a2abus.yesNoAsStrings" -}}
{{- $tagged := regexReplaceAll "(?im)(^|[\\s\\[{,])(y|n|yes|no|on|off)([\\s\\]},]|$)" . "${1}!!str ${2}${3}" }}
{{- regexReplaceAll "(!\\S+[ \\t]+)!!str " $tagged "${1}" }}
{{- end }}

{{/*
A value of the configuration and everything below it, as the JSON object {"value": ...}. Fails on keys that the bridge would
refuse (files/keys.json lists the keys of each section), and leaves out keys without a value.
*/}}
{{- define "a2abus.validatedValue" -}}
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
{{- $_ := set $kept $key (include "a2abus.validatedValue" (dict "keys" $.keys "value" $member "path" $path "shown" $shown) | fromJson).value }}
{{- end }}
{{- end }}
{{- $value = $kept }}
{{- else if kindIs "slice" $value }}
{{- $kept := list }}
{{- range $index, $member := $value }}
{{- $part := dict "keys" $.keys "value" $member "path" (print $.path "[]") "shown" (printf "%s[%d]" $.shown $index) }}
{{- $kept = append $kept (include "a2abus.validatedValue" $part | fromJson).value }}
{{- end }}
{{- $value = $kept }}
{{- end }}
{{- dict "value" $value | toJson }}
{{- end }}

{{/* The part of the configuration that a running bridge does not reload: a change of it needs a restart. */}}
{{- define "a2abus.staticConfig" -}}
{{- $all := include "a2abus.config" . | fromJson }}
{{- $config := omit $all "routes" "default_route" "limits" }}
{{- /* A bridge opens its answer readers at the start only, so the first route to a transport needs a restart. */}}
{{- $destinations := $all.default_route | default list }}
{{- range $all.routes }}{{ $destinations = concat $destinations (.to | default list) }}{{ end }}
{{- range $all.agents }}{{ $destinations = append $destinations (.to | default dict) }}{{ end }}
{{- $transports := list }}
{{- range $destinations }}{{ $transports = append $transports (.transport | default "" | toString) }}{{ end }}
{{- $config = set $config "routed_transports" (compact $transports | uniq | sortAlpha) }}
{{- if or $config.agents (dig "registry" "enabled" false $config) }}
{{- $attached := dict }}
{{- range $name, $agent := $config.agents }}{{ if $agent.attach }}{{ $_ := set $attached $name (pick $agent "attach" "to") }}{{ end }}{{ end }}
{{- /* Set even when no agent is attached: with or without `agents`, the hash must differ, because only a restart starts or stops the A2A interface. */}}
{{- $config = set $config "agents" $attached }}
{{- $config = set $config "a2a" (pick ($config.a2a | default dict) "push_notifications") }}
{{- end }}
{{- with $config.telemetry }}{{ $config = set $config "telemetry" (omit . "log") }}{{ end }}
{{- with $config.workflows }}{{ $config = set $config "workflows" (omit . "apis" "credentials" "agents") }}{{ end }}
{{- toJson $config }}
{{- end }}

{{/* The name of the volume for a Secret: contains its name, which is shortened and gets a hash if a volume may not have it. */}}
{{- define "a2abus.volumeName" -}}
{{- if regexMatch "^[-a-z0-9]{1,56}$" . }}{{ printf "secret-%s" . }}
{{- else }}{{ printf "secret-%s-%s" (replace "." "-" . | trunc 40 | trimSuffix "-") (sha256sum . | trunc 8) }}
{{- end }}
{{- end }}

{{/* The name of a transport, as it is written in names of environment variables. */}}
{{- define "a2abus.envName" -}}
{{- regexReplaceAll "[-.]" . "_" | upper }}
{{- end }}

{{/* A list, or a string with commas, as a JSON array. */}}
{{- define "a2abus.jsonList" -}}
{{- if kindIs "string" . }}{{ splitList "," . | toJson }}{{ else }}{{ . | default list | toJson }}{{ end }}
{{- end }}

{{/* The port in the address of a broker (`host:9092`, `nats://host:4222/`, `[::1]:4222`); empty if it has none. */}}
{{- define "a2abus.brokerPort" -}}
{{- $authority := regexFind "^[^/?#]*" (regexReplaceAll "^[A-Za-z][-+.A-Za-z0-9]*://" (trim .) "") }}
{{- regexFind ":[0-9]+$" $authority | trimPrefix ":" }}
{{- end }}

{{/* The labels of the pod that `helm test` runs; the NetworkPolicy always allows its requests. */}}
{{- define "a2abus.testLabels" -}}
app.kubernetes.io/name: {{ include "a2abus.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Whether the HTTP listener for callers is enabled: `true` or empty. */}}
{{- define "a2abus.httpEnabled" -}}
{{- if dig "http" "enabled" true (include "a2abus.config" . | fromJson) }}true{{ end }}
{{- end }}

{{/* A duration such as `25s` or `1m 30s`, in seconds, rounded up. */}}
{{- define "a2abus.durationSeconds" -}}
{{- $text := nospace . }}
{{- if not (regexMatch "^([0-9]+(ms|msec|millis|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?))+$" $text) }}{{ fail (printf "`http.drain_grace` is %q: write milliseconds, seconds, minutes or hours, such as 25s or 1m30s" .) }}{{ end }}
{{- $total := 0 }}
{{- range regexFindAll "[0-9]+[a-z]+" $text -1 }}
{{- $unit := regexFind "[a-z]+" . }}
{{- $milliseconds := 3600000 }}
{{- if regexMatch "^(ms|mil)" $unit }}{{ $milliseconds = 1 }}
{{- else if hasPrefix "s" $unit }}{{ $milliseconds = 1000 }}
{{- else if hasPrefix "m" $unit }}{{ $milliseconds = 60000 }}
{{- end }}
{{- $total = add $total (mul (regexFind "[0-9]+" .) $milliseconds) }}
{{- end }}
{{- div (add $total 999) 1000 }}
{{- end }}

{{/*
The termination grace period in seconds: time for preStop and the drain, and a margin. The bridge needs up to 10 s of it to
close its connections. In sidecar mode the margin is 30 s, because the agent stops first and expects the default grace
period of Kubernetes.
*/}}
{{- define "a2abus.gracePeriod" -}}
{{- $drain := dig "http" "drain_grace" "25s" (include "a2abus.config" . | fromJson) | toString }}
{{- $minimum := add (int .Values.preStopSeconds) (include "a2abus.durationSeconds" $drain | int) }}
{{- $given := .Values.terminationGracePeriodSeconds }}
{{- if kindIs "invalid" $given }}{{ add $minimum (eq .Values.mode "sidecar" | ternary 30 10) }}
{{- else if lt (int $given) (add $minimum 10 | int) }}{{ fail (printf "`terminationGracePeriodSeconds` is %d, but preStopSeconds and `http.drain_grace` (%s) take %d s, and closing the connections up to 10 s more: set at least %d" (int $given) $drain (int $minimum) (add $minimum 10)) }}
{{- else }}{{ int $given }}
{{- end }}
{{- end }}

{{/* The host names that callers may use: those in the configuration, and those of the Service, the Ingress and the Gateway. */}}
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

{{/* The host names under which the admin listener can be reached. */}}
{{- define "a2abus.allowedAdminHosts" -}}
{{- $config := include "a2abus.config" . | fromJson }}
{{- $service := printf "%s-admin" (include "a2abus.fullname" .) }}
{{- $hosts := dig "admin" "allowed_hosts" list $config }}
{{- /* Each pod of a StatefulSet has a host name of its own, below that of the Service. */}}
{{- range $name := .Values.persistence.enabled | ternary (list $service (print "$(POD_NAME)." $service)) (list $service) }}
{{- range $suffix := list "" ".svc" ".svc.cluster.local" }}
{{- if not $suffix }}{{ $hosts = append $hosts $name }}{{ end }}
{{- $hosts = append $hosts (print $name "." $.Release.Namespace $suffix) }}
{{- end }}
{{- end }}
{{- uniq $hosts | toJson }}
{{- end }}

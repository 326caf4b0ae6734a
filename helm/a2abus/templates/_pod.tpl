{{/* The container. The argument is (dict "root" $ "listen" ADDRESS); the HTTP listener gets this address. */}}
{{- define "a2abus.container" -}}
{{- $root := .root }}
{{- $values := $root.Values }}
name: a2abus
image: {{ include "a2abus.image" $root }}
imagePullPolicy: {{ $values.image.pullPolicy }}
args: [serve, --config, /etc/a2abus/a2abus.yaml]
ports:
  {{- if include "a2abus.httpEnabled" $root }}
  - {name: http, containerPort: {{ $values.ports.http }}}
  {{- end }}
  - {name: admin, containerPort: {{ $values.ports.admin }}}
env:
  {{- include "a2abus.environment" . | nindent 2 }}
  {{- with $values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
startupProbe:
  httpGet: {path: /healthz, port: admin}
  {{- toYaml $values.probes.startup | nindent 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  {{- toYaml $values.probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  {{- toYaml $values.probes.readiness | nindent 2 }}
lifecycle:
  preStop: {sleep: {seconds: {{ $values.preStopSeconds }}}}
{{- with $values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml $values.securityContext | nindent 2 }}
volumeMounts:
  - {name: a2abus-config, mountPath: /etc/a2abus, readOnly: true}
  {{- if $values.persistence.enabled }}
  - {name: data, mountPath: /var/lib/a2abus}
  {{- end }}
  {{- range concat $values.secrets $values.externalSecrets $values.csiSecrets }}
  - {name: {{ include "a2abus.volumeName" .name }}, mountPath: /run/secrets/{{ .name }}, readOnly: true}
  {{- end }}
  {{- with $values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The environment variables that the chart sets. The argument is that of `a2abus.container`. */}}
{{- define "a2abus.environment" -}}
{{- $root := .root }}
{{- $values := $root.Values }}
{{- $config := include "a2abus.config" $root | fromJson -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if not (or $config.instance $values.existingConfigMap) }}
# The same for all replicas, so that the `source` of an event does not depend on the replica that reads the message.
- {name: A2ABUS_INSTANCE, value: {{ include "a2abus.fullname" $root }}}
{{- end }}
- {name: A2ABUS_ADMIN__LISTEN, value: "{{ $values.listenAddress }}:{{ $values.ports.admin }}"}
{{- if not $values.existingConfigMap }}
- {name: A2ABUS_ADMIN__ALLOWED_HOSTS, value: {{ include "a2abus.allowedAdminHosts" $root | squote }}}
{{- end }}
{{- if include "a2abus.httpEnabled" $root }}
- {name: A2ABUS_HTTP__LISTEN, value: "{{ .listen }}:{{ $values.ports.http }}"}
{{- if not $values.existingConfigMap }}
- {name: A2ABUS_HTTP__ALLOWED_HOSTS, value: {{ include "a2abus.allowedHosts" $root | squote }}}
{{- end }}
{{- end }}
{{- if not (or (dig "telemetry" "log_format" "" $config) $values.existingConfigMap) }}
- {name: A2ABUS_TELEMETRY__LOG_FORMAT, value: json}
{{- end }}
{{- if $values.persistence.enabled }}
- {name: A2ABUS_WORKFLOWS__DATA_DIRECTORY, value: /var/lib/a2abus/workflows}
{{- if eq "embedded" (dig "state" "log" "" $config) }}
- {name: A2ABUS_STATE__DIRECTORY, value: /var/lib/a2abus}
{{- end }}
# Each pod reads a reply partition of its own.
- name: A2ABUS_CALLS__REPLICA
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
{{- range $name, $transport := $config.transports }}
{{- if eq (toString $transport.type) "kafka" }}
# A pod that restarts keeps its partitions.
- {name: A2ABUS_TRANSPORTS__{{ include "a2abus.envName" $name }}__INSTANCE_ID, value: $(POD_NAME)}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The volumes of the container. */}}
{{- define "a2abus.volumes" -}}
- name: a2abus-config
  configMap: {name: {{ include "a2abus.configMapName" . }}}
{{- range concat .Values.secrets .Values.externalSecrets }}
- name: {{ include "a2abus.volumeName" .name }}
  secret: {secretName: {{ .name }}, defaultMode: 0440}
{{- end }}
{{- range .Values.csiSecrets }}
- name: {{ include "a2abus.volumeName" .name }}
  csi:
    driver: secrets-store.csi.k8s.io
    readOnly: true
    volumeAttributes: {secretProviderClass: {{ .secretProviderClass }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The annotations of the pod. The checksum replaces the pods when a change of the configuration needs a restart. */}}
{{- define "a2abus.annotations" -}}
{{- if .Values.restartOnConfigChange -}}
checksum/config: {{ include "a2abus.staticConfig" . | sha256sum }}
{{- end }}
{{- end }}

{{/* The annotations of the pods of the Deployment or StatefulSet. */}}
{{- define "a2abus.podAnnotations" -}}
kubectl.kubernetes.io/default-container: a2abus
{{- with include "a2abus.annotations" . }}
{{ . }}
{{- end }}
{{- end }}

{{/* The pod template of the Deployment or StatefulSet. */}}
{{- define "a2abus.podTemplate" -}}
metadata:
  labels:
    {{- include "a2abus.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- include "a2abus.podAnnotations" . | nindent 4 }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "a2abus.serviceAccountName" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "a2abus.gracePeriod" . }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  containers:
    - {{ include "a2abus.container" (dict "root" . "listen" .Values.listenAddress) | nindent 6 | trim }}
  volumes:
    {{- include "a2abus.volumes" . | trim | nindent 4 }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "a2abus.selectorLabels" $ | nindent 10 }}
    {{- end }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
{{- end }}

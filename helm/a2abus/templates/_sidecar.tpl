{{/*
For the chart of an agent, which has this one as a dependency with `mode: sidecar`, in its pod template:

  metadata:
    annotations:
      {{- include "a2abus.annotations" .Subcharts.a2abus | nindent 6 }}
  spec:
    terminationGracePeriodSeconds: {{ include "a2abus.gracePeriod" .Subcharts.a2abus }}
    initContainers:
      - {{ include "a2abus.sidecar" .Subcharts.a2abus | nindent 8 | trim }}
    volumes:
      {{- include "a2abus.volumes" .Subcharts.a2abus | trim | nindent 6 }}

An init container that always restarts starts before the agent and stops after it. Only the agent beside it can call:
it listens on the pod's loopback address.
*/}}
{{- define "a2abus.sidecar" -}}
{{- include "a2abus.container" (dict "root" . "listen" "127.0.0.1") }}
restartPolicy: Always
{{- end }}

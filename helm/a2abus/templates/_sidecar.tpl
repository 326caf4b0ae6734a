{{/*
The sidecar. The chart of an agent has this chart as a dependency with `mode: sidecar`, and includes in its pod template:

  metadata:
    annotations:
      {{- include "a2abus.annotations" .Subcharts.a2abus | nindent 6 }}
  spec:
    terminationGracePeriodSeconds: {{ include "a2abus.gracePeriod" .Subcharts.a2abus }}
    initContainers:
      - {{ include "a2abus.sidecar" .Subcharts.a2abus | nindent 8 | trim }}
    volumes:
      {{- include "a2abus.volumes" .Subcharts.a2abus | trim | nindent 6 }}

As an init container with `restartPolicy: Always`, it starts before the agent and stops after it. It listens on the loopback
address of the pod, so only the containers of the pod can call it.
*/}}
{{- define "a2abus.sidecar" -}}
{{- include "a2abus.container" (dict "root" . "listen" "127.0.0.1") }}
restartPolicy: Always
{{- end }}

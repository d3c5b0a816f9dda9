{{/* Names, labels and what all pods share. */}}
{{- define "trainyard.name" -}}
{{- if contains "trainyard" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-trainyard" (.Release.Name | trunc 30 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "trainyard.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "trainyard.name" .) }}
{{- end }}

{{- define "trainyard.selector" -}}
app.kubernetes.io/name: trainyard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trainyard.labels" -}}
{{ include "trainyard.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "trainyard.image" -}}
{{- if .Values.image.digest }}{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}{{ else }}{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}{{ end }}
{{- end }}

{{/* Metadata of a pod. Takes a list: the root, the component. */}}
{{- define "trainyard.podMeta" -}}
{{- $root := index . 0 }}
labels:
  {{- include "trainyard.labels" $root | nindent 2 }}
  app.kubernetes.io/component: {{ index . 1 }}
  {{- with $root.Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with $root.Values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What the `restricted` pod security standard asks of a pod. */}}
{{- define "trainyard.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "trainyard.podCommon" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
enableServiceLinks: false
securityContext: {{- include "trainyard.podSecurity" . | nindent 2 }}
{{- end }}

{{/* One container. Takes a list: the root, the part, its resources, whether it has the log store. */}}
{{- define "trainyard.container" -}}
{{- $root := index . 0 }}
name: {{ index . 1 }}
image: {{ include "trainyard.image" $root | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
command: [python, -m, controlplane.supervisor.component]
args: [{{ index . 1 }}]
env: {{- include "trainyard.env" $root | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{- toYaml (index . 2) | nindent 2 }}
volumeMounts:
  - {name: state, mountPath: /var/lib/trainyard}
  - {name: tmp, mountPath: /tmp}
  {{- if index . 3 }}
  - {name: logs, mountPath: /var/lib/trainyard/logs}
  {{- end }}
  {{- with $root.Values.extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}

{{/* Volumes. Takes a list: the root, whether it has the log store. */}}
{{- define "trainyard.volumes" -}}
{{- $root := index . 0 }}
- name: state
  emptyDir: {sizeLimit: 1Gi}
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- if index . 1 }}
- name: logs
  persistentVolumeClaim:
    claimName: {{ $root.Values.logs.existingClaim | default (printf "%s-logs" (include "trainyard.name" $root)) }}
{{- end }}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "trainyard.secretEnv" -}}
- name: {{ index . 1 }}
  valueFrom: {secretKeyRef: {name: {{ (index . 0).Values.existingSecret }}, key: {{ index . 2 }}{{ if index . 3 }}, optional: true{{ end }}}}
{{- end }}

{{- define "trainyard.env" -}}
{{ include "trainyard.secretEnv" (list . "DATABASE_URL" "database-url" false) }}
{{ include "trainyard.secretEnv" (list . "TRAINYARD_REDIS_URL" "redis-url" false) }}
{{ include "trainyard.secretEnv" (list . "TRAINYARD_SECRET_KEY" "secret-key" false) }}
{{ include "trainyard.secretEnv" (list . "TRAINYARD_SECRET_KEY_FALLBACKS" "secret-key-fallbacks" true) }}
{{ include "trainyard.secretEnv" (list . "TRAINYARD_BOOTSTRAP_TOKEN" "bootstrap-token" true) }}
{{ include "trainyard.secretEnv" (list . "TRAINYARD_METRICS_TOKEN" "metrics-token" true) }}
- {name: TRAINYARD_STATE_DIR, value: /var/lib/trainyard}
- {name: TRAINYARD_HOST, value: 0.0.0.0}
- {name: TRAINYARD_PORT, value: "8000"}
{{- /* the ingress speaks for every user from a few addresses */}}
- {name: TRAINYARD_CONNECTIONS_PER_ADDRESS, value: "0"}
{{- with .Values.trustedProxies }}
- {name: TRAINYARD_TRUSTED_PROXIES, value: {{ join "," . | quote }}}
{{- end }}
- {name: TRAINYARD_PUBLIC_URL, value: {{ required "publicUrl: give the address that people use, like https://yard.example.org" .Values.publicUrl | quote }}}
{{- with .Values.servicesHost }}
- {name: TRAINYARD_SERVICES_HOST, value: {{ . | quote }}}
{{- end }}
- {name: TRAINYARD_ALLOW_REMOTE, value: {{ ternary "yes" "no" .Values.allowPlainHttp | quote }}}
{{- $service := printf "%s-web" (include "trainyard.name" .) }}
- {name: TRAINYARD_ALLOWED_HOSTS, value: {{ join "," (concat (list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace)) .Values.allowedHosts) | quote }}}
- {name: TRAINYARD_LOG_LEVEL, value: {{ .Values.logLevel }}}
{{- if .Values.cluster.attach }}
- {name: TRAINYARD_CLUSTERS, value: "kubernetes:in-cluster"}
{{- $settings := merge (deepCopy .Values.cluster.settings) (dict "control_namespace" .Release.Namespace) }}
- {name: TRAINYARD_KUBERNETES, value: {{ dict "scheduler" .Values.cluster.scheduler "settings" $settings | toJson | quote }}}
{{- else }}
- {name: TRAINYARD_CLUSTERS, value: ";"}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* ReadWriteOnce binds the log store to one node, and so those who share it. Takes a list: the root. */}}
{{- define "trainyard.affinity" -}}
{{- if ne .Values.logs.accessMode "ReadWriteMany" }}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "trainyard.selector" . | nindent 12 }}
          matchExpressions: [{key: app.kubernetes.io/component, operator: In, values: [web, worker]}]
{{- end }}
{{- end }}

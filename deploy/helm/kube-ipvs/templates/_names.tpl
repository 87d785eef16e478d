{{/*
Labels by which the DaemonSet selects its pods. They can never change, so release and version are not among them.
kustomize's base has the same.
*/}}
{{- define "kube-ipvs.selectorLabels" -}}
app.kubernetes.io/name: kube-ipvs
{{- end }}

{{/* Labels of pods, without the version: a new version of the chart alone must not restart them. */}}
{{- define "kube-ipvs.podLabels" -}}
{{ include "kube-ipvs.selectorLabels" . }}
app.kubernetes.io/component: service-proxy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: kube-ipvs
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "kube-ipvs.labels" -}}
{{ include "kube-ipvs.podLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The service account. */}}
{{- define "kube-ipvs.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default "kube-ipvs" }}
{{- else }}
{{- required "serviceAccount.name is missing: set the name of the existing account, or serviceAccount.create true" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The configuration file: two documents. Values cannot change the path of the kubeconfig. */}}
{{- define "kube-ipvs.config" -}}
{{- $ours := dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration" }}
{{- $_ := set $ours "clientConnection" (dict "kubeconfig" "/etc/kube-ipvs/kubeconfig.yaml") }}
{{- mergeOverwrite (deepCopy .Values.kubeProxyConfiguration) $ours | toYaml }}
---
{{ $ours := dict "apiVersion" "kube-ipvs.io/v1alpha1" "kind" "KubeIpvsConfiguration" }}
{{- mergeOverwrite (deepCopy .Values.kubeIpvsConfiguration) $ours | toYaml }}
{{- end }}

{{/* A kubeconfig for the pod's service account, or that of the values. */}}
{{- define "kube-ipvs.kubeconfig" -}}
{{- if .Values.kubeconfig }}
{{- if .Values.apiServer }}
{{- fail "kubeconfig names the API server: leave apiServer out (apiServer: \"\")" }}
{{- end }}
{{- .Values.kubeconfig }}
{{- else -}}
apiVersion: v1
kind: Config
clusters:
  - name: cluster
    cluster:
      certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
      server: {{ required "apiServer is missing: set the URL of the API server as nodes reach it, such as https://192.0.2.10:6443, not that of the Service kubernetes" .Values.apiServer }}
users:
  - name: kube-ipvs
    user:
      tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
contexts:
  - name: kube-ipvs
    context:
      cluster: cluster
      user: kube-ipvs
current-context: kube-ipvs
{{- end }}
{{- end }}

{{/* The content of the ConfigMap. */}}
{{- define "kube-ipvs.data" -}}
config.yaml: |
  {{- include "kube-ipvs.config" . | nindent 2 }}
kubeconfig.yaml: |
  {{- include "kube-ipvs.kubeconfig" . | nindent 2 }}
{{- end }}

{{/*
The name of the ConfigMap, with a hash of the content: a change of the configuration is then a rolling
update. Under a constant name it would be a restart on all nodes at once, because kube-ipvs exits when its
file changes.
*/}}
{{- define "kube-ipvs.configMapName" -}}
kube-ipvs-{{ include "kube-ipvs.data" . | sha256sum | trunc 10 }}
{{- end }}

{{/* The port of an address, or a default. A dict with address and default. */}}
{{- define "kube-ipvs.port" -}}
{{- $address := .address | default "" }}
{{- if regexMatch "^(\\[.*\\]|[^:]*):[0-9]+$" $address }}
{{- regexFind "[0-9]+$" $address }}
{{- else }}
{{- .default }}
{{- end }}
{{- end }}

{{/* The port of the health server, which the kubelet must reach at the node's address. */}}
{{- define "kube-ipvs.healthPort" -}}
{{- $address := .Values.kubeProxyConfiguration.healthzBindAddress | default "" }}
{{- if regexMatch "^(127\\.|\\[?::1)" $address }}
{{- fail (printf "kubeProxyConfiguration.healthzBindAddress is %s, which the kubelet's probes do not reach: set 0.0.0.0:10256, or leave it out" $address) }}
{{- end }}
{{- include "kube-ipvs.port" (dict "address" $address "default" 10256) }}
{{- end }}

{{/* The port of the metrics server. */}}
{{- define "kube-ipvs.metricsPort" -}}
{{- include "kube-ipvs.port" (dict "address" .Values.kubeProxyConfiguration.metricsBindAddress "default" 10249) }}
{{- end }}

{{/* The image: a digest replaces the tag. */}}
{{- define "kube-ipvs.image" -}}
{{- $repository := required "image.repository is missing: set the name of the image in your registry, such as registry.example/kube-ipvs" .Values.image.repository }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

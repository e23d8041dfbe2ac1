{{- define "meridian.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Names of pods are names of nodes, so they stay short enough for a label of the DNS with a suffix. */ -}}
{{- define "meridian.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "meridian.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "meridian.selector" -}}
app.kubernetes.io/name: {{ include "meridian.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "meridian.labels" -}}
{{ include "meridian.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Metadata of an object: dict root, name, namespace, component, labels, annotations. */ -}}
{{- define "meridian.metadata" -}}
name: {{ .name }}
namespace: {{ .namespace | default .root.Release.Namespace }}
labels:
  {{- include "meridian.labels" .root | nindent 2 }}
  {{- with .component }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "meridian.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "meridian.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "meridian.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "meridian.headless" -}}
{{ include "meridian.fullname" .root }}-{{ .part }}s
{{- end -}}

{{- define "meridian.clusterSecretName" -}}
{{- .Values.cluster.existingSecret | default (printf "%s-cluster" (include "meridian.fullname" .)) -}}
{{- end -}}

{{- define "meridian.apiKeySecretName" -}}
{{- .Values.apiKey.existingSecret | default (printf "%s-api-key" (include "meridian.fullname" .)) -}}
{{- end -}}

{{- define "meridian.clusterTlsSecretName" -}}
{{- .Values.cluster.tls.secretName | default (printf "%s-cluster-tls" (include "meridian.fullname" .)) -}}
{{- end -}}

{{- define "meridian.tlsSecretName" -}}
{{- .Values.tls.secretName | default (printf "%s-tls" (include "meridian.fullname" .)) -}}
{{- end -}}

{{- /* Arguments of `meridian ctl` that wait until a node is ready: dict root, time. The Service for HTTP may be off. */ -}}
{{- define "meridian.waitArguments" -}}
{{- $values := .root.Values -}}
{{- $headless := include "meridian.headless" (dict "root" .root "part" "core") -}}
{{- $host := ternary (printf "%s-http" (include "meridian.fullname" .root)) $headless $values.services.dashboard.enabled -}}
[ctl, --url, "{{ ternary "https" "http" $values.http.tls }}://{{ $host }}:{{ int $values.http.port }}"{{ if $values.http.tls }}, --insecure{{ end }}, health, --wait, {{ .time }}]
{{- end -}}

{{- /* Whether pods mount the certificate for clients: "true" or nothing. */ -}}
{{- define "meridian.usesTls" -}}
{{- $uses := .Values.http.tls -}}
{{- range .Values.listeners -}}{{- if and .enabled .tls -}}{{- $uses = true -}}{{- end -}}{{- end -}}
{{- if $uses }}true{{ end -}}
{{- end -}}

{{- /*
Number of cores that a new cluster waits for. Any two groups of so many cores have a core in common, so two clusters never
begin. Scaling from 3 to 5 does not change it, so it restarts no pod.
*/ -}}
{{- define "meridian.expect" -}}
{{- $cores := int .Values.cores.replicas -}}
{{- if .Values.cluster.expect -}}
{{- int .Values.cluster.expect -}}
{{- else if le $cores 3 -}}
{{- $cores -}}
{{- else -}}
{{- add1 (div $cores 2) -}}
{{- end -}}
{{- end -}}

{{- /* Refuses values that cannot work. */ -}}
{{- define "meridian.check" -}}
{{- $cores := int .Values.cores.replicas -}}
{{- $own := dict "node" (list "name" "data_dir" "drain_max") "http" (list "listen" "tls_certificate" "tls_key" "plain_text_allowed") -}}
{{- $_ := set $own "cluster" (list "id" "listen" "advertise" "join" "expect" "role" "region" "secret_file" "tls_certificate" "tls_key" "tls_ca") -}}
{{- range $section, $keys := $own -}}
{{- range $config := list $.Values.config $.Values.cores.config $.Values.replicants.config -}}
{{- range $keys -}}
{{- if hasKey (get $config $section | default dict) . -}}
{{- fail (printf "config.%s.%s is set by the chart: use the values `cluster`, `http`, `drainSeconds` and `bindAddress`" $section .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.cluster.secret (lt (len .Values.cluster.secret) 16) -}}
{{- fail "cluster.secret needs 16 characters or more" -}}
{{- end -}}
{{- if and (include "meridian.usesTls" .) (not .Values.tls.secretName) (not .Values.tls.certManager.enabled) -}}
{{- fail "a listener or the HTTP port has TLS: set tls.secretName, or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .Values.cluster.tls.enabled (not .Values.cluster.tls.secretName) (not .Values.cluster.tls.certManager) -}}
{{- fail "cluster.tls.enabled needs cluster.tls.secretName, or cluster.tls.certManager" -}}
{{- end -}}
{{- if and (or .Values.tls.certManager.enabled .Values.cluster.tls.certManager) (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "certificates by cert-manager need tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.serviceMonitor.tokenSecret.name) -}}
{{- fail "serviceMonitor needs tokenSecret.name: a Secret with the token of `meridian ctl keys add prometheus --role viewer`" -}}
{{- end -}}
{{- if not .Values.services.dashboard.enabled -}}
{{- range $name, $uses := dict "serviceMonitor.enabled" .Values.serviceMonitor.enabled "ingress.dashboard.enabled" .Values.ingress.dashboard.enabled -}}
{{- if $uses -}}
{{- fail (printf "%s needs the Service for HTTP: set services.dashboard.enabled=true" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.ingress.websocket -}}
{{- if .enabled -}}
{{- $listener := get $.Values.listeners .listener | default dict -}}
{{- $client := $.Values.services.client -}}
{{- if not (and $listener.enabled $client.enabled (has .listener $client.listeners)) -}}
{{- fail (printf "ingress.websocket needs listeners.%s.enabled=true, and services.client with this listener" .listener) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* Two cores that go at once may have two of the three replicas of a shard. */ -}}
{{- $name := printf "%s-core" (include "meridian.fullname" .) -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- $now := int .spec.replicas -}}
{{- if gt (sub $now $cores) 1 -}}
{{- fail (printf "cores.replicas goes from %d to %d: remove one core at a time, as docs/kubernetes.md describes" $now $cores) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Environment of a node: dict root, part. It overrides the configuration file. */ -}}
{{- define "meridian.env" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $domain := printf "%s.svc.%s" $root.Release.Namespace $values.clusterDomain -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: MERIDIAN__NODE__NAME
  value: $(POD_NAME)
- name: MERIDIAN__NODE__DRAIN_MAX
  value: {{ printf "%ds" (int $values.drainSeconds) | quote }}
- name: MERIDIAN__CLUSTER__ID
  value: {{ $values.cluster.id | quote }}
- name: MERIDIAN__CLUSTER__ROLE
  value: {{ .part }}
{{- with $values.cluster.region }}
- name: MERIDIAN__CLUSTER__REGION
  value: {{ . | quote }}
{{- end }}
- name: MERIDIAN__CLUSTER__LISTEN
  value: {{ printf "%s:%d" $values.bindAddress (int $values.cluster.port) | quote }}
- name: MERIDIAN__CLUSTER__ADVERTISE
  value: "$(POD_NAME).{{ include "meridian.headless" . }}.{{ $domain }}:{{ int $values.cluster.port }}"
- name: MERIDIAN__CLUSTER__JOIN
  value: "{{ include "meridian.headless" (dict "root" $root "part" "core") }}.{{ $domain }}:{{ int $values.cluster.port }}"
{{- if eq .part "core" }}
- name: MERIDIAN__CLUSTER__EXPECT
  value: {{ include "meridian.expect" $root | quote }}
{{- end }}
- name: MERIDIAN__CLUSTER__SECRET_FILE
  value: /etc/meridian/cluster/cluster.secret
{{- if $values.cluster.tls.enabled }}
- name: MERIDIAN__CLUSTER__TLS_CERTIFICATE
  value: /etc/meridian/cluster-tls/tls.crt
- name: MERIDIAN__CLUSTER__TLS_KEY
  value: /etc/meridian/cluster-tls/tls.key
- name: MERIDIAN__CLUSTER__TLS_CA
  value: /etc/meridian/cluster-tls/ca.crt
{{- end }}
- name: MERIDIAN__HTTP__LISTEN
  value: {{ printf "%s:%d" $values.bindAddress (int $values.http.port) | quote }}
{{- if $values.http.tls }}
- name: MERIDIAN__HTTP__TLS_CERTIFICATE
  value: /etc/meridian/tls/tls.crt
- name: MERIDIAN__HTTP__TLS_KEY
  value: /etc/meridian/tls/tls.key
{{- else }}
- name: MERIDIAN__HTTP__PLAIN_TEXT_ALLOWED
  value: "true"
{{- end }}
- name: MERIDIAN_URL
  value: {{ printf "%s://127.0.0.1:%d" (ternary "https" "http" $values.http.tls) (int $values.http.port) }}
- name: MERIDIAN_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "meridian.apiKeySecretName" $root }}, key: token}}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "meridian.probe" -}}
httpGet:
  path: {{ .probe.path }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" .root.Values.http.tls }}
{{- with omit .probe "path" }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Pod of a role: dict root, part. */ -}}
{{- define "meridian.pod" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $part := get $values (printf "%ss" .part) -}}
metadata:
  labels:
    {{- include "meridian.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .part }}
    meridian/node: "true"
    {{- with $part.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- if $values.restartOnConfigChange }}
    checksum/config: {{ printf "%s%s" (include "meridian.config" .) $values.auth.rules | sha256sum }}
    {{- end }}
    kubectl.kubernetes.io/default-container: meridian
    {{- with merge (dict) $part.podAnnotations $values.commonAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "meridian.serviceAccountName" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # A stopping node passes its clients to other nodes first.
  terminationGracePeriodSeconds: {{ add (int $values.drainSeconds) 30 }}
  securityContext:
    {{- toYaml $values.podSecurityContext | nindent 4 }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- range $key := list "priorityClassName" "nodeSelector" "tolerations" "affinity" }}
  {{- with get $part $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- range $key := list "schedulerName" "runtimeClassName" "dnsPolicy" "dnsConfig" "hostAliases" }}
  {{- with get $values $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- $selector := dict "matchLabels" (merge (dict "app.kubernetes.io/component" .part) (include "meridian.selector" $root | fromYaml)) }}
  {{- $constraints := $part.topologySpreadConstraints }}
  {{- if kindIs "invalid" $constraints }}
  {{- $constraints = list }}
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  {{- $constraints = append $constraints (dict "maxSkew" 1 "topologyKey" $key "whenUnsatisfiable" "ScheduleAnyway") }}
  {{- end }}
  {{- end }}
  {{- with $constraints }}
  topologySpreadConstraints:
    {{- range . }}
    - {{ toYaml (merge (dict) . (dict "labelSelector" $selector)) | nindent 6 | trim }}
    {{- end }}
  {{- end }}
  initContainers:
    # Makes the first API key, unless it exists. Its token comes from the Secret, and is not printed.
    - name: api-key
      image: {{ include "meridian.image" $root }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: [key, add, {{ $values.apiKey.name }}, --role, admin, --token-file, /etc/meridian/api-key/token, --if-absent, --data-dir, /data/node]
      securityContext:
        {{- toYaml $values.securityContext | nindent 8 }}
      resources:
        requests: {cpu: 10m, memory: 32Mi}
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: api-key, mountPath: /etc/meridian/api-key, readOnly: true}
    {{- with $values.initContainers }}
    {{- tpl (toYaml .) $root | nindent 4 }}
    {{- end }}
  containers:
    - name: meridian
      image: {{ include "meridian.image" $root }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args:
        - start
        - --config
        - /etc/meridian/config/meridian.toml
        - --data-dir
        - /data/node
        {{- range $values.extraArgs }}
        - {{ include "meridian.argument" . }}
        {{- end }}
      env:
        {{- include "meridian.env" . | nindent 8 }}
      {{- with $values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        {{- range $name, $listener := $values.listeners }}
        {{- if $listener.enabled }}
        - {name: {{ $name }}, containerPort: {{ int $listener.port }}}
        {{- end }}
        {{- end }}
        - {name: http, containerPort: {{ int $values.http.port }}}
        - {name: cluster, containerPort: {{ int $values.cluster.port }}}
      {{- range $kind := list "startup" "readiness" "liveness" }}
      {{- with get $values.probes $kind }}
      {{ $kind }}Probe:
        {{- include "meridian.probe" (dict "root" $root "probe" .) | nindent 8 }}
      {{- end }}
      {{- end }}
      {{- with $values.lifecycle }}
      lifecycle:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml $values.securityContext | nindent 8 }}
      {{- with $part.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: data, mountPath: /data}
        - {name: config, mountPath: /etc/meridian/config, readOnly: true}
        - {name: cluster, mountPath: /etc/meridian/cluster, readOnly: true}
        {{- if $values.cluster.tls.enabled }}
        - {name: cluster-tls, mountPath: /etc/meridian/cluster-tls, readOnly: true}
        {{- end }}
        {{- if include "meridian.usesTls" $root }}
        - {name: tls, mountPath: /etc/meridian/tls, readOnly: true}
        {{- end }}
        {{- if $values.auth.passwordSecret }}
        - {name: passwords, mountPath: /etc/meridian/passwords, readOnly: true}
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $values.sidecars }}
    {{- tpl (toYaml .) $root | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "meridian.fullname" $root }}-{{ .part }}}
    - name: cluster
      secret:
        secretName: {{ include "meridian.clusterSecretName" $root }}
        defaultMode: 0440
        items: [{key: cluster.secret, path: cluster.secret}]
    - name: api-key
      secret:
        secretName: {{ include "meridian.apiKeySecretName" $root }}
        defaultMode: 0440
        items: [{key: token, path: token}]
    {{- if $values.cluster.tls.enabled }}
    - name: cluster-tls
      secret: {secretName: {{ include "meridian.clusterTlsSecretName" $root }}, defaultMode: 0440}
    {{- end }}
    {{- if include "meridian.usesTls" $root }}
    - name: tls
      secret: {secretName: {{ include "meridian.tlsSecretName" $root }}, defaultMode: 0440}
    {{- end }}
    {{- with $values.auth.passwordSecret }}
    - name: passwords
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- if not $part.persistence.enabled }}
    - name: data
      emptyDir:
        {{- with $part.persistence.emptyDirSizeLimit }}
        sizeLimit: {{ . }}
        {{- else }} {}
        {{- end }}
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- /* StatefulSet of a role: dict root, part. */ -}}
{{- define "meridian.statefulset" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $part := get $values (printf "%ss" .part) -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  {{- include "meridian.metadata" (dict "root" $root "name" (printf "%s-%s" (include "meridian.fullname" $root) .part) "component" .part) | nindent 2 }}
spec:
  serviceName: {{ include "meridian.headless" . }}
  {{- if not (dig "autoscaling" "enabled" false $part) }}
  replicas: {{ int $part.replicas }}
  {{- end }}
  # Cores wait for each other, so they start at the same time.
  podManagementPolicy: Parallel
  minReadySeconds: {{ int $part.minReadySeconds }}
  updateStrategy:
    {{- toYaml $part.updateStrategy | nindent 4 }}
  selector:
    matchLabels:
      {{- include "meridian.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .part }}
  template:
    {{- include "meridian.pod" . | nindent 4 }}
  {{- if $part.persistence.enabled }}
  persistentVolumeClaimRetentionPolicy:
    whenDeleted: {{ $part.persistence.whenDeleted }}
    whenScaled: {{ $part.persistence.whenScaled }}
  volumeClaimTemplates:
    - apiVersion: v1
      kind: PersistentVolumeClaim
      metadata:
        name: data
        {{- with $part.persistence.annotations }}
        annotations:
          {{- toYaml . | nindent 10 }}
        {{- end }}
      spec:
        accessModes: {{ toJson $part.persistence.accessModes }}
        {{- with $part.persistence.storageClass }}
        storageClassName: {{ ternary "" . (eq . "-") | quote }}
        {{- end }}
        resources:
          requests:
            storage: {{ $part.persistence.size }}
  {{- end }}
{{- end -}}

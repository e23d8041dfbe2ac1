{{- /* An argument of a command, which may be a number in a file of values. */ -}}
{{- define "meridian.argument" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . | toString | quote -}}
{{- else -}}
{{- toString . | quote -}}
{{- end -}}
{{- end -}}

{{- /* A value in TOML. Helm reads whole numbers of a file of values as floating point numbers. */ -}}
{{- define "meridian.toml.value" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else if kindIs "slice" . -}}
[{{ range $at, $item := . }}{{ if $at }}, {{ end }}{{ include "meridian.toml.value" $item }}{{ end }}]
{{- else if kindIs "map" . -}}
{ {{- range $at, $key := keys . | sortAlpha }}{{ if $at }},{{ end }} {{ $key | quote }} = {{ include "meridian.toml.value" (get $ $key) }}{{ end }} }
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end -}}

{{- /* The keys of a table that are not tables themselves. Null removes a setting. */ -}}
{{- define "meridian.toml.keys" -}}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "meridian.toml.value" $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "meridian.toml" -}}
{{- range $section, $settings := . }}
{{- if kindIs "slice" $settings }}
{{- range $settings }}

[[{{ $section }}]]
{{- include "meridian.toml.keys" . }}
{{- end }}
{{- else if $settings }}

[{{ $section }}]
{{- include "meridian.toml.keys" $settings }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Configuration file of a role: dict root, part. Settings that differ by pod are in its environment. */ -}}
{{- define "meridian.config" -}}
{{- $values := .root.Values -}}
{{- if $values.configFile -}}
{{ $values.configFile }}
{{- else -}}
{{- $auth := dict -}}
{{- if $values.auth.open -}}
{{- $auth = dict "allow_anonymous" true "no_match" "allow" -}}
{{- else -}}
{{- if $values.auth.passwordSecret -}}
{{- $auth = dict "password_file" "/etc/meridian/passwords/passwords" -}}
{{- else if not (or $values.config.jwt $values.config.http_auth) -}}
{{- $auth = dict "chain" "users" -}}
{{- end -}}
{{- if $values.auth.rules -}}
{{- $_ := set $auth "rules_file" "/etc/meridian/config/access.rules" -}}
{{- else -}}
{{- $_ := set $auth "sources" "database" -}}
{{- end -}}
{{- end -}}
{{- $base := dict "auth" $auth "log" (dict "format" "json") -}}
{{- $part := get $values (printf "%ss" .part) -}}
{{- if not $part.persistence.enabled -}}
{{- $_ := set $base "storage" (dict "disk_max" "2GiB") -}}
{{- end -}}
{{- $all := mergeOverwrite $base (deepCopy $values.config) (deepCopy $part.config) -}}
{{- $listeners := list -}}
{{- range $name := keys $values.listeners | sortAlpha -}}
{{- with get $values.listeners $name -}}
{{- if .enabled -}}
{{- $listener := dict "name" $name "address" (printf "%s:%d" $values.bindAddress (int .port)) -}}
{{- if .tls -}}
{{- $_ := set $listener "tls_certificate" "/etc/meridian/tls/tls.crt" -}}
{{- $_ := set $listener "tls_key" "/etc/meridian/tls/tls.key" -}}
{{- end -}}
{{- $listeners = append $listeners (mergeOverwrite $listener (deepCopy (.settings | default dict))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $listeners -}}
{{- $_ := set $all "listener" (concat $listeners ($all.listener | default list)) -}}
{{- end -}}
{{- include "meridian.toml" $all | trim -}}
{{- end -}}
{{- end -}}

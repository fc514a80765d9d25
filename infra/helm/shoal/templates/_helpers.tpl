{{/* Names, labels and the parts that every pod has. */}}

{{/* Services begin with it, whose names are stricter than those of releases; -valkey and what a StatefulSet adds follow. */}}
{{- define "shoal.name" -}}
{{- $name := default .Chart.Name .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]{0,43}[a-z0-9])?$" $name) -}}
{{- fail (printf "services of the release %q would be called %s-…: that has to begin with a letter, to have no dot, and %d characters at most; call the release otherwise" .Release.Name $name 45) -}}
{{- end -}}
{{ $name }}
{{- end -}}

{{/* (list $root "worker-cpu") */}}
{{- define "shoal.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "shoal.labels" -}}
{{- $root := index . 0 -}}
{{ include "shoal.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: shoal
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end -}}

{{/* (list $root "cpu") */}}
{{- define "shoal.image" -}}
{{- $root := index . 0 -}}
{{ $root.Values.image.repository }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}-{{ index . 1 }}
{{- end -}}

{{- define "shoal.queueUrl" -}}
{{- $root := index . 0 -}}
{{- $user := index $root.Values.queue.users (index . 1) -}}
{{- $own := printf "redis://{user}@%s-valkey:6379" (include "shoal.name" $root) -}}
{{- if and (not $root.Values.queue.url) (not $root.Values.valkey.enabled) -}}
{{- fail "queue.url is empty and valkey.enabled is false: name the queue server (redis://{user}@host:6379), or enable valkey" -}}
{{- end -}}
{{- if and $root.Values.queue.url $root.Values.valkey.enabled -}}
{{- fail "queue.url names a queue server and valkey.enabled makes another: leave one of them out" -}}
{{- end -}}
{{ default $own $root.Values.queue.url | replace "{user}" $user }}
{{- end -}}

{{/* A setting's variable: maxPaddedTokens is SHOAL_MAX_PADDED_TOKENS. */}}
{{- define "shoal.variable" -}}
SHOAL_{{ regexReplaceAll "([A-Z])" . "_${1}" | upper }}
{{- end -}}

{{/* A value as a variable has it; numbers are floating ones here, and 1000000 would be 1e+06. */}}
{{- define "shoal.value" -}}
{{ if kindIs "float64" . }}{{ if eq (floor .) . }}{{ int64 . | quote }}{{ else }}{{ . | quote }}{{ end }}{{ else }}{{ . | toString | quote }}{{ end }}
{{- end -}}

{{/* (list $settings...): later ones beat earlier ones, 0 and "" too, which `merge` takes for nothing; sorted by key. */}}
{{- define "shoal.settings" -}}
{{- $all := dict -}}
{{- range . }}{{ range $key, $value := default dict . }}{{ $_ := set $all $key $value }}{{ end }}{{ end -}}
{{- range $key, $value := $all }}
{{- if kindIs "bool" $value }}{{ fail (printf "settings: %s is %v, which YAML makes of yes, no, on and off: put the word into quotes" $key $value) }}{{ end }}
- name: {{ include "shoal.variable" $key }}
  value: {{ include "shoal.value" $value }}
{{- end }}
{{- end -}}

{{/* (list $root "worker"): where the queue server is and who we are there. */}}
{{- define "shoal.queueEnv" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
- name: SHOAL_REDIS_URL
  value: {{ include "shoal.queueUrl" . | quote }}
{{- if $root.Values.queue.secret }}
- name: SHOAL_REDIS_PASSWORD_FILE
  value: /etc/shoal/queue/{{ index $root.Values.queue.users $role }}.password
{{- end }}
{{- with $root.Values.queue.tls }}
{{- if .secret }}
- name: SHOAL_REDIS_CA
  value: /etc/shoal/tls/ca.pem
{{- if .clientCertificate }}
- name: SHOAL_REDIS_CERT
  value: /etc/shoal/tls/client.pem
- name: SHOAL_REDIS_KEY
  value: /etc/shoal/tls/client.key
{{- end }}
{{- end }}
{{- if .serverName }}
- name: SHOAL_REDIS_SERVER_NAME
  value: {{ .serverName | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* (list $settings...): whether a process with these settings sends spans: "otlp", or nothing. */}}
{{- define "shoal.traces" -}}
{{- $traces := "off" -}}
{{- range . }}{{ $traces = default $traces (default dict .).traces }}{{ end -}}
{{- if eq $traces "otlp" }}otlp{{ end -}}
{{- end -}}

{{/* Whether anybody does; otel would be in vain otherwise. */}}
{{- define "shoal.tracesAnywhere" -}}
{{- $on := include "shoal.traces" (list .Values.settings .Values.http.settings) -}}
{{- range .Values.workers }}{{ $on = default $on (include "shoal.traces" (list $.Values.settings .settings)) }}{{ end -}}
{{- if and (not $on) (or .Values.otel.environment .Values.otel.headersSecret .Values.otel.tls.secret) -}}
{{- fail "otel is set, and nobody sends spans: set settings.traces to otlp, or leave otel out" -}}
{{- end -}}
{{ $on }}
{{- end -}}

{{/* Variables of OpenTelemetry, and what their secrets bring. */}}
{{- define "shoal.otelEnv" -}}
{{- range $name, $value := .Values.otel.environment }}
- name: {{ $name }}
  value: {{ include "shoal.value" $value }}
{{- end }}
{{- with .Values.otel.headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: { secretKeyRef: { name: {{ . }}, key: headers } }
{{- end }}
{{- with .Values.otel.tls }}
{{- if .secret }}
- name: OTEL_EXPORTER_OTLP_CERTIFICATE
  value: /etc/shoal/otel/ca.pem
{{- if .clientCertificate }}
- name: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE
  value: /etc/shoal/otel/client.pem
- name: OTEL_EXPORTER_OTLP_CLIENT_KEY
  value: /etc/shoal/otel/client.key
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* (list $settings...): whether a process with these settings has a bucket: "s3", or nothing. */}}
{{- define "shoal.bucket" -}}
{{- $found := "" -}}
{{- range . }}
{{- $payloads := default "" (default dict .).payloadServers -}}
{{- $batches := default "" (default dict .).batchDir -}}
{{- $parts := default "" (default dict .).partFolders -}}
{{- if or (contains "s3://" $payloads) (contains "s3://" $parts) (hasPrefix "s3://" $batches) }}{{ $found = "s3" }}{{ end -}}
{{- end -}}
{{ $found }}
{{- end -}}

{{/* Whether anybody has one; s3 would be in vain otherwise. */}}
{{- define "shoal.bucketAnywhere" -}}
{{- $on := include "shoal.bucket" (list .Values.settings .Values.http.settings) -}}
{{- range .Values.workers }}{{ $on = default $on (include "shoal.bucket" (list $.Values.settings .settings)) }}{{ end -}}
{{- if and (not $on) (or .Values.s3.endpoint .Values.s3.region .Values.s3.credentialsSecret) -}}
{{- fail "s3 is set, and no setting names a bucket: set settings.payloadServers, partFolders or batchDir to s3://BUCKET/PREFIX, or leave s3 out" -}}
{{- end -}}
{{ $on }}
{{- end -}}

{{/* Where buckets are, and who we are there. */}}
{{- define "shoal.s3Env" -}}
{{- with .Values.s3 }}
{{- if .endpoint }}
- name: AWS_ENDPOINT_URL_S3
  value: {{ .endpoint | quote }}
{{- end }}
{{- if .region }}
- name: AWS_REGION
  value: {{ .region | quote }}
{{- end }}
{{- if .credentialsSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: { secretKeyRef: { name: {{ .credentialsSecret }}, key: AWS_ACCESS_KEY_ID } }
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: { secretKeyRef: { name: {{ .credentialsSecret }}, key: AWS_SECRET_ACCESS_KEY } }
{{- end }}
{{- end }}
{{- end -}}

{{- define "shoal.otelMounts" -}}
{{- if .Values.otel.tls.secret }}
- { name: otel, mountPath: /etc/shoal/otel, readOnly: true }
{{- end }}
{{- end -}}

{{- define "shoal.otelVolumes" -}}
{{- with .Values.otel.tls.secret }}
- name: otel
  secret: { secretName: {{ . }}, defaultMode: 0440 }
{{- end }}
{{- end -}}

{{/* (list $root $hasModels) */}}
{{- define "shoal.mounts" -}}
{{- $root := index . 0 -}}
- { name: state, mountPath: /var/lib/shoal }
- { name: tmp, mountPath: /tmp }
{{- if $root.Values.queue.secret }}
- { name: queue, mountPath: /etc/shoal/queue, readOnly: true }
{{- end }}
{{- if $root.Values.queue.tls.secret }}
- { name: tls, mountPath: /etc/shoal/tls, readOnly: true }
{{- end }}
{{- if and (index . 1) (ne $root.Values.models.source "image") }}
- { name: models, mountPath: /models, readOnly: true }
{{- end }}
{{- end -}}

{{/* (list $root $hasModels $hasOwnState $role): the password of this role alone. */}}
{{- define "shoal.volumes" -}}
{{- $root := index . 0 -}}
{{- if not (index . 2) }}
- name: state
  emptyDir: {}
{{- end }}
- name: tmp
  emptyDir: {}
{{- if $root.Values.queue.secret }}
{{- $file := printf "%s.password" (index $root.Values.queue.users (index . 3)) }}
- name: queue
  secret:
    secretName: {{ $root.Values.queue.secret }}
    defaultMode: 0440
    items: [{ key: {{ $file }}, path: {{ $file }} }]
{{- end }}
{{- with $root.Values.queue.tls.secret }}
- name: tls
  secret: { secretName: {{ . }}, defaultMode: 0440 }
{{- end }}
{{- if index . 1 }}
{{- if eq $root.Values.models.source "pull" }}
- name: models
  emptyDir: {}
{{- else if eq $root.Values.models.source "claim" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ required "models.claim: the name of a volume claim, since models.source is claim" $root.Values.models.claim }}
    readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- define "shoal.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "shoal.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{/* (list $root "cpu" "minilm" $resources): fetches the model into the pod's volume before the process starts. It asks for
     what the process asks for: it runs before it, and a quota of the namespace refuses who asks for nothing. */}}
{{- define "shoal.pull" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.models.source "pull" }}
initContainers:
  - name: model
    image: {{ include "shoal.image" (list $root (index . 1)) }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args: [model, pull, {{ index . 2 | quote }}]
    env:
      - { name: SHOAL_MODELS_READ_ONLY, value: auto }
    securityContext:
      {{- include "shoal.security" . | nindent 6 }}
    resources:
      {{- toYaml (default dict (index . 3)) | nindent 6 }}
    volumeMounts:
      - { name: models, mountPath: /models }
      - { name: state, mountPath: /var/lib/shoal }
      - { name: tmp, mountPath: /tmp }
{{- end }}
{{- end -}}

{{/* What a whole pod has besides its container. `enableServiceLinks: false`: a service called shoal-http would otherwise
     be a variable SHOAL_HTTP_PORT=tcp://… in every pod. */}}
{{- define "shoal.pod" -}}
{{- $_ := include "shoal.tracesAnywhere" . -}}
{{- $_ := include "shoal.bucketAnywhere" . -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  {{- include "shoal.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* (list $root $group): the main lane that a group of workers serves, as libs/contract names it. */}}
{{- define "shoal.queueOf" -}}
{{- $group := index . 1 -}}
{{- $kind := default "embed" (default (index . 0).Values.settings.kind (default dict $group.settings).kind) -}}
{{- $slug := regexReplaceAll "[^a-z0-9-]" (regexReplaceAll "@.*" $group.model "" | lower | replace "/" "--") "-" -}}
{{ default (ternary "similarity" (printf "embed-%s" $slug) (eq $kind "similarity")) $group.autoscaling.queue }}
{{- end -}}

{{/* What the address of the queue server says, for KEDA and network policies: kind of KEDA's trigger, host:port of each
     of its servers, database, and the Sentinels' name of the master. As YAML. */}}
{{- define "shoal.queueServer" -}}
{{- $url := include "shoal.queueUrl" (list . "exporter") -}}
{{- if .Values.valkey.enabled }}{{ $url = printf "redis://exporter@%s-valkey.%s.svc:6379" (include "shoal.name" .) .Release.Namespace }}{{ end -}}
{{- $kind := regexFind "sentinel|cluster" (regexFind "^[a-z+]+:" $url) -}}
{{- $rest := regexReplaceAll "^[^@]*@" $url "" -}}
{{- $query := regexFind "\\?.*$" $rest -}}
{{- $path := trimPrefix "/" (regexFind "/.*$" (trimSuffix $query $rest)) -}}
{{- $port := ternary "26379" "6379" (eq $kind "sentinel") -}}
type: {{ ternary (printf "redis-%s" $kind) "redis" (ne $kind "") }}
nodes:
  {{- range splitList "," (regexFind "^[^/?]+" $rest) }}
  - {{ ternary . (printf "%s:%s" . $port) (regexMatch ":[0-9]+$" .) | quote }}
  {{- end }}
master: {{ ternary $path "" (eq $kind "sentinel") | quote }}
database: {{ default (ternary "" $path (eq $kind "sentinel")) (trimPrefix "db=" (regexFind "db=[0-9]+" $query)) | quote }}
asksSentinels: {{ contains "sentinelPassword=" $query }}
{{- end -}}

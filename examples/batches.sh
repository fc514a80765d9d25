#!/bin/sh
# A batch with nothing but curl: hands over a file with one request a line, waits until it is answered, and prints the
# answers, each with the custom_id of its line.
#   sh examples/batches.sh [FILE]
# Needs `shoal up`. Settings: SHOAL_URL (http://127.0.0.1:8787), SHOAL_MODEL (minilm), SHOAL_API_KEY.
set -eu
url=${SHOAL_URL:-http://127.0.0.1:8787}/v1 model=${SHOAL_MODEL:-minilm}
ask() { curl -sS --fail-with-body -H "authorization: Bearer ${SHOAL_API_KEY:-none}" "$@"; }
# The value of a field that is a string, out of JSON on one line.
field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
input=${1:-$folder/input.jsonl}
[ $# -gt 0 ] || cat >"$input" <<END
{"custom_id": "ship", "method": "POST", "url": "/v1/embeddings", "body": {"model": "$model", "input": "The ship left the harbour at dawn."}}
{"custom_id": "bill", "method": "POST", "url": "/v1/embeddings", "body": {"model": "$model", "input": "Invoices are due within thirty days."}}
{"custom_id": "empty", "method": "POST", "url": "/v1/embeddings", "body": {"model": "$model", "input": ""}}
END

file=$(ask "$url/files" -F purpose=batch -F "file=@$input" | field id)
ask "$url/batches" -H 'content-type: application/json' \
  -d "{\"input_file_id\": \"$file\", \"endpoint\": \"/v1/embeddings\", \"completion_window\": \"24h\"}" >"$folder/batch"
batch=$(grep -o '"id":"batch_[^"]*"' "$folder/batch" | head -n 1 | field id)
echo "$batch: handed over" >&2
while :; do
  ask "$url/batches/$batch" >"$folder/batch"
  status=$(field status <"$folder/batch")
  case $status in completed | failed | expired | cancelled) break ;; esac
  sleep 1
done
echo "$batch: $status" >&2
[ "$status" = completed ] || { cat "$folder/batch" >&2; exit 1; }
for kind in output_file_id error_file_id; do
  found=$(field "$kind" <"$folder/batch")
  [ -z "$found" ] || ask "$url/files/$found/content"
done

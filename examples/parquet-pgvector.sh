#!/bin/sh
# A Parquet file with the columns id and text into a table of PostgreSQL with pgvector, and the rows nearest to one of
# them. Interrupted, the same command goes on; run again, rows replace those with their ids.
#   sh examples/parquet-pgvector.sh FILE.parquet postgres://USER@HOST/DATABASE/TABLE ID
# Needs `shoal` and `psql` on PATH; PGPASSWORD or ~/.pgpass has the password. With REDIS_URL a queue server whose workers
# embed; without it the command starts both. Settings: SHOAL (the command, shoal), SHOAL_MODEL (minilm).
set -eu
[ $# -eq 3 ] || { echo 'usage: sh examples/parquet-pgvector.sh FILE.parquet postgres://USER@HOST/DATABASE/TABLE ID' >&2
  exit 2; }
file=$1 to=$2 id=$3
database=${to%/*} table=${to##*/}
psql -q "$database" -c 'create extension if not exists vector'
# shellcheck disable=SC2086
${SHOAL:-shoal} embed "$file" --id-field id --with-text --to "$to" --create-table
# The operator <=> is pgvector's cosine distance. `create index on TABLE using hnsw (embedding vector_cosine_ops)` makes
# it fast for large tables.
printf '%s\n' "select id, text from $table where id <> :'id'
  order by embedding <=> (select embedding from $table where id = :'id') limit 5;" | psql "$database" -v "id=$id"

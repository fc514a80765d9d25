#!/bin/sh
# Keeps what was compiled from native code below the cache folder, by a hash of all that it depends on, so that a fresh
# checkout of the same sources compiles nothing: sh tools/native-cache.sh restore|keep PART FOLDER [SALT…].
# PART is a folder of native/; FOLDER is where its build.sh writes; SALT is whatever else the result depends on (the
# architectures asked of nvcc, its version). `restore` exits with 0 when the files are there again. What was not used
# for 30 days is removed when something is kept. SHOAL_NATIVE_CACHE=no switches all of it off.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
kept=${SHOAL_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/shoal}/native
[ "${SHOAL_NATIVE_CACHE:-}" != no ] || exit 1
[ $# -ge 3 ] || { echo 'usage: sh tools/native-cache.sh restore|keep PART FOLDER [SALT…]' >&2; exit 2; }
verb=$1 part=$2 folder=$3
shift 3

hash() { if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi; }
# Names and contents of the sources, the compiler, and the processor, for which some of it is compiled.
depends_on() {
  echo "$part $*"
  (cd "$root" && find "native/$part" native/napi tools/nvcc.sh -type f | LC_ALL=C sort | while read -r file; do
    echo "$file" && cat "$file"
  done)
  "${CXX:-c++}" --version 2>/dev/null || :
  grep -m 1 '^model name' /proc/cpuinfo 2>/dev/null || uname -mrs
  cat "$root/node_modules/node-api-headers/package.json" 2>/dev/null || :
}
place=$kept/$part-$(depends_on "$@" | hash | cut -c1-24)

case $verb in
  restore)
    [ -d "$place" ] || exit 1
    mkdir -p "$folder"
    # As new as now: build.sh makes again what is older than its sources.
    for file in "$place"/*; do
      cp "$file" "$folder/.restored.$$" && mv "$folder/.restored.$$" "$folder/${file##*/}"
    done
    touch "$place"
    ;;
  keep)
    mkdir -p "$kept" 2>/dev/null && [ -w "$kept" ] || exit 0
    rm -rf "$place.$$" && mkdir "$place.$$"
    # What is older than a source was made from others, and would pass for new when it is restored.
    for file in "$folder"/*; do
      [ -n "$(find "$root/native/$part" "$root/native/napi" -type f -newer "$file" | head -n 1)" ] ||
        cp -p "$file" "$place.$$/"
    done
    rm -rf "$place" && mv "$place.$$" "$place"
    find "$kept" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} +
    ;;
  *) echo "native-cache.sh: unknown verb '$verb' (restore, keep)" >&2; exit 2 ;;
esac

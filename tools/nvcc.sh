#!/bin/sh
# Compiles CUDA sources into a library, without knowing what they compute: sh tools/nvcc.sh SOURCE.cu… -o OUT [nvcc's
# flags]; with -c among the flags into an object, with --program into a program. nvcc comes from $CUDA_HOME, from PATH,
# or from what `npm run fetch-nvcc` left below the cache; --where prints which. ARCH=90a compiles for one architecture
# (while developing: a tenth of the time), ARCHES="75 90a" for some; else for all, with PTX for those that come. The
# library has the runtime inside and needs the driver alone. Exit status 3: there is no nvcc.
set -eu
cache=${SHOAL_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/shoal}
nvcc=
for candidate in "${CUDA_HOME:-/nonexistent}/bin/nvcc" "$(command -v nvcc 2>/dev/null || :)" \
  "$cache"/nvcc/*/bin/nvcc; do
  [ -x "$candidate" ] && nvcc=$candidate && break
done
[ -n "$nvcc" ] || { echo "nvcc.sh: there is no CUDA compiler (CUDA_HOME, PATH and $cache/nvcc were looked at); npm" \
  "run fetch-nvcc fetches one" >&2; exit 3; }
if [ "${1:-}" = --where ]; then echo "$nvcc"; exit 0; fi

code() { set -- "$1" "${2:-sm_$1}"; printf ' -gencode arch=compute_%s,code=%s' "$1" "$2"; }
if [ -n "${ARCH:-}" ]; then
  flags=$(code "$ARCH")
else
  # 90a has Hopper's own instructions and runs nowhere else; the PTX of 80 and 120 is compiled by the driver where no
  # code fits.
  flags=$(for arch in ${ARCHES:-75 80 86 89 90a 100 120}; do 
    code "$arch"
    case $arch in 80 | 120) code "$arch" "compute_$arch" ;; esac
  done)
fi
case $flags in *sm_90a*) flags="$flags -DSHOAL_HOPPER" ;; esac
home=$(dirname -- "$(dirname -- "$nvcc")")
for folder in "$home/lib64" "$home/lib"; do [ ! -f "$folder/libcudart_static.a" ] || flags="$flags -L$folder"; done
kind=-shared
for word in "$@"; do case $word in -c | --program) kind= ;; esac; done
[ "${1:-}" != --program ] || shift
# shellcheck disable=SC2086
exec "$nvcc" $kind -cudart static -O3 -std=c++17 --threads "${NVCC_THREADS:-2}" -Xcompiler \
  -fPIC,-fvisibility=hidden,-Wall,-Wextra,-static-libstdc++,-static-libgcc $flags "$@"

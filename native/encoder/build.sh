#!/bin/sh
# Builds the encoder of Shoal: sh build.sh [reference | cuda | addon | test [brief | check | time | large | counters |
# all [seed [other library]]]].
#   reference  the encoder in plain C++, which needs nothing but a compiler
#   cuda       the same for NVIDIA GPUs, by tools/nvcc.sh: ARCH=90a for one architecture, else all from 7.5 on
#   addon      what Node loads; it opens either library
#   test       both libraries against each other; the reference against itself where there is no nvcc
# Everything goes to dist/native/encoder below the project's root; what is newer than all sources is not made again. CXX
# chooses the compiler (g++ 10 or clang 12 and later). Exit status 3: what is asked for needs a compiler that is not
# here.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
root=$here/../..
out=${SHOAL_ENCODER_OUT:-$root/dist/native/encoder}
cxx=${CXX:-c++}
mkdir -p "$out"
trap 'rm -f "$out"/*."$$"' EXIT # what an interrupted compiler left
trap 'exit 130' HUP INT TERM

# Several may build at the same time: a file appears by a rename.
make() { # target, command that takes -o…
  target=$out/$1; shift
  newer=$(find "$here/build.sh" "$here/../napi" "$here/include" "$here/src" "$here/test" -type f -newer "$target" \
    2>/dev/null | head -n 1)
  if [ -f "$target" ] && [ -z "$newer" ]; then return; fi
  "$@" -o "$target.$$"
  mv "$target.$$" "$target"
}

need_cxx() {
  command -v "$cxx" >/dev/null 2>&1 || { echo "build.sh: no C++ compiler ($cxx)" >&2; exit 3; }
}

reference() {
  need_cxx
  make libshoal_encoder_reference.so "$cxx" -shared -O3 -march=native -std=c++17 -Wall -Wextra -fPIC \
    -fvisibility=hidden -ffp-contract=fast "$here/src/reference.cc" -lpthread
}

cuda() {
  sh "$root/tools/nvcc.sh" --where >/dev/null || exit 3
  need_cxx
  # Sources that end in .cc have no kernel and are compiled once, by the C++ compiler behind nvcc.
  set -- "$here"/src/*.cu
  for name in failure streams api peak; do set -- "$@" "$here/src/$name.cc"; done
  make libshoal_encoder.so sh "$root/tools/nvcc.sh" "$@" -ccbin "$cxx" ${NVCCFLAGS:-} -ldl -lpthread
}

addon() {
  need_cxx
  flags='-static-libstdc++ -static-libgcc -ldl'
  case $(uname -s) in Darwin) flags='-undefined dynamic_lookup' ;; esac
  # shellcheck disable=SC2086
  make encoder.node "$cxx" -shared -O2 -std=c++17 -Wall -Wextra -fPIC -fvisibility=hidden \
    -I"$root/node_modules/node-api-headers/include" "$here/src/addon.cc" $flags -lpthread
}

case ${1:-} in
  reference) reference ;;
  cuda) cuda ;;
  addon) addon ;;
  test)
    shift
    reference
    library=libshoal_encoder_reference.so
    if sh "$root/tools/nvcc.sh" --where >/dev/null 2>&1; then cuda; library=libshoal_encoder.so
    else echo 'build.sh: no nvcc; the reference is compared with itself'; fi
    make encoder_test "$cxx" -O2 -std=c++17 -Wall -Wextra "$here/test/encoder_test.cc" -ldl -lpthread
    "$out/encoder_test" "$out/libshoal_encoder_reference.so" "$out/$library" "$@" ;;
  *) echo "build.sh: unknown command '${1:-}' (reference, cuda, addon, test)" >&2; exit 2 ;;
esac

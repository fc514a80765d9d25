#!/bin/sh
# Builds the kernels: sh build.sh [addon | stand-in | test [cases [seed]] | bench [rows [queries [dims [k]]]] | cuda |
# cuda-test [cases [seed]] | cuda-bench [parts…]]. `cuda…` take the nvcc that tools/nvcc.sh finds (ARCH=90a: for one
# architecture). Without a command only the objects; `addon` makes the library that Node loads, `stand-in` one with the
# CUDA library's interface for tests without a GPU (its path is printed), `test` and `bench` need no Node. Everything
# goes to dist/native/similarity below the project's root; what is newer than all sources is not made again. CXX chooses
# the compiler (g++ 10 or clang 12 and later). Exit status 3: there is none.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
root=$here/../..
out=${SHOAL_NATIVE_OUT:-$root/dist/native/similarity}
cxx=${CXX:-c++}
command -v "$cxx" >/dev/null 2>&1 || { echo "build.sh: no C++ compiler ($cxx)" >&2; exit 3; }
mkdir -p "$out"
trap 'rm -f "$out"/*."$$"' EXIT # what an interrupted compiler left
trap 'exit 130' HUP INT TERM
objects='' running=''
cores=$(getconf _NPROCESSORS_ONLN)

# Several may build at the same time: a file appears by a rename.
make() { # target, command that takes -o…
  target=$out/$1; shift
  if [ -f "$target" ] && [ -z "$(find "$here/build.sh" "$here/../napi" "$here/include" "${sources:-$here/cpu}" \
    "${also:-$here/napi}" ${program_source:-} -type f -newer "$target" | head -n 1)" ]; then return; fi
  "$@" -o "$target.$$"
  mv "$target.$$" "$target"
}

# One compiler a core, waiting for the oldest: nvcc takes a gigabyte and more.
start() { # command…
  "$@" &
  running="$running $!"
  # shellcheck disable=SC2086
  set -- $running
  if [ $# -ge "$cores" ]; then wait "$1"; shift; running=$*; fi
}

await() {
  for process in $running; do wait "$process"; done
  running=
}

compile() { # source without .cc, flags…
  source=$1 name=$(basename "$1"); shift
  start make "$name.o" "$cxx" -O3 -std=c++17 -Wall -Wextra -fPIC -fvisibility=hidden -ffp-contract=fast "$@" -c \
    "$here/$source.cc"
  objects="$objects $out/$name.o"
}

# The largest first: there are more of them than cores.
case ${1:-} in addon)
  for name in addon cuda_addon; do compile "napi/$name" -O2 -I"$root/node_modules/node-api-headers/include"; done ;;
esac

case $(uname -m) in x86_64 | amd64)
  # GCC 12 warns of its own intrinsics.
  compile cpu/kernels_avx512 -mavx512f -mavx512dq -mfma -Wno-maybe-uninitialized -Wno-uninitialized
  compile cpu/kernels_avx2 -mavx2 -mfma -mf16c ;;
esac
for name in kernels_portable isa topk matrix spread threads mapped_file; do compile "cpu/$name"; done
await

addon() {
  case $(uname -s) in Darwin) flags='-undefined dynamic_lookup' ;; *) flags='-static-libstdc++ -static-libgcc' ;; esac
  # shellcheck disable=SC2086
  make similarity.node "$cxx" -shared $objects $flags -lpthread -ldl
}

stand_in() {
  program_source=$here/test/stand_in_cuda.cc
  # shellcheck disable=SC2086
  make stand_in_cuda.so "$cxx" -shared -O2 -std=c++17 -Wall -Wextra -fPIC -fvisibility=hidden \
    "$here/test/stand_in_cuda.cc" $objects -lpthread -ldl
  echo "$out/stand_in_cuda.so"
}

program() { # name
  program_source="$here/test/$1.cc $here/test/row_values.h"
  # shellcheck disable=SC2086
  make "$1" "$cxx" -O3 -std=c++17 -Wall -Wextra -ffp-contract=fast "$here/test/$1.cc" $objects -lpthread -ldl
}

cuda() {
  sh "$root/tools/nvcc.sh" --where >/dev/null || exit $?
  sources=$here/cuda also=$here/cpu/threads.h objects=$out/threads.o
  # What was compiled for one architecture is not taken for the library of all.
  # Sources that end in .cc have no kernel and are compiled once, by the C++ compiler behind nvcc.
  for source in "$here"/cuda/*/*.cu "$here"/cuda/*/*.cc; do
    object=$(basename "$source")
    object=cuda${ARCH:+-$ARCH}-${object%.*}.o
    start make "$object" sh "$root/tools/nvcc.sh" -c "$source"
    objects="$objects $out/$object"
  done
  await
  library=cuda${ARCH:+-$ARCH}.so
  # shellcheck disable=SC2086
  make "$library" sh "$root/tools/nvcc.sh" $objects -Xlinker -soname -Xlinker "$library" -lpthread -ldl
  cp "$out/$library" "$out/similarity_cuda.so.$$" && mv "$out/similarity_cuda.so.$$" "$out/similarity_cuda.so"
}

cuda_program() { # source
  cuda
  program_source="$here/test/$1 $here/test/row_values.h"
  name=${1%.*}${ARCH:+-$ARCH}
  make "$name" sh "$root/tools/nvcc.sh" --program "$here/test/$1" "$out/$library" -Xlinker -rpath -Xlinker "\$ORIGIN" \
    -lpthread -ldl
}

case ${1:-} in
  '') ;;
  cuda) cuda; echo "$out/similarity_cuda.so" ;;
  cuda-test) shift; cuda_program cuda_test.cc; "$out/$name" "$@" ;;
  cuda-bench) shift; cuda_program cuda_bench.cu; "$out/$name" "$@" ;;
  addon) addon ;;
  stand-in) stand_in ;;
  test) shift; program similarity_test; "$out/similarity_test" "$@" ;;
  bench) shift; program similarity_bench; "$out/similarity_bench" "$@" ;;
  *) echo "build.sh: unknown command '$1' (addon, stand-in, test, bench, cuda, cuda-test, cuda-bench)" >&2; exit 2 ;;
esac

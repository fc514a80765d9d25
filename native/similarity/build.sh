#!/bin/sh
# Builds the CPU kernels by themselves, without Node: sh build.sh [test [cases [seed]] | bench [rows [queries [dims [k]]]]].
# Objects and programs go to dist/native below the project's root. CXX chooses the compiler (g++ 10 or clang 12 and later).
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
out=$here/../../dist/native/similarity
cxx=${CXX:-c++}
mkdir -p "$out"

compile() { # name, flags…
  name=$1; shift
  "$cxx" -O3 -std=c++17 -Wall -Wextra -fPIC -fvisibility=hidden -ffp-contract=fast "$@" -c "$here/src/$name.cc" -o "$out/$name.o"
  objects="${objects:-} $out/$name.o"
}

case $(uname -m) in x86_64 | amd64)
  compile kernels_avx512 -mavx512f -mavx512dq -mfma
  compile kernels_avx2 -mavx2 -mfma ;;
esac
for name in kernels_portable isa topk matrix spread; do compile "$name"; done

program() { # name
  "$cxx" -O3 -std=c++17 -Wall -Wextra -ffp-contract=fast "$here/test/$1.cc" $objects -o "$out/$1" -lpthread
}
case ${1:-} in
  '') ;;
  test) shift; program similarity_test; "$out/similarity_test" "$@" ;;
  bench) shift; program similarity_bench; "$out/similarity_bench" "$@" ;;
  *) echo "build.sh: unknown command '$1' (test, bench)" >&2; exit 2 ;;
esac

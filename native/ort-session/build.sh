#!/bin/sh
# Builds the addon that opens ONNX Runtime's own library: sh build.sh. It goes to dist/native/ort-session below the project's
# root; when it is newer than all sources nothing is done. CXX chooses the compiler (g++ 10 or clang 12 and later); neither
# ONNX Runtime's header nor CUDA is needed. Exit status 3: there is no compiler.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
root=$here/../..
out=${SHOAL_NATIVE_OUT:-$root/dist/native/ort-session}
cxx=${CXX:-c++}
command -v "$cxx" >/dev/null 2>&1 || { echo "build.sh: no C++ compiler ($cxx)" >&2; exit 3; }
mkdir -p "$out"
trap 'rm -f "$out"/*."$$"' EXIT # what an interrupted compiler left
trap 'exit 130' HUP INT TERM
target=$out/ort-session.node
if [ -f "$target" ] && [ -z "$(find "$here/build.sh" "$here/../napi" "$here/src" -type f -newer "$target" | head -n 1)" ]; then exit; fi
case $(uname -s) in Darwin) flags='-undefined dynamic_lookup' ;; *) flags='-static-libstdc++ -static-libgcc -ldl' ;; esac
# Several may build at the same time: the file appears by a rename.
# shellcheck disable=SC2086
"$cxx" -shared -O2 -std=c++17 -Wall -Wextra -fPIC -fvisibility=hidden -I"$root/node_modules/node-api-headers/include" "$here/src/addon.cc" "$here/src/session.cc" $flags -lpthread -o "$target.$$"
mv "$target.$$" "$target"

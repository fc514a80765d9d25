#!/bin/sh
# Formats everything that people read as code: sh tools/format.sh [--check]. TypeScript and JSON by oxfmt, C++ and CUDA
# by clang-format, both at 120 columns. With --check nothing is changed, and a file that would change fails the command.

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) && cd "$root" || exit 1
bin=$root/node_modules/.bin
native() { find native -name '*.cc' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh' -o -name '*.inl'; }
case ${1:-} in
  '') "$bin/oxfmt" . && "$bin/clang-format" -i $(native) ;;
  --check) "$bin/oxfmt" --check . && "$bin/clang-format" --dry-run -Werror $(native) ;;
  *) echo 'usage: sh tools/format.sh [--check]' >&2 && exit 2 ;;
esac

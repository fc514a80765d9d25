#!/bin/sh
# Everything that `npm test` proves: set-up, lint, build, then each package's tests, one package after the other, two files at
# a time because they wait more than they reckon; those of the tools one by one, because they compile. The last line counts tests over
# all of them; the exit status is 0 only when nothing failed.
#
#   npm test                     everything
#   npm test -- queue launcher   only these (a folder of libs/ or apps/, "launcher" for the tests in tools/, "bench" for short forms of all benches,
#                                or "webgpu" for WebGPU on the software driver in SHOAL_TEST_VULKAN), without lint

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 1
cd "$root" || exit 1
export CI="${CI:-true}"

[ -t 1 ] || export NO_COLOR=1

. "$root/tools/setup.sh"
(set_up_if_needed) || { echo '0 passed, 1 failed'; exit 1; }
(set_up_native $native_parts)
find_node
# The sources are run as they are, which takes a newer Node than the build does.
[ -x node_modules/.bin/node ] && node=$root/node_modules/.bin/node
results=$setup_folder/results
all_begun=$(date +%s)
rm -rf "$results" && mkdir -p "$results"
passed=0 failed=0 skipped=0

main() {
  if [ $# -eq 0 ]; then
    set -- $(suites)
    check format sh tools/format.sh --check
    check lint "$node" node_modules/.bin/oxlint --type-aware --deny-warnings
    check 'types of bench and tools' "$node" node_modules/.bin/tsc -p tsconfig.tools.json
  fi
  check types "$node" node_modules/.bin/tsc -b
  check 'queue server' find_server
  check model "$node" apps/cli/dist/main.js model pull minilm
  for suite in "$@"; do run_suite "$(folder_of "$suite")"; done
  summary="$passed passed, $failed failed"
  [ "$skipped" -eq 0 ] || summary="$summary, $skipped skipped"
  echo
  # Once more what failed and what passed at its second attempt: where only the end of all this is kept, it is there.
  [ ! -s "$results/said" ] || cat "$results/said"
  echo "== all of it: $(seconds_since "$all_begun")"
  echo "$summary"
  [ "$failed" -eq 0 ]
}

# Folders that hold tests, in the order of the workspace's arrows as far as the alphabet allows.
suites() {
  for folder in libs/* apps/* tools bench; do
    [ -z "$(find "$folder" -name '*.test.ts' ! -path '*/node_modules/*' ! -path '*/dist/*' | head -n 1)" ] || echo "$folder"
  done
  [ -z "${SHOAL_TEST_VULKAN:-}" ] || echo webgpu
}

folder_of() {
  case ${1#@shoal/} in
    launcher | tools) echo tools ;;
    bench | webgpu) echo "$1" ;;
    libs/* | apps/*) echo "${1%/}" ;;
    *) if [ -d "apps/${1#@shoal/}" ]; then echo "apps/${1#@shoal/}"; else echo "libs/${1#@shoal/}"; fi ;;
  esac
}

# Fetches a queue server when none is installed, and tells the tests which one to start.
find_server() {
  SHOAL_TEST_SERVER=$("$node" --input-type=module --eval "
    import { cacheFolder } from '@shoal/core';
    import { findServerProgram } from '@shoal/private-server';
    const program = await findServerProgram({ cacheDir: cacheFolder(process.env.SHOAL_CACHE_DIR), onProgress: console.error });
    console.log(program.path);") && export SHOAL_TEST_SERVER
}

# A step that is no test; it counts only when it fails.
check() {
  name=$1
  shift
  begun=$(date +%s)
  if "$@" >"$results/step.log" 2>&1 </dev/null; then
    echo "== $name: ok, $(seconds_since "$begun")"
  else
    cat "$results/step.log"
    echo "== $name: FAILED, $(seconds_since "$begun")" | tee -a "$results/said"
    failed=$((failed + 1))
  fi
}

run_suite() {
  begun=$(date +%s)
  report=$results/$(echo "$1" | tr / -).report
  directory=$1/src files_at_once=2 files='' driver=''
  case $1 in
    tools) directory=$1 files_at_once=1 ;;
    bench) directory=$1 ;; # no test judges a figure
    webgpu) directory=libs/worker/src/device files=webgpu.test.ts driver=$(find "${SHOAL_TEST_VULKAN:-/nowhere}" -name 'lvp_icd*.json' 2>/dev/null | head -n 1) ;;
    *) [ -z "${SHOAL_TEST_VULKAN:-}" ] || files='--exclude **/webgpu.test.ts' ;; # a suite of its own, in whose processes alone there is the driver
  esac
  echo
  # shellcheck disable=SC2086
  env SHOAL_TEST_REPORT="$report" ${driver:+"VK_DRIVER_FILES=$driver" "LD_LIBRARY_PATH=$(dirname "$(find "$SHOAL_TEST_VULKAN" -name libvulkan_lvp.so | head -n 1)")"} "$node" node_modules/.bin/vitest run --dir "$directory" --maxWorkers="$files_at_once" --reporter=default --reporter=./tools/test-report.ts $files </dev/null
  status=$?
  [ -s "$report" ] || printf '0 1 0\nfailed: the run left no report\n' >"$report"
  read -r suite_passed suite_failed suite_skipped <"$report"
  [ "$status" -eq 0 ] || [ "$suite_failed" -gt 0 ] || { suite_failed=1 && echo "failed: the run ended with status $status" >>"$report"; }
  sed -n "2,\$s|^|== $1: |p" "$report" | tee -a "$results/said"
  echo "== $1: $suite_passed passed, $suite_failed failed, $suite_skipped skipped, $(seconds_since "$begun")"
  passed=$((passed + suite_passed)) failed=$((failed + suite_failed)) skipped=$((skipped + suite_skipped))
}

main "$@"

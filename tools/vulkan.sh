#!/bin/sh
# Fetches Mesa's Vulkan driver that computes in software, so that ONNX Runtime's WebGPU provider is tested where there
# is no GPU: sh tools/vulkan.sh. Unpacks Debian's packages into dist/setup/vulkan and prints that folder, which
# SHOAL_TEST_VULKAN names to `npm test -- webgpu`. Installs nothing, needs no root; where it cannot be had it says why
# and exits with 1.
#
# WebGPU needs more of Vulkan than the Mesa of Debian 12 has (22.3 is refused, 25.0 serves: 2026-11), so backports are
# looked at.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
out=$root/dist/setup/vulkan

refuse() { echo "vulkan.sh: $*" >&2; exit 1; }
driver() { find "$out/root" -name 'lvp_icd*.json' 2>/dev/null | head -n 1; }

if [ -n "$(driver)" ]; then echo "$out/root"; exit; fi
for tool in apt-get dpkg; do command -v "$tool" >/dev/null 2>&1 ||
  refuse "there is no $tool, and the driver comes as packages of Debian"; done
ID='' VERSION_CODENAME=''
. /etc/os-release
[ "$ID" = debian ] || refuse "this is ${ID:-an unknown system}; the driver's packages are Debian's"

# Its own lists and cache, so that nobody else's change.
apt=$out/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$out/packages"
site=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | awk -v name="$VERSION_CODENAME" \
  '$2 == name { print $1; exit }')
[ -n "$site" ] || refuse "apt names no source of $VERSION_CODENAME"
for suite in "$VERSION_CODENAME" "$VERSION_CODENAME-backports"; do
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $suite main"
done >"$apt/sources.list"
from_here="-q -o Dir::Etc::sourcelist=$apt/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$apt/lists"
from_here="$from_here -o Dir::Cache=$apt/cache -o Debug::NoLocking=1 -t $VERSION_CODENAME-backports"
# shellcheck disable=SC2086
apt-get ${from_here% -t *} update >&2 || refuse 'the lists of packages cannot be fetched; what apt said is above'
# What is not installed of all that it needs. Mesa's other halves would only be brought up to the same version.
# shellcheck disable=SC2086
packages=$(apt-get $from_here install --print-uris -y --no-install-recommends mesa-vulkan-drivers libvulkan1 | sed -n \
  "s/^'[^']*' \([^_]*\)_.*/\1/p" | grep -v -E '^(libegl|libgbm|libgl|mesa-libgallium)')
# shellcheck disable=SC2086
(cd "$out/packages" && rm -f ./*.deb && apt-get $from_here download $packages >&2) ||
  refuse 'the packages cannot be fetched; what apt said is above'
rm -rf "$out/unpacked"
for package in "$out"/packages/*.deb; do dpkg -x "$package" "$out/unpacked"; done
library=$(find "$out/unpacked" -name libvulkan_lvp.so | head -n 1)
missing=$(LD_LIBRARY_PATH=$(dirname "$library") ldd "$library" | sed -n 's/^[[:space:]]*\(.*\) => not found/\1/p' | \
  tr '\n' ' ')
[ -z "$missing" ] || refuse "the driver needs $missing, which the loader does not find"
mv "$out/unpacked" "$out/root"
echo "$out/root"

#!/usr/bin/env bash
# Runs the GPU bench where the project lies unpacked: node, valkey-server and (for the loops in PyTorch) python3 on
# PATH, the CUDA provider beside ONNX Runtime, the models in SHOAL_CACHE_DIR. Everything it is given goes to main.ts.
#   OUT=results SHOAL_CACHE_DIR=… bench/gpu/run.sh --steps speed --seconds 570
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export SHOAL_TEST_SERVER=${SHOAL_TEST_SERVER:-$(command -v valkey-server || command -v redis-server)}
exec node --conditions=@shoal/source --disable-warning=ExperimentalWarning bench/gpu/main.ts --out \
  "${OUT:-bench/gpu/out}" "$@"

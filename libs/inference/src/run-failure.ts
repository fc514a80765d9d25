// What the text of a failed run means. onnxruntime-node 1.30 gives plain Errors without a code, so the message is all
// there is; the patterns come from messages seen on the CPU provider and an H200 (2026-11) and from the runtime's
// source.

export type RunFailureKind = 'out-of-vram' | 'device-lost' | 'failed';

const OUT_OF_VRAM: readonly RegExp[] = [
  /std::bad_alloc/i,
  /Failed to allocate memory for requested buffer/i,
  /Available memory of \d+ is smaller/i,
  /CUDA failure 2\b|CUDA_ERROR_OUT_OF_MEMORY|out of memory/i,
  /CUBLAS_STATUS_ALLOC_FAILED/i,
  /CUDNN_STATUS_(?:INTERNAL_ERROR_.*ALLOC|ALLOC_FAILED)/i,
];

/**
 * After one of these every later call of the process fails as well: the process has to die. A library that only says
 * that its kernel did not execute (cuBLAS 13) may mean that too: taken for a fault of the batch, it would fail every
 * job that comes later.
 */
const DEVICE_LOST: readonly RegExp[] = [
  /CUDA failure (?:46|214|220|226|70\d|71\d|721|810|911|999)\b/i,
  /CUBLAS failure 13\b|CU(?:BLAS|DNN)_STATUS_EXECUTION_FAILED/i,
  /device lost|uncorrectable ECC/i,
];

export function classifyRunFailure(message: string): RunFailureKind {
  const isOneOf = (patterns: readonly RegExp[]): boolean => patterns.some((pattern) => pattern.test(message));
  if (isOneOf(DEVICE_LOST)) return 'device-lost';
  return isOneOf(OUT_OF_VRAM) ? 'out-of-vram' : 'failed';
}

export { EncoderBackend, type EncoderBackendOptions } from './encoder-backend.ts';
export { ENCODER_LIBRARIES, nativeEncoderProblem } from './encoder-addon.ts';
export { OrtBackend, type OrtBackendOptions, type ProveExact } from './ort-backend.ts';
export { openSession, type SessionOptions } from './ort-session.ts';
export { readTrace, type TracedNode } from './ort-trace.ts';
export {
  CUDA_PROVIDER_FILES,
  RUNTIME_ELSEWHERE,
  RUNTIME_LIBRARIES,
  cudaProviderProblem,
  findsCudnn,
  installedRuntime,
  runtimeMain,
  missingLibraries,
  type InstalledRuntime,
  type Provider,
} from './provider.ts';
export { classifyRunFailure, type RunFailureKind } from './run-failure.ts';

export { OrtBackend, type OrtBackendOptions } from './ort-backend.ts';
export { classifyRunFailure, type RunFailureKind } from './run-failure.ts';

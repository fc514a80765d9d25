export { PacedBackend, pacedAxis, type PacedBackendOptions } from './paced-backend.ts';

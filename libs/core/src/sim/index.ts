export { withDeadlyToken, type Fate } from './deadly-token.ts';
export { PacedBackend, pacedAxis, type PacedBackendOptions } from './paced-backend.ts';

export {
  REFUSAL_MS,
  h200Law,
  runMs,
  simulatedLaw,
  tensorBytes,
  type DeviceLaw,
  type MemoryForm,
} from './device-law.ts';
export { SimulatedMemory, type MemoryVerdict } from './simulated-memory.ts';
export { SimulatedDevice, type DeviceFaults, type SimulatedDeviceOptions } from './simulated-device.ts';
export { simulatedVector } from './simulated-vector.ts';
export { withDeadlyToken, type Fate } from './deadly-token.ts';
export { PacedBackend, paceOf, pacedAxis, type PacedBackendOptions } from './paced-backend.ts';

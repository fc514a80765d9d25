// Devices that do not exist, for tests and for a fleet on a laptop: `sim:24GB` has memory to run out of, `sim:8000`
// only takes its time. Both compute nothing.

import { invariant } from '@shoal/contract';
import { systemClock, type InferenceBackend } from '@shoal/core';
import { PacedBackend, SimulatedDevice, paceOf, simulatedLaw, simulatedVector } from '@shoal/core/sim';
import type { DeviceOptions } from '../device-options.ts';

export function openSimulated({
  device,
  slots,
  sessions = 1,
  servesModel = false,
}: Pick<DeviceOptions, 'device' | 'slots' | 'sessions' | 'servesModel'>): InferenceBackend {
  const vectorOf = servesModel ? simulatedVector : undefined;
  const law = simulatedLaw(device);
  if (law !== undefined) return new SimulatedDevice({ ...slots, law, clock: systemClock, vectorOf });
  const pace = paceOf(device);
  invariant(pace !== undefined, 'the settings take no other name of a simulated device');
  return new PacedBackend({ ...slots, ...pace, sessions, vectorOf });
}

// The last part of the truth gate: a backend serves only when it gives the vectors that the CPU gives in fp32. Whether
// it runs where it says is for each backend to prove when it opens.

import type { InferenceBackend, Logger } from '@shoal/core';
import type { CanaryCheck } from './canary.ts';
import { Refused } from './device-refusals.ts';

/** Below this a precision is not what was asked for: the vectors of one job would depend on who ran it. */
export const LEAST_COSINE = 0.9999;

/** The backend, if its vectors are good enough; else it is closed again. */
export async function accepted<Backend extends InferenceBackend>(
  backend: Backend,
  canary: CanaryCheck,
  least: number,
  log: Logger,
): Promise<Backend> {
  const cosine = await canary(backend).catch(async (error: unknown) => {
    await backend.stop();
    throw error;
  });
  if (cosine >= least) {
    log.info(
      { device: backend.device, precision: backend.precision, leastCosine: cosine },
      'device gives the vectors of fp32',
    );
    return backend;
  }
  await backend.stop();
  throw new Refused(
    `its vectors in ${backend.precision} are not those of fp32: least cosine ${cosine.toFixed(6)} where ` +
      `${least} is asked for`,
  );
}

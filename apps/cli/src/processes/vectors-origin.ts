// Whose vectors a command takes: those of the model, or those of a trial (simServes), as it was when the command began.
// Each result says whether a simulated device gave it, so that rows of both kinds never come together, whenever a trial
// begins or ends.

import { ShoalError, queueOf } from '@shoal/contract';
import type { Session } from './session.ts';

/** Throws CONFIG_INVALID for vectors of the other kind. */
export function refuseOtherVectors(
  { isTrial, model }: Pick<Session, 'isTrial' | 'model'>,
  { isSimulated }: { readonly isSimulated: boolean },
): void {
  if (isSimulated === isTrial) return;
  const queue = queueOf(model);
  throw new ShoalError(
    'CONFIG_INVALID',
    isSimulated
      ? `a trial (simServes) has begun on ${queue}: vectors came that are not those of the model, with which this ` +
          'command began. None of them was taken. Run it again under a prefix without a trial (SHOAL_PREFIX or --prefix)'
      : `the trial (simServes) on ${queue} is over: vectors of the model came, and this command began with simulated ` +
          'ones. None of them was taken. Run it again; where simulated rows are kept, --fresh removes them',
    { queue, isTrial },
  );
}

// One number for many runs, in whatever order and by however many processes they were made: two machines that ran the
// same seeds compare it instead of every trace.

import { createHash } from 'node:crypto';

export const NO_RUNS = '0'.repeat(16);

/** Of one run: its seed, its trace and how long that is. */
export function digestOfRun({
  seed,
  trace,
  steps,
}: {
  readonly seed: string;
  readonly trace: string;
  readonly steps: number;
}): string {
  return createHash('sha256').update(`${seed} ${trace} ${steps}`).digest('hex').slice(0, 16);
}

/** Of two sets of runs together: exclusive or, so that order and cut do not matter. Both 16 hex digits. */
export function joinedDigests(a: string, b: string): string {
  return (BigInt(`0x${a}`) ^ BigInt(`0x${b}`)).toString(16).padStart(16, '0');
}

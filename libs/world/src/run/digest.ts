// Digests of what a run handled, and one for many runs, in whatever order and by however many processes they were made:
// two machines that ran the same seeds compare it instead of every trace. It imports nothing of the product, which a
// process that runs seeds loads only after its hours and chances were replaced.

import { createHash } from 'node:crypto';

export const NO_RUNS = '0'.repeat(16);

/** 16 hex digits: the beginning of the SHA-256, of the UTF-8 bytes where it is a string. */
export function digestOf(bytes: Uint8Array | string): string {
  return createHash('sha256').update(bytes).digest('hex').slice(0, 16);
}

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
  return digestOf(`${seed} ${trace} ${steps}`);
}

/** Of two sets of runs together: exclusive or, so that order and cut do not matter. Both 16 hex digits. */
export function joinedDigests(a: string, b: string): string {
  return (BigInt(`0x${a}`) ^ BigInt(`0x${b}`)).toString(16).padStart(16, '0');
}

// Why a device was not used, in the same words whatever runs on it: tried one after the other, told in one line,
// refused with every reason.

import { ShoalError } from '@shoal/contract';
import type { Logger } from '@shoal/core';

export interface Refusal {
  readonly provider: string;
  readonly reason: string;
  /** There is nothing of the kind here, which is no news to anybody. */
  readonly isAbsence: boolean;
}

export class Refused extends Error {
  readonly isAbsence: boolean;
  constructor(reason: string, { isAbsence = false } = {}) {
    super(reason);
    this.isAbsence = isAbsence;
  }
}

export function refusalOf(provider: string, error: unknown): Refusal {
  return {
    provider,
    reason: error instanceof Error ? error.message : String(error),
    isAbsence: error instanceof Refused && error.isAbsence,
  };
}

/** One line: a warning when a GPU is here and does not serve, else what everybody expects. */
export function tellRefusals(log: Logger, refusals: readonly Refusal[], device: string): void {
  if (refusals.length === 0) return;
  const facts = { device, tried: Object.fromEntries(refusals.map(({ provider, reason }) => [provider, reason])) };
  if (refusals.every(({ isAbsence }) => isAbsence)) log.info(facts, 'there is no GPU here that could be used');
  else log.warn(facts, 'a GPU is not used; "shoal doctor" says what to do');
}

export function tellForcedCpu(log: Logger, environment: Readonly<Record<string, string | undefined>>): void {
  if (environment['SHOAL_FORCE_CPU'] === '1')
    log.warn({ device: 'cpu' }, 'SHOAL_FORCE_CPU=1: running on the CPU, whatever else is here');
}

export function noDevice(device: string, refusals: readonly Refusal[]): ShoalError<'SETUP_FAILED'> {
  const reasons = refusals.map(({ provider, reason }) => `${provider}: ${reason}`).join('; ');
  return new ShoalError(
    'SETUP_FAILED',
    `device ${device} was asked for and cannot be used; ${reasons}. "shoal doctor" looks closer; --device cpu ` +
      'runs on the CPU',
    { device },
  );
}

/** The index of gpu:<index>; auto is the first. */
export function indexOf(device: string): number {
  return device === 'auto' ? 0 : Number(device.slice('gpu:'.length));
}

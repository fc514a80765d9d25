// What the workers of a queue would refuse of a call, told before its jobs are added: a worker that is older than what is
// asked for, a prompt that the model does not have, lengths that its vectors do not have. By what live workers tell of
// themselves; where none is alive, or nothing is known, jobs go their way and the worker judges.

import { ShoalError, mainQueue, notAskable } from '@shoal/contract';
import { claimingOf, type ServingWorker } from '@shoal/queue';
import type { AskedOfWorkers } from './embed-request.ts';

/**
 * Throws JOB_VERSION_UNKNOWN, naming each older worker and its version, or JOB_INVALID. Workers that are drained claim
 * nothing and are not asked.
 */
export function refuseUnserved(
  workers: readonly ServingWorker[] | undefined,
  asked: AskedOfWorkers,
  model: string,
): void {
  const claiming = claimingOf(workers);
  if (asked.version === 2) refuseOlder(workers, { what: whatNeeds(asked), queue: mainQueue(model) });
  for (const { facts: { prompts, isNormalized } = {} } of claiming) {
    const { prompt, normalize } = asked;
    if (prompt !== undefined && prompts !== undefined && !prompts.includes(prompt))
      throw new ShoalError(
        'JOB_INVALID',
        `the prompt ${JSON.stringify(prompt)} was asked for, and ${model} ${notAskable(prompts)}`,
        { model, prompt, prompts },
      );
    if (normalize === false && isNormalized === true) throw alwaysUnit(model);
  }
}

/** Throws JOB_VERSION_UNKNOWN where a worker that claims does not read jobs of version 2, which `what` needs. */
export function refuseOlder(
  workers: readonly ServingWorker[] | undefined,
  { what, queue }: { readonly what: string; readonly queue: string },
): void {
  const older = claimingOf(workers).filter((worker) => !readsSecond(worker));
  if (older.length > 0) throw tooOld(older, what, queue);
}

/** Whether somebody claims, and each of them reads jobs of version 2. */
export function allReadSecond(workers: readonly ServingWorker[] | undefined): boolean {
  const claiming = claimingOf(workers);
  return claiming.length > 0 && claiming.every(readsSecond);
}

function readsSecond({ facts }: ServingWorker): boolean {
  return (facts?.jobVersion ?? 1) >= 2;
}

/** Prompts that jobs of every version may name. */
const EVERY_VERSION = ['query', 'passage'];

export function alwaysUnit(model: string): ShoalError<'JOB_INVALID'> {
  return new ShoalError(
    'JOB_INVALID',
    `normalize: false was asked for, and the vectors of ${model} have length 1 and cannot be had otherwise: leave it out`,
    { model },
  );
}

function whatNeeds({ prompt, normalize, hasMeta }: AskedOfWorkers): string {
  return [
    ...(prompt === undefined || EVERY_VERSION.includes(prompt) ? [] : [`the prompt ${JSON.stringify(prompt)}`]),
    ...(normalize === undefined ? [] : [`normalize: ${normalize}`]),
    ...(hasMeta ? ['meta'] : []),
  ].join(' and ');
}

function tooOld(workers: readonly ServingWorker[], what: string, queue: string): ShoalError<'JOB_VERSION_UNKNOWN'> {
  const named = workers.map(({ workerId, facts }) => ({ workerId, version: facts?.version ?? '0.1.0 or older' }));
  return new ShoalError(
    'JOB_VERSION_UNKNOWN',
    `${what} needs workers that read jobs of version 2, and ${queue} is served by ` +
      `${named.map((worker) => `"${worker.workerId}" of Shoal ${worker.version}`).join(', ')}, which ` +
      `${named.length === 1 ? 'does' : 'do'} not: update or drain ${named.length === 1 ? 'it' : 'them'}, or ask without`,
    { queue, version: 2, workers: named },
  );
}

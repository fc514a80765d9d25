// What needs somebody: each a sentence about what was found and what to do, worst first. The same states are what
// docs/operations.md has alerts for. Pure.

import { counted, spanText } from '../page/words.ts';
import { waitingIn, type FleetReading, type QueueReading } from './fleet-reading.ts';

export interface Notice {
  readonly isSerious: boolean;
  readonly text: string;
  /** A command that mends it, or begins to. */
  readonly command?: string;
  /** A page of this dashboard about it. */
  readonly link?: { readonly href: string; readonly text: string };
}

export function noticesOf(reading: FleetReading): readonly Notice[] {
  const notices = [...reading.queues.flatMap(ofQueue), ...ofGone(reading)];
  return notices.toSorted((a, b) => Number(b.isSerious) - Number(a.isSerious));
}

function ofQueue(reading: QueueReading): readonly Notice[] {
  const { queue, problem, quarantined } = reading;
  if (problem !== undefined) return [{ isSerious: true, text: `${queue} cannot be read: ${problem}` }];
  return [...ofServing(reading), ...ofWorkers(reading), ...(quarantined > 0 ? [ofQuarantine(queue, quarantined)] : [])];
}

function ofServing({ queue, lanes, workers, isAllDrained }: QueueReading): readonly Notice[] {
  const waiting = lanes.reduce((sum, lane) => sum + waitingIn(lane), 0);
  const wait = counted(waiting, 'job waits', 'jobs wait');
  if (lanes.some(({ isPaused }) => isPaused))
    return [{ isSerious: true, text: `${queue} is paused, ${wait}`, command: `shoal queue resume --queue ${queue}` }];
  const command = `shoal fleet resume all --queue ${queue}`;
  if (isAllDrained || (workers.length > 0 && workers.every(({ isDrained }) => isDrained)))
    return [{ isSerious: waiting > 0, text: `all workers of ${queue} are drained, ${wait}`, command }];
  if (workers.length === 0 && waiting > 0)
    return [{ isSerious: true, text: `no worker serves ${queue}, ${wait}`, command: 'shoal worker' }];
  return [];
}

function ofWorkers({ queue, workers }: QueueReading): readonly Notice[] {
  return workers.flatMap(({ workerId, state, reason }): Notice[] => {
    if (state === 'braked') return [{ isSerious: true, text: `${workerId} of ${queue} is braked: ${reason}` }];
    return state === 'starting' ? [{ isSerious: false, text: `${workerId} of ${queue} is not ready: ${reason}` }] : [];
  });
}

function ofQuarantine(queue: string, quarantined: number): Notice {
  return {
    isSerious: false,
    text: `${counted(quarantined, 'job is', 'jobs are')} in quarantine of ${queue}: each killed its executor, or seemed to`,
    command: `shoal queue quarantine list --queue ${queue}`,
    link: { href: `/quarantine?queue=${encodeURIComponent(queue)}`, text: 'look at them' },
  };
}

function ofGone({ gone, queues, atMs }: FleetReading): readonly Notice[] {
  return gone.map(({ workerId, owner, steps }): Notice => {
    const { queue = '', device = '', host = '' } = owner ?? {};
    const since = spanText(atMs - (steps.at(-1)?.atMs ?? atMs));
    const successor = queues
      .flatMap(({ workers }) => workers)
      .find((worker) => nameOf(worker.workerId) === nameOf(workerId));
    const what = `${workerId} (${device} on ${host}) of ${queue} died without a word, last heard of ${since} ago`;
    return successor === undefined
      ? { isSerious: true, text: `${what}; what it had claimed goes to others`, command: 'shoal worker' }
      : { isSerious: false, text: `${what}; ${successor.workerId} took its place` };
  });
}

/** An id is the name of a worker over all its lives, and eight digits of this one. */
function nameOf(workerId: string): string {
  return workerId.replace(/-[0-9a-f]{8}$/, '');
}

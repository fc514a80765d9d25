// What needs somebody: each a sentence about what was found and what to do, worst first. The same states are what
// docs/operations.md has alerts for. Pure.

import { lossesIn, reasonsText, successorOf, totalOf, type ExecutorLosses, type SurveyedQueue } from '@shoal/queue';
import { counted, spanText } from '../page/words.ts';
import { payloadsOf } from './payloads.ts';
import { waitingIn, type FleetReading, type QueueReading } from './fleet-reading.ts';

export interface Notice {
  readonly isSerious: boolean;
  readonly text: string;
  /** A command that mends it, or begins to. */
  readonly command?: string;
  /** The page of docs/runbooks that is about it, by its name. */
  readonly runbook?: string;
  /** A page of this dashboard about it. */
  readonly link?: { readonly href: string; readonly text: string };
}

/** More in ten minutes, and somebody is told of it: the alert ShoalExecutorLosses. */
const MOST_LOSSES = 3;

export function noticesOf(reading: FleetReading): readonly Notice[] {
  const losses = [...reading.histories.values()].map(lossesIn).filter(({ count }) => count > 0);
  const notices = [
    ...ofCells(reading),
    ...reading.queues.flatMap(ofQueue),
    ...ofGone(reading),
    ...ofPayloads(reading),
    ...losses.map(ofLosses),
  ];
  return notices.toSorted((a, b) => Number(b.isSerious) - Number(a.isSerious));
}

function ofCells({ cells = [] }: FleetReading): readonly Notice[] {
  return cells.flatMap(({ name, isHome, seen }) => {
    if (seen === undefined)
      return [
        {
          isSerious: true,
          text: `the cell ${name} does not answer: what waits there waits, new work goes to the others`,
        },
      ];
    if (isHome || seen.workers > 0 || seen.waiting === 0) return []; // of home its queues tell
    return [
      {
        isSerious: true,
        text:
          `the cell ${name} has no worker, and ${counted(seen.waiting, 'job waits', 'jobs wait')} there: start its ` +
          'workers; idle ones of other cells run bulk of it, where they are told of the list',
      },
    ];
  });
}

function ofQueue(reading: QueueReading): readonly Notice[] {
  const { queue, problem, quarantined, lanes } = reading;
  if (problem !== undefined) return [{ isSerious: true, text: `${queue} cannot be read: ${problem}` }];
  return [
    ...ofServing(reading),
    ...ofWorkers(reading),
    ...(quarantined > 0 ? [ofQuarantine(queue, quarantined)] : []),
    ...lanes.flatMap(ofParked),
  ];
}

function ofServing({ queue, lanes, workers, isAllDrained }: QueueReading): readonly Notice[] {
  const waiting = lanes.reduce((sum, lane) => sum + waitingIn(lane), 0);
  const wait = counted(waiting, 'job waits', 'jobs wait');
  if (lanes.some(({ isPaused }) => isPaused))
    return [
      {
        isSerious: true,
        text: `${queue} is paused, ${wait}`,
        command: `shoal queue resume --queue ${queue}`,
        runbook: 'queue-paused',
      },
    ];
  const command = `shoal fleet resume all --queue ${queue}`;
  if (isAllDrained || (workers.length > 0 && workers.every(({ isDrained }) => isDrained)))
    return [
      { isSerious: waiting > 0, text: `all workers of ${queue} are drained, ${wait}`, command, runbook: 'all-drained' },
    ];
  if (workers.length === 0 && waiting > 0)
    return [
      {
        isSerious: true,
        text: `no worker serves ${queue}, ${wait}`,
        command: 'shoal worker',
        runbook: 'nobody-serves',
      },
    ];
  return [];
}

function ofWorkers({ queue, workers }: QueueReading): readonly Notice[] {
  return workers.flatMap(({ workerId, state, reason }): Notice[] => {
    if (state === 'braked')
      return [{ isSerious: true, text: `${workerId} of ${queue} is braked: ${reason}`, runbook: 'claiming-braked' }];
    if (state !== 'starting') return [];
    return [{ isSerious: false, text: `${workerId} of ${queue} is not ready: ${reason}`, runbook: 'worker-not-ready' }];
  });
}

function ofQuarantine(queue: string, quarantined: number): Notice {
  return {
    isSerious: false,
    text: `${counted(quarantined, 'job is', 'jobs are')} in quarantine of ${queue}: each killed its executor, or seemed to`,
    command: `shoal queue quarantine list --queue ${queue}`,
    runbook: 'quarantined',
    link: { href: `/quarantine?queue=${encodeURIComponent(queue)}`, text: 'look at them' },
  };
}

function ofParked({ queue, parked }: SurveyedQueue): readonly Notice[] {
  const count = totalOf(parked);
  if (count === 0) return [];
  const text =
    `${counted(count, 'job', 'jobs')} of ${queue} ${count === 1 ? 'is' : 'are'} parked: newer (version ` +
    `${Object.keys(parked).join(', ')}) than what the workers that met them read; newer workers take them at once`;
  return [{ isSerious: false, text, runbook: 'jobs-parked' }];
}

function ofLosses(losses: ExecutorLosses): Notice {
  const { workerId, count } = losses;
  return {
    isSerious: count > MOST_LOSSES,
    text: `${workerId} lost its executor ${count === 1 ? 'once' : `${count} times`} in ten minutes: ${reasonsText(losses)}`,
    runbook: 'executor-losses',
  };
}

/** Nothing is lost meanwhile: the queue server carries it. */
function ofPayloads({ queues, payloadsHere }: FleetReading): readonly Notice[] {
  const { troubles = [] } = payloadsOf(queues, payloadsHere) ?? {};
  return troubles.map((text) => ({ isSerious: false, text, command: 'shoal doctor' }));
}

function ofGone({ gone, queues, atMs }: FleetReading): readonly Notice[] {
  return gone.map(({ workerId, owner, steps }): Notice => {
    const { queue = '', device = '', host = '' } = owner ?? {};
    const since = spanText(atMs - (steps.at(-1)?.atMs ?? atMs));
    const live = queues.flatMap(({ workers }) => workers.map((worker) => worker.workerId));
    const successor = successorOf(workerId, live);
    const what = `${workerId} (${device} on ${host}) of ${queue} died without a word, last heard of ${since} ago`;
    return successor === undefined
      ? {
          isSerious: true,
          text: `${what}; what it had claimed goes to others`,
          command: 'shoal worker',
          runbook: 'worker-down',
        }
      : { isSerious: false, text: `${what}; ${successor} took its place` };
  });
}

// What `shoal doctor` says of the queues and their workers: one finding a check over all queues of the prefix. Pure.

import type { FleetView, LiveWorker } from '@shoal/queue';
import type { Finding } from '@shoal/worker';
import { ok } from './server-checks.ts';

export interface QueueSeen {
  readonly queue: string;
  readonly view: FleetView;
}

export interface FleetFacts {
  /** This command's own version. */
  readonly version: string;
  readonly queues: readonly QueueSeen[];
  /** False where there are more than were looked into. */
  readonly isWhole: boolean;
}

/** Interactive work that waits longer is not interactive. */
const LONG_INTERACTIVE_MS = 60_000;
const MOST_QUEUES_NAMED = 5;

type Check = (fleet: FleetFacts) => Finding;

export const FLEET_CHECKS: readonly Check[] = [
  ({ queues, isWhole }) => ({
    about: 'queues',
    state: isWhole ? 'ok' : 'warning',
    found: `${queues.length === 0 ? 'none yet' : queues.map(({ queue }) => queue).join(', ')}${isWhole ? '' : ' and more'}`,
    ...(isWhole ? {} : { cure: 'the first fifty were looked into; shoal fleet status --all shows every one' }),
  }),
  (fleet) => {
    const workers = workersOf(fleet);
    return ok('workers', workers.length === 0 ? 'none is alive' : `${workers.length} alive`);
  },
  (fleet) => {
    const versions = [...Map.groupBy(workersOf(fleet), ({ facts }) => facts?.version ?? '0.1.0 or unknown')];
    const found = versions.map(([version, workers]) => `${version}: ${workers.length}`).join(', ') || 'no workers';
    if (versions.length < 2) return ok('versions of workers', found);
    return {
      about: 'versions of workers',
      state: 'warning',
      found,
      cure: 'finish the upgrade (shoal fleet restart --rolling); newer jobs wait for newer workers',
    };
  },
  ({ queues }) =>
    perQueue(
      'queues that nobody serves',
      queues.filter(({ view }) => waitingIn(view) > 0 && view.workers.length + view.starting.length === 0),
      ({ queue, view }) => `${queue} (${waitingIn(view).toLocaleString('en')} waiting)`,
      { state: 'broken', cure: 'start a worker for each (shoal worker --model NAME), or cancel what waits there' },
    ),
  ({ queues }) =>
    perQueue(
      'paused queues',
      queues.filter(({ view }) => view.lanes.main.isPaused || view.lanes.cpu.isPaused),
      ({ queue, view }) => `${queue} (${waitingIn(view).toLocaleString('en')} waiting)`,
      { state: 'warning', cure: 'shoal queue resume --queue NAME, if the reason is over; shoal audit says who paused' },
    ),
  (fleet) =>
    perWorker(
      'drained workers',
      workersOf(fleet).filter(({ isDrained }) => isDrained),
      'shoal fleet resume ID; shoal audit says who drained',
    ),
  ({ queues }) =>
    perQueue(
      'queues drained as a whole',
      queues.filter(({ view }) => view.isAllDrained),
      ({ queue }) => queue,
      {
        state: 'warning',
        cure: 'shoal fleet resume all --queue NAME; workers that start later are drained too until then',
      },
    ),
  (fleet) =>
    perWorker(
      'braked workers',
      workersOf(fleet).filter(({ state }) => state === 'braked'),
      'fetch results, or give the queue server memory',
    ),
  (fleet) =>
    perWorker(
      'workers without an executor',
      workersOf(fleet).filter(({ state }) => state === 'starting'),
      'their log says why the executor died; shoal queue quarantine list says which jobs it was',
    ),
  (fleet) =>
    perWorker(
      'workers that tell nothing',
      workersOf(fleet).filter(({ facts }) => facts === undefined),
      'they are of another version, or their facts cannot be read: restart them',
    ),
  (fleet) => {
    const named = workersOf(fleet).filter(({ facts }) => facts?.name !== undefined);
    const twice = [...Map.groupBy(named, ({ facts, lanes }) => `${facts?.name} ${facts?.model} ${lanes.join('+')}`)];
    return perWorker(
      'names of workers',
      twice.flatMap(([, workers]) => (workers.length > 1 ? workers : [])),
      'give each a workerName of its own: what a worker left behind goes back only to a queue that knows whose it was',
    );
  },
  ({ queues }) =>
    perQueue(
      'quarantine',
      queues.filter(({ view: { quarantined = 0 } }) => quarantined > 0),
      ({ queue, view }) => `${queue} (${view.quarantined?.toLocaleString('en')})`,
      { state: 'warning', cure: 'shoal queue quarantine list --queue NAME, then return or drop' },
    ),
  ({ queues }) =>
    perQueue(
      'waits of interactive jobs',
      queues.filter(({ view }) => oldestInteractive(view) > LONG_INTERACTIVE_MS),
      ({ queue, view }) => `${queue} (${Math.round(oldestInteractive(view) / 1_000)} s)`,
      { state: 'warning', cure: 'more workers, or see what is in the way: shoal fleet status --queue NAME' },
    ),
  ({ queues }) =>
    perQueue(
      'CPU lanes',
      queues.filter(
        ({ view: { lanes, workers } }) => lanes.cpu.waiting > 0 && !workers.some((one) => one.lanes.includes('cpu')),
      ),
      ({ queue, view }) => `${queue} (${view.lanes.cpu.waiting.toLocaleString('en')} waiting)`,
      { state: 'warning', cure: 'shoal worker --device cpu takes what no GPU has memory for' },
    ),
];

export function checkFleet(fleet: FleetFacts): Finding[] {
  return FLEET_CHECKS.map((check) => check(fleet));
}

function workersOf({ queues }: FleetFacts): LiveWorker[] {
  return queues.flatMap(({ view }) => view.workers);
}

function waitingIn({ lanes }: FleetView): number {
  return lanes.main.waiting + lanes.cpu.waiting;
}

function oldestInteractive({ lanes }: FleetView): number {
  return Math.max(lanes.main.oldestWaitingMs.interactive, lanes.cpu.oldestWaitingMs.interactive);
}

function perQueue(
  about: string,
  queues: readonly QueueSeen[],
  named: (queue: QueueSeen) => string,
  { state, cure }: { readonly state: 'warning' | 'broken'; readonly cure: string },
): Finding {
  return queues.length === 0 ? ok(about, 'none') : { about, state, found: listed(queues.map(named)), cure };
}

function perWorker(about: string, workers: readonly LiveWorker[], cure: string): Finding {
  if (workers.length === 0) return ok(about, about === 'names of workers' ? 'each has its own' : 'none');
  return { about, state: 'warning', found: listed(workers.map(({ workerId }) => workerId)), cure };
}

function listed(names: readonly string[]): string {
  const more = names.length - MOST_QUEUES_NAMED;
  return `${names.slice(0, MOST_QUEUES_NAMED).join(', ')}${more > 0 ? ` and ${more} more` : ''}`;
}

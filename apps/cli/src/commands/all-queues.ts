// `shoal fleet status --all` and `shoal queue counts --all`: the same over every queue of the prefix, as one table of
// queues and one of workers. A queue that cannot be read is named with why, and the others are shown.

import { ShoalError } from '@shoal/contract';
import {
  Fleet,
  QueueAdmin,
  QueueLook,
  readLately,
  totalOf,
  type FleetView,
  type PayloadsSeen,
  type QueueCounts,
} from '@shoal/queue';
import { withRunningServer, type RunningQueue } from '../processes/running-queue.ts';
import { table } from '../table.ts';
import { print, say, type Terminal } from '../terminal.ts';
import { settingsOf } from '../settings.ts';
import { describePayloads, payloadsHere, payloadsIn } from './fleet-payloads.ts';
import { describeWorkers, latelyIn, leftOf, unlooked, warningsOf, type FleetFlags } from './fleet.ts';
import { describe as describeCounts, type QueueFlags } from './queue.ts';

interface Read<Value> {
  readonly queue: string;
  readonly value: Value;
}

interface ReadAll<Value> {
  readonly read: readonly Read<Value>[];
  readonly problems: readonly { readonly queue: string; readonly problem: string }[];
}

/** So many queues are asked at once, each over a connection of its own. */
const AT_ONCE = 8;

export async function statusOfAll(terminal: Terminal, flags: FleetFlags): Promise<void> {
  await overAll(terminal, flags, readFleet, async ({ read: views, problems }, server) => {
    const [lately, here] = await Promise.all([readLately(server), payloadsHere(await settingsOf(terminal, flags))]);
    const read = views.map(({ queue, value }) => {
      const payloads = payloadsIn(value, here);
      return { queue, value: { ...value, ...latelyIn(value, lately), ...(payloads !== undefined && { payloads }) } };
    });
    const warnings = read.flatMap(({ queue, value }) => warningsOf(value).map((warning) => ({ queue, warning })));
    if (flags.json === true) {
      const queues = read.map(({ queue, value }) => ({ queue, ...value, warnings: warningsOf(value) }));
      return print(terminal, `${JSON.stringify({ queues, problems }, null, 1)}\n`);
    }
    await print(terminal, describeAll(read));
    for (const { queue, value } of read) {
      const left = leftOf(value);
      if (left !== '') await print(terminal, `${queue}: ${left}`);
    }
    for (const { queue, warning } of warnings)
      await print(terminal, `! ${warning.includes(queue) ? '' : `${queue}: `}${warning}\n`);
    for (const { queue, problem } of problems) await print(terminal, `! ${queue}: ${problem}\n`);
    for (const warning of unlooked(lately)) await print(terminal, `! ${warning}\n`);
  });
}

export async function countsOfAll(terminal: Terminal, flags: QueueFlags): Promise<void> {
  await overAll(terminal, flags, readCounts, async ({ read, problems }) => {
    if (flags.json === true) {
      const queues = read.map(({ queue, value }) => ({ queue, ...value }));
      return print(terminal, `${JSON.stringify({ queues, problems })}\n`);
    }
    await print(terminal, read.map(({ value }) => describeCounts(value)).join('\n'));
    for (const { queue, problem } of problems) await print(terminal, `! ${queue}: ${problem}\n`);
  });
}

async function overAll<Value>(
  terminal: Terminal,
  flags: QueueFlags,
  readOne: (place: RunningQueue) => Promise<Value>,
  show: (all: ReadAll<Value>, server: Omit<RunningQueue, 'queue'>) => Promise<void>,
): Promise<void> {
  if (flags.queue !== undefined)
    throw new ShoalError('USAGE', '--all is about every queue of the prefix, --queue about one: say one of both');
  await withRunningServer(terminal, flags, async (server) => {
    const look = await QueueLook.connect(server);
    const queues = await look.queues().finally(() => look.close());
    const all = await readAll(
      queues.map((queue) => ({ ...server, queue })),
      readOne,
    );
    await show(all, server);
    if (flags.quiet === true || flags.json === true) return;
    if (queues.length === 0) say(terminal, `there are no queues under the prefix ${server.prefix}`);
  });
}

async function readAll<Value>(
  places: readonly RunningQueue[],
  readOne: (place: RunningQueue) => Promise<Value>,
): Promise<ReadAll<Value>> {
  const read: Read<Value>[] = [];
  const problems: { queue: string; problem: string }[] = [];
  for (let at = 0; at < places.length; at += AT_ONCE) {
    const group = places.slice(at, at + AT_ONCE);
    const answers = await Promise.allSettled(group.map((place) => readOne(place)));
    for (const [index, answer] of answers.entries()) {
      const queue = group[index]!.queue;
      if (answer.status === 'fulfilled') read.push({ queue, value: answer.value });
      else
        problems.push({
          queue,
          problem: answer.reason instanceof Error ? answer.reason.message : String(answer.reason),
        });
    }
  }
  return { read, problems };
}

async function readFleet(place: RunningQueue): Promise<FleetView> {
  const fleet = await Fleet.connect(place);
  return fleet.read().finally(() => fleet.close());
}

async function readCounts(place: RunningQueue): Promise<QueueCounts> {
  const admin = await QueueAdmin.connect(place);
  return admin.counts().finally(() => admin.close());
}

const QUEUE_HEAD = [
  'QUEUE',
  'WAITING',
  'ACTIVE',
  'DELAYED',
  'PARKED',
  'FAILED',
  'QUARANTINED',
  'OLDEST INTERACTIVE',
  'OLDEST BULK',
  'WORKERS',
];

function describeAll(read: readonly Read<FleetView & { readonly payloads?: PayloadsSeen }>[]): string {
  const queues = read.map(({ queue, value: { lanes, workers, starting, quarantined } }) => {
    const both = Object.values(lanes);
    const sum = (count: (lane: FleetView['lanes']['main']) => number): string =>
      both.reduce((total, lane) => total + count(lane), 0).toLocaleString('en');
    const oldest = (name: 'interactive' | 'bulk'): string => {
      const ms = Math.max(...both.map((lane) => lane.oldestWaitingMs[name]));
      return ms === 0 ? '-' : `${(ms / 1_000).toFixed(1)} s`;
    };
    const byState = Map.groupBy([...workers, ...starting.map(() => ({ state: 'starting' }))], ({ state }) => state);
    return [
      `${queue}${lanes.main.isPaused ? ' (paused)' : ''}`,
      sum((lane) => lane.waiting),
      sum((lane) => lane.active),
      sum((lane) => lane.delayed),
      sum((lane) => totalOf(lane.parked)),
      sum((lane) => lane.failed),
      (quarantined ?? 0).toLocaleString('en'),
      oldest('interactive'),
      oldest('bulk'),
      [...byState].map(([state, some]) => `${some.length} ${state}`).join(', ') || 'none',
    ];
  });
  const served = read.filter(({ value }) => value.workers.length + value.starting.length > 0);
  const workers = served.map(
    ({ queue, value }) => `${queue}\n${describeWorkers(value)}${describePayloads(value.payloads, value)}`,
  );
  return [table(QUEUE_HEAD, queues), ...workers].join('\n');
}

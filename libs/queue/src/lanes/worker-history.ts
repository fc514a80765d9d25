// What workers did lately, kept on the queue server for whoever looks at the fleet: a stream a worker, an entry every ten
// seconds, an hour of them at most. The stream outlives its worker for that hour, so that one that died is still to be
// seen; one that left in order says so in its last entry. Nothing is decided by it.

import { keySpace } from '@shoal/contract';
import { HISTORY_EVENTS, type HistoryStep, type RanBatch } from '@shoal/core';
import type { Redis } from '../redis/connection.ts';
import { literally } from '../redis/scan-pattern.ts';

/** Whose history it is, in each entry: a worker that died tells nothing else any more. */
export interface HistoryOwner {
  /** The main lane. */
  readonly queue: string;
  readonly device: string;
  readonly host: string;
}

/** What was read; what an entry of another version does not have is 0 or empty. */
export interface ReadStep extends HistoryStep {
  /** When it ended, epoch ms by the server's clock. */
  readonly atMs: number;
  /** The worker left in order after it. */
  readonly isLast: boolean;
}

export interface WorkerHistory {
  readonly workerId: string;
  readonly owner: HistoryOwner | undefined;
  /** Oldest first. */
  readonly steps: readonly ReadStep[];
}

/** Steps of an hour. A stream is cut in whole blocks of a hundred entries. */
const MOST_STEPS = 360;
const LIFE_MS = 3_600_000;
const SCAN_STEP = 5_000;

/** Adds a step. `isLast`: the worker leaves. */
export async function appendStep(
  connection: Redis,
  { prefix, workerId }: { readonly prefix: string; readonly workerId: string },
  owner: HistoryOwner,
  step: HistoryStep,
  isLast = false,
): Promise<void> {
  const key = keySpace(prefix).history(workerId);
  const text = JSON.stringify({ ...owner, ...step, ...(isLast ? { isLast } : {}) });
  await Promise.all([
    connection.xadd(key, 'MAXLEN', '~', MOST_STEPS, '*', 'step', text),
    connection.pexpire(key, LIFE_MS),
  ]);
}

/** The last `lengthMs` of a worker before `nowMs`, the server's time; no steps where it told none. */
export async function readHistory(
  connection: Redis,
  { prefix, workerId }: { readonly prefix: string; readonly workerId: string },
  { nowMs, lengthMs }: { readonly nowMs: number; readonly lengthMs: number },
): Promise<WorkerHistory> {
  const first = String(Math.max(0, Math.floor(nowMs - lengthMs)));
  const entries = await connection.xrevrange(keySpace(prefix).history(workerId), '+', first, 'COUNT', MOST_STEPS);
  const read = entries.flatMap(([id, fields]) => readEntry(id, fields) ?? []).toReversed();
  return { workerId, owner: read.at(-1)?.owner, steps: read.map(({ step }) => step) };
}

/**
 * Ids of workers that told anything in the last hour, dead ones too. Reads every key name of the server, or as many as
 * `mostScans` steps of 5,000 reach.
 */
export async function workersWithHistory(
  connection: Redis,
  prefix: string,
  mostScans = Number.POSITIVE_INFINITY,
): Promise<{ readonly workerIds: readonly string[]; readonly isWhole: boolean }> {
  const start = keySpace(prefix).history('');
  const found = new Set<string>();
  let cursor = '0';
  let scans = 0;
  do {
    const [next, keys] = await connection.scan(
      cursor,
      'MATCH',
      `${literally(start)}*`,
      'COUNT',
      SCAN_STEP,
      'TYPE',
      'stream',
    );
    for (const key of keys) found.add(key.slice(start.length));
    cursor = next;
  } while (cursor !== '0' && ++scans < mostScans);
  return { workerIds: [...found].sort(), isWhole: cursor === '0' };
}

/** Written by a worker of this or another version. */
function readEntry(
  id: string,
  fields: readonly string[],
): { readonly owner: HistoryOwner; readonly step: ReadStep } | undefined {
  try {
    const told: unknown = JSON.parse(fields[fields.indexOf('step') + 1] ?? 'null');
    if (typeof told !== 'object' || told === null) return undefined;
    const field = (name: string): unknown => Reflect.get(told, name);
    const number = (name: string): number => numberOf(field(name));
    const text = (name: string): string => (typeof field(name) === 'string' ? String(field(name)) : '');
    const slowest = slowestOf(field('slowest'));
    return {
      owner: { queue: text('queue'), device: text('device'), host: text('host') },
      step: {
        v: 1,
        atMs: Number(id.split('-')[0]),
        isLast: field('isLast') === true,
        ms: Math.max(1, number('ms')),
        jobs: number('jobs'),
        texts: number('texts'),
        tokens: number('tokens'),
        padded: number('padded'),
        runs: number('runs'),
        busyMs: number('busyMs'),
        batches: batchesOf(field('batches')),
        events: eventsOf(field('events')),
        ...(slowest === undefined ? {} : { slowest }),
      },
    };
  } catch {
    return undefined;
  }
}

function numberOf(value: unknown): number {
  return typeof value === 'number' && value >= 0 ? value : 0;
}

function batchOf(value: unknown): RanBatch | undefined {
  if (!Array.isArray(value) || value.length < 4) return undefined;
  const [rows, width, tokens, runMs] = value.map(numberOf) as [number, number, number, number];
  return [rows, width, tokens, runMs];
}

function batchesOf(value: unknown): readonly RanBatch[] {
  return Array.isArray(value) ? value.map(batchOf).filter((batch) => batch !== undefined) : [];
}

function slowestOf(value: unknown): HistoryStep['slowest'] {
  if (typeof value !== 'object' || value === null) return undefined;
  const batch = batchOf(Reflect.get(value, 'batch'));
  const jobIds: unknown = Reflect.get(value, 'jobIds');
  if (batch === undefined) return undefined;
  return { batch, jobs: numberOf(Reflect.get(value, 'jobs')), jobIds: Array.isArray(jobIds) ? jobIds.map(String) : [] };
}

function eventsOf(value: unknown): Readonly<Record<string, number>> {
  if (typeof value !== 'object' || value === null) return {};
  const known = new Set<string>(HISTORY_EVENTS);
  const entries = Object.entries(value).filter(([name, count]) => known.has(name.split(' ')[0] ?? '') && count > 0);
  return Object.fromEntries(entries.map(([name, count]) => [name, numberOf(count)]));
}

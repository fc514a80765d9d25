// Whose jobs wait in a queue: the tenants with most of it. What is reserved is exact, from what producers told; jobs of
// plain BullMQ reserve nothing, so the line is looked at as well, up to a bound, which also tells ages and tokens.
// Reads only.

import { INTERACTIVE_ROWS, cpuLaneOf, keySpace } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { inParts } from '../redis/in-parts.ts';
import { runScript } from '../redis/script.ts';
import { serverTime } from '../redis/server-time.ts';
import { translated } from '../redis/translated.ts';
import type { QueuePlace } from '../upkeep/queue-keys.ts';
import { WEIGH_JOBS } from './lua/scripts.generated.ts';

export interface TenantLoad {
  readonly tenant: string;
  /** Rows that wait or run, as producers reserved room for them. */
  readonly reservedRows: number;
  /** Bytes of inputs and results, in all queues of the prefix. */
  readonly reservedBytes: number;
  /** Of what was looked at: jobs that wait, their rows, and their tokens as far as producers told them. */
  readonly jobs: number;
  readonly rows: number;
  readonly tokens: number;
  /** How long its oldest waiting job has waited, ms, by class; 0 where none was seen. */
  readonly oldestMs: { readonly interactive: number; readonly bulk: number };
}

export interface Tenants {
  readonly queue: string;
  /** Those with most waiting rows first. */
  readonly tenants: readonly TenantLoad[];
  /** Jobs that wait in both lanes. */
  readonly waiting: number;
  /** How many of them were looked at: the first in line. */
  readonly seen: number;
}

export interface WeighedJob {
  readonly tenant: string;
  readonly class: 'interactive' | 'bulk';
  /** 0 where they were not counted. */
  readonly rows: number;
  readonly tokens: number;
  /** Epoch ms. */
  readonly sinceMs: number;
}

/** Some 40 ms of the server's time, in steps of one. */
const MOST_LOOKED_AT = 20_000;
const STEP_JOBS = 200;

interface Sums {
  jobs: number;
  rows: number;
  tokens: number;
  interactive: number;
  bulk: number;
}

/** Throws QUEUE_UNREACHABLE. */
export function readTenants(connection: Redis, place: QueuePlace, mostJobs: number = MOST_LOOKED_AT): Promise<Tenants> {
  return translated(async () => {
    const { prefix, queue } = place;
    const lanes = [queue, cpuLaneOf(queue)];
    const [load, waiting, nowMs] = await Promise.all([
      connection.hgetall(keySpace(prefix).load()),
      Promise.all(lanes.map((lane) => countWaiting(connection, { prefix, queue: lane }))),
      serverTime(connection),
    ]);
    const sums = new Map<string, Sums>();
    let seen = 0;
    for (const lane of lanes)
      for await (const jobs of weighWaiting(connection, { prefix, queue: lane }, mostJobs - seen)) {
        seen += jobs.length;
        for (const job of jobs) count(sums, job, nowMs);
      }
    const reserved = reservedRows(load, queue);
    const names = [...new Set([...reserved.keys(), ...sums.keys()])];
    const tenants = names.map((tenant): TenantLoad => {
      const { jobs = 0, rows = 0, tokens = 0, interactive = 0, bulk = 0 } = sums.get(tenant) ?? {};
      const reservedBytes = Number(load[`bytes ${tenant}`] ?? 0);
      const oldestMs = { interactive, bulk };
      return { tenant, reservedRows: reserved.get(tenant) ?? 0, reservedBytes, jobs, rows, tokens, oldestMs };
    });
    tenants.sort((a, b) => b.rows - a.rows || b.reservedRows - a.reservedRows || (a.tenant < b.tenant ? -1 : 1));
    return { queue, tenants, waiting: waiting.reduce((sum, jobs) => sum + jobs, 0), seen };
  });
}

/** What these jobs of a lane are; undefined for one without a record. Up to 200 at once. */
export async function weighJobs(
  connection: Redis,
  { prefix, queue }: QueuePlace,
  jobIds: readonly string[],
): Promise<(WeighedJob | undefined)[]> {
  const jobs = keySpace(prefix).job(queue, '');
  const [reply] = await runScript(connection, WEIGH_JOBS, [
    [`${jobs}${jobIds[0] ?? ''}`, jobs, INTERACTIVE_ROWS, ...jobIds],
  ]);
  return jobIds.map((_, at) => weighed((reply as unknown[])[at]));
}

function weighed(found: unknown): WeighedJob | undefined {
  if (!Array.isArray(found)) return undefined;
  const [tenant, kind, rows, tokens, sinceMs] = found.map(String);
  return {
    tenant: tenant ?? '',
    class: kind === 'i' ? 'interactive' : 'bulk',
    rows: Number(rows),
    tokens: Number(tokens),
    sinceMs: Number(sinceMs),
  };
}

function count(sums: Map<string, Sums>, job: WeighedJob, nowMs: number): void {
  const own = sums.get(job.tenant) ?? { jobs: 0, rows: 0, tokens: 0, interactive: 0, bulk: 0 };
  sums.set(job.tenant, own);
  own.jobs++;
  own.rows += job.rows;
  own.tokens += job.tokens;
  own[job.class] = Math.max(own[job.class], Math.floor(nowMs) - job.sinceMs, 1); // 0 says that none was seen
}

/** Of `rows <queue> <tenant>`, by tenant. */
function reservedRows(load: Readonly<Record<string, string>>, queue: string): Map<string, number> {
  const start = `rows ${queue} `;
  return new Map(
    Object.entries(load).flatMap(([field, rows]) =>
      field.startsWith(start) && Number(rows) > 0 ? [[field.slice(start.length), Number(rows)] as const] : [],
    ),
  );
}

/** Of a lane, jobs that wait, with a place in line or without. */
export async function countWaiting(connection: Redis, { prefix, queue }: QueuePlace): Promise<number> {
  const { job } = keySpace(prefix);
  const counts = await Promise.all([
    connection.zcard(job(queue, 'prioritized')),
    connection.llen(job(queue, 'wait')),
    connection.llen(job(queue, 'paused')),
  ]);
  return counts.reduce((sum, one) => sum + one, 0);
}

/** The next in line first, then those without a place. */
async function* weighWaiting(connection: Redis, place: QueuePlace, most: number): AsyncGenerator<WeighedJob[]> {
  if (most < 1) return;
  const { job } = keySpace(place.prefix);
  const placed = await connection.zrange(job(place.queue, 'prioritized'), '0', String(most - 1));
  const left = most - placed.length;
  const lists = ['wait', 'paused'].map(async (name) =>
    left < 1 ? [] : (await connection.lrange(job(place.queue, name), -left, -1)).toReversed(),
  );
  const ids = [...placed, ...(await Promise.all(lists)).flat().slice(0, left)];
  for (const part of inParts(ids, STEP_JOBS))
    yield (await weighJobs(connection, place, part)).filter((one) => one !== undefined);
}

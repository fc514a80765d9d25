// `shoal queue why` and `queue tenants`: why one job is where it is, and whose jobs wait. Read only.

import { ShoalError } from '@shoal/contract';
import { QueueLook, type JobAnswer, type Tenants } from '@shoal/queue';
import { overCells } from '../processes/over-cells.ts';
import { withRunningQueue, withRunningServer, type RunningQueue } from '../processes/running-queue.ts';
import { table } from '../table.ts';
import { print, say, type Terminal } from '../terminal.ts';
import type { QueueFlags } from './queue.ts';

export interface TenantFlags extends QueueFlags {
  readonly top?: number;
}

const TOP = 20;

/** Over all queues of the prefix, unless one is named. Exit code 1 where nobody knows the id. */
export async function why(terminal: Terminal, jobId: string, flags: QueueFlags): Promise<void> {
  const only = flags.queue === undefined ? undefined : [flags.queue];
  await withRunningServer(terminal, flags, (place) =>
    withLook(place, async (look) => {
      const found = await look.why(jobId, only);
      await print(terminal, flags.json === true ? `${JSON.stringify(found)}\n` : asText(found));
      if (found.found.length === 0) throw new ShoalError('JOB_INVALID', found.why, { jobId });
    }),
  );
}

export async function tenants(terminal: Terminal, flags: TenantFlags): Promise<void> {
  await overCells(terminal, flags, tenantsHere);
}

async function tenantsHere(terminal: Terminal, flags: TenantFlags): Promise<void> {
  await withRunningQueue(terminal, flags, (place) =>
    withLook(place, async (look) => {
      const told = await look.tenants(place.queue);
      if (flags.json === true) return print(terminal, `${JSON.stringify(told)}\n`);
      const top = flags.top ?? TOP;
      await print(terminal, tenantTable(told, top));
      if (flags.quiet === true) return;
      const { tenants: all, waiting, seen } = told;
      if (all.length === 0) say(terminal, `no tenant has jobs that wait in ${place.queue}, or room that is reserved`);
      if (all.length > top) say(terminal, `${all.length - top} more with less; --top N shows more`);
      if (seen < waiting)
        say(
          terminal,
          `of ${waiting.toLocaleString('en')} jobs that wait the first ${seen.toLocaleString('en')} were looked at`,
        );
    }),
  );
}

async function withLook(place: Omit<RunningQueue, 'queue'>, use: (look: QueueLook) => Promise<void>): Promise<void> {
  const look = await QueueLook.connect(place);
  try {
    await use(look);
  } finally {
    await look.close();
  }
}

const TENANT_HEAD = ['TENANT', 'ROWS WAITING', 'JOBS', 'TOKENS', 'ROWS RESERVED', 'BYTES RESERVED'];

function count(value: number): string {
  return value === 0 ? '-' : value.toLocaleString('en');
}

export function tenantTable({ tenants: all }: Tenants, top: number): string {
  const lines = all
    .slice(0, top)
    .map(({ tenant, rows, jobs, tokens, reservedRows, reservedBytes, oldestMs }) => [
      tenant,
      ...[rows, jobs, tokens, reservedRows].map(count),
      reservedBytes === 0 ? '-' : `${(reservedBytes / 1e6).toFixed(1)} MB`,
      seconds(oldestMs.interactive),
      seconds(oldestMs.bulk),
    ]);
  return lines.length === 0 ? '' : table([...TENANT_HEAD, 'OLDEST INTERACTIVE', 'OLDEST BULK'], lines);
}

/** The sentence first, then what it was judged from. */
export function asText({ jobId, why: sentence, found }: JobAnswer): string {
  if (found.length === 0) return '';
  const parts = found.map(({ why: own, workers, memory, result, ...facts }) => {
    const lines = Object.entries(facts).flatMap(([name, value]) =>
      value === undefined || name === 'jobId' ? [] : [`  ${name}: ${plain(value)}`],
    );
    const others = [
      ...(result === undefined ? [] : [`  result: ${plain(result)}`]),
      ...workers.map(({ workerId, state, reason }) => `  worker ${workerId}: ${state}, ${reason}`),
      ...(memory === undefined
        ? []
        : [`  server: memory ${percent(memory.usedShare)}, unread results ${percent(memory.unreadShare)}`]),
    ];
    return [...(own === sentence ? [] : [`also: ${own}`]), ...lines, ...others].join('\n');
  });
  return `${jobId}: ${sentence}\n${parts.join('\n')}\n`;
}

function plain(value: unknown): string {
  if (typeof value !== 'object' || value === null)
    return typeof value === 'number' ? String(Math.round(value)) : String(value);
  return Object.entries(value)
    .flatMap(([name, one]) =>
      one === undefined ? [] : [`${name} ${typeof one === 'number' ? Math.round(one) : String(one)}`],
    )
    .join(', ');
}

function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}

function seconds(ms: number): string {
  return ms === 0 ? '-' : `${(ms / 1_000).toLocaleString('en', { maximumFractionDigits: 1 })} s`;
}

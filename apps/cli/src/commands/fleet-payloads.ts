// What `shoal fleet status` says of payload servers: which the workers have, how each fares as they see it and from here,
// and what became of bodies. Nothing where nobody has any.

import type { Settings } from '@shoal/core';
import {
  PayloadWatch,
  payloadsSeen,
  type FleetView,
  type PayloadServerSeen,
  type PayloadsHere,
  type PayloadsSeen,
} from '@shoal/queue';
import { age, table } from '../table.ts';

/** How those fare that the settings of this command name; undefined where they name none. Never rejects. */
export async function payloadsHere({
  payloadServers,
}: Pick<Settings, 'payloadServers'>): Promise<PayloadsHere | undefined> {
  if (payloadServers === undefined) return undefined;
  const watch = new PayloadWatch({ payloadServers, clientName: 'shoal:status' });
  return watch.read().finally(() => watch.close());
}

/** Of a queue for embedding; undefined for others, and where nobody has any. */
export function payloadsIn({ lanes, workers }: FleetView, here: PayloadsHere | undefined): PayloadsSeen | undefined {
  return lanes.main.queue.startsWith('embed-') ? payloadsSeen(workers, here) : undefined;
}

const HEAD = ['PAYLOAD SERVER', 'KIND', 'WORKERS', 'AS WORKERS SEE IT', 'FROM HERE', 'USED', 'OF'];
const WORKER_HEAD = ['WORKER', 'PAYLOAD SERVERS', 'RESULTS PUT THERE', 'BY THE QUEUE SERVER', 'INPUTS LOST THERE'];
const KINDS = { server: 'Valkey or Redis', bucket: 'bucket', folder: 'folder' } as const;

/** Two tables, or nothing. */
export function describePayloads(seen: PayloadsSeen | undefined, { workers, atMs }: FleetView): string {
  if (seen === undefined) return '';
  const servers = seen.servers.map((server) => [
    server.name,
    KINDS[server.kind],
    `${server.workers.length} of ${workers.length}`,
    asWorkersSee(server, atMs),
    fromHere(server),
    sizeOf(server.memory?.usedBytes),
    server.memory?.maxBytes === 0 ? 'no limit' : sizeOf(server.memory?.maxBytes),
  ]);
  const all = seen.servers.length;
  const bodies = workers.map(({ workerId, facts }) => {
    const names = facts?.payloadServers?.map(({ name }) => name);
    const has =
      names === undefined
        ? facts?.payloads === undefined
          ? 'none'
          : 'not told'
        : names.length === all
          ? `all ${all}`
          : names.join(', ');
    const { put, byQueueServer, lost } = facts?.bodies ?? {};
    return [workerId, has, ...[put, byQueueServer, lost].map((count) => count?.toLocaleString('en') ?? '-')];
  });
  const tables = [table(HEAD, servers), ...(bodies.length === 0 ? [] : [table(WORKER_HEAD, bodies)])];
  return `\n${tables.join('\n')}`;
}

function asWorkersSee({ workers, failing }: PayloadServerSeen, atMs: number | undefined): string {
  if (workers.length === 0) return 'no worker has it';
  if (failing.length === 0) return 'answers';
  const sinceMs = Math.min(...failing.map((one) => one.sinceMs ?? Number.POSITIVE_INFINITY));
  const span = atMs === undefined || !Number.isFinite(sinceMs) ? '' : ` for ${age(Math.max(0, atMs - sinceMs))}`;
  return `fails${failing.length === workers.length ? '' : ` with ${failing.length} of ${workers.length}`}${span}`;
}

function fromHere({ here }: PayloadServerSeen): string {
  if (here === undefined) return 'not in the settings here';
  const where = here.where === undefined ? '' : `, ${here.where}`;
  return `${here.problem === undefined ? 'answers' : 'fails'}${where}`;
}

function sizeOf(bytes: number | undefined): string {
  if (bytes === undefined) return '-';
  return bytes < 1e9 ? `${(bytes / 1e6).toPrecision(3)} MB` : `${(bytes / 1e9).toPrecision(3)} GB`;
}

// What serves a queue: the model that it is named after, or a simulation of it for a trial, never both under one prefix.
// Results lie on the server for their time to live and vectors do not show where they came from, so the queue is marked
// by the first worker for good, in the hash of `KeySpace.load`, beside the dimensions that workers tell there. A queue
// that has dimensions and no mark was served by an older version, which knew no simulation of this kind. Where the mark
// was lost with the server's memory, live workers still say what they are.

import { ShoalError, keySpace } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { translated } from '../redis/translated.ts';
import type { QueuePlace } from '../upkeep/queue-keys.ts';
import { liveFacts } from './fleet.ts';

export type QueueService = 'model' | 'simulation';

export interface EnterServiceOptions extends QueuePlace {
  readonly redisUrl: string;
  readonly log: Logger;
}

/** Whether a worker on such a device computes nothing. */
export function isSimulated(device: string): boolean {
  return device.startsWith('sim:');
}

/** To be called before anything is claimed. Throws CONFIG_INVALID where the other serves the queue, or served it. */
export async function enterService(service: QueueService, options: EnterServiceOptions): Promise<void> {
  const { redisUrl, prefix, queue, log } = options;
  const connection = await connected({ url: redisUrl, prefix, name: `shoal:service:${queue}`, log });
  try {
    const others = await translated(() => othersThan(service, connection, { prefix, queue }));
    if (others.length > 0) throw refusal(service, { prefix, queue }, others);
    const found = await translated(() => marked(connection, service, { prefix, queue }));
    if (found !== service) throw refusal(service, { prefix, queue }, []);
  } finally {
    await closeConnection(connection);
  }
}

/**
 * Undefined where no worker of this version has served the queue yet, or the mark is gone and no simulation is alive.
 * Throws QUEUE_UNREACHABLE.
 */
export async function queueService(
  connection: Redis,
  { prefix, queue }: QueuePlace,
): Promise<QueueService | undefined> {
  const found = await translated(() => connection.hget(keySpace(prefix).load(), markOf(queue)));
  if (found === 'simulation' || found === 'model') return found;
  const alive = await translated(() => othersThan('model', connection, { prefix, queue }));
  return alive.length > 0 ? 'simulation' : undefined;
}

/** What the queue is marked with now; the first worker's mark stays. */
async function marked(connection: Redis, service: QueueService, { prefix, queue }: QueuePlace): Promise<string | null> {
  const load = keySpace(prefix).load();
  if (service === 'simulation') {
    // in this order: a simulation marks the queue before it tells dimensions
    const hasDims = (await connection.hexists(load, `dims ${queue}`)) === 1;
    if (hasDims && (await connection.hget(load, markOf(queue))) === null) return 'model';
  }
  await connection.hsetnx(load, markOf(queue), service);
  return connection.hget(load, markOf(queue));
}

function markOf(queue: string): string {
  return `service ${queue}`;
}

/** Devices of live workers of the other kind. */
async function othersThan(
  service: QueueService,
  connection: Redis,
  { prefix, queue }: QueuePlace,
): Promise<readonly string[]> {
  const facts = await liveFacts(connection, queue, prefix);
  const devices = [...facts.values()].flatMap((one) => one?.device ?? []);
  return devices.filter((device) => isSimulated(device) !== (service === 'simulation'));
}

function refusal(service: QueueService, { prefix, queue }: QueuePlace, others: readonly string[]): ShoalError {
  const alive = others.length === 0 ? '' : ` (alive now: ${others.join(', ')})`;
  const message =
    service === 'simulation'
      ? `a simulated device may not serve ${queue} under the prefix ${prefix}: workers compute the model there, or ` +
        `did${alive}, and nobody could tell the vectors apart. Give the trial a prefix of its own, for its clients ` +
        'too: SHOAL_PREFIX={trial}, or --prefix; or a server of its own'
      : `no worker may compute the model for ${queue} under the prefix ${prefix}: a simulated device serves it there, ` +
        `or did (simServes)${alive}, and nobody could tell the vectors apart. Take another prefix (SHOAL_PREFIX or ` +
        '--prefix); docs/operations.md says how a trial ends';
  return new ShoalError('CONFIG_INVALID', message, { queue, prefix, service, alive: others });
}

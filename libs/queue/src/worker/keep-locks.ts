// Renewing locks without asking for memory. BullMQ renews by SET, which a server whose memory is full refuses: every
// claim would be lost after one lease, its work done again, and the results that could free memory never delivered.
// PEXPIRE is allowed there. Used only when BullMQ's own way was refused for that reason.

import { keySpace } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { RENEW_LOCK } from '../redis/lua/scripts.generated.ts';

export interface LocksToKeep {
  readonly prefix: string;
  readonly queue: string;
  readonly jobIds: readonly string[];
  /** One per job. */
  readonly tokens: readonly string[];
  readonly leaseMs: number;
}

/** The ids whose lock is no longer ours. */
export async function keepLocks(
  connection: Redis,
  { prefix, queue, jobIds, tokens, leaseMs }: LocksToKeep,
): Promise<string[]> {
  const keys = keySpace(prefix);
  const replies = await runScript(
    connection,
    RENEW_LOCK,
    jobIds.map((jobId, index) => [keys.lock(queue, jobId), tokens[index] ?? '', leaseMs]),
  );
  return jobIds.filter((_, index) => replies[index] !== 1);
}

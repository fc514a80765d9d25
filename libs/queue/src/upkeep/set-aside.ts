// What becomes of jobs that were set aside because no job may have their id: one that is sound goes into quarantine,
// under an id that is free, from where a person gives it back to its queue; anything else stays where it was moved to, and
// is named. Nothing runs unasked: its producer was told of another id, or of a failure.

import { isShoalError, keySpace, parseJob, parsePart, parseRerankJob, parseSimilarityJob } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import type { Quarantine } from './quarantine.ts';
import type { QueuePlace } from './queue-keys.ts';

export interface SetAsideReport {
  /** Sound jobs that are in quarantine now, by their ids there. */
  readonly quarantined: readonly string[];
  /** Keys that hold what was moved aside and is no sound job; for a person to look at and delete. */
  readonly kept: readonly string[];
}

const MOST_ID = 200;
/** Of records that were set aside in a queue, so many are looked at in one repair. */
const MOST_RECORDS = 10_000;

/** Sound jobs in quarantine, the rest by name. Entries behind which nothing lies are forgotten. May be repeated. */
export async function rescueSetAside(
  connection: Redis,
  { prefix, queue }: QueuePlace,
  quarantine: Quarantine,
): Promise<SetAsideReport> {
  const noted = keySpace(prefix).setAside(queue);
  const quarantined: string[] = [];
  const kept: string[] = [];
  for (const name of await connection.zrange(noted, '0', String(MOST_RECORDS - 1))) {
    const key = `${noted}:${name}`;
    const kind = await connection.type(key);
    const job = kind === 'hash' ? await soundJob(connection, key, name) : undefined;
    if (job !== undefined) {
      await quarantine.putRescued(queue, job, {
        code: 'JOB_INVALID',
        message: `the id "${job.inputOf.slice(0, 80)}" is a name that the queue keeps for itself; the job was set aside`,
      });
      await connection.unlink(key);
      quarantined.push(job.id);
    }
    if (job !== undefined || kind === 'none') await connection.zrem(noted, name);
    else kept.push(key);
  }
  return { quarantined, kept };
}

async function soundJob(
  connection: Redis,
  key: string,
  setAsideName: string,
): Promise<Parameters<Quarantine['putRescued']>[1] | undefined> {
  const [name, text] = await connection.hmget(key, 'name', 'data');
  if (typeof name !== 'string' || typeof text !== 'string') return undefined;
  const id = `set-aside~${setAsideName.replaceAll(':', '~').slice(-MOST_ID)}`;
  try {
    const data: unknown = JSON.parse(text);
    if (name === 'embed') parseJob(id, name, data);
    else if (name === 'part') parsePart(id, name, data);
    else if (name === 'rerank') parseRerankJob(id, name, data);
    else parseSimilarityJob(id, name, data);
    return { id, name, data, inputOf: setAsideName.slice(0, setAsideName.lastIndexOf(':')) };
  } catch (error) {
    if (isShoalError(error) || error instanceof SyntaxError) return undefined;
    throw error;
  }
}

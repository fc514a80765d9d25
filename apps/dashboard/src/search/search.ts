// Jobs by an id, or by the beginning of ids, over every queue, lane and quarantine.

import { ShoalError } from '@shoal/contract';
import { findJobs, type FoundJob, type Redis } from '@shoal/queue';

export interface Search {
  /** As it was typed. */
  readonly asked: string;
  readonly jobs: readonly FoundJob[];
  /** False: there may be more. */
  readonly isAll: boolean;
}

const MOST_FOUND = 200;
const MOST_ID_CHARACTERS = 256;

/**
 * `asked`: an id, or the beginning of some with "*" behind it. `queues`: main lanes. Throws USAGE for what is neither,
 * and QUEUE_UNREACHABLE.
 */
export async function searchJobs(
  connection: Redis,
  prefix: string,
  queues: readonly string[],
  asked: string,
): Promise<Search> {
  const text = asked.trim();
  if (text === '' || text === '*' || text.length > MOST_ID_CHARACTERS)
    throw new ShoalError('USAGE', 'type an id of 1 to 256 characters, or its beginning and * behind it');
  const beginning = text.replace(/\*$/, '');
  const lanes = queues.flatMap((queue) => [queue, `${queue}-cpu`, `${queue}-quarantine`]);
  const found = await Promise.all(lanes.map((queue) => findJobs(connection, { prefix, queue }, beginning)));
  const jobs = found.flatMap((one) => one.jobs).filter(({ jobId }) => text.endsWith('*') || jobId === text);
  const isAll = jobs.length <= MOST_FOUND && found.every((one) => one.isAll);
  return { asked: text, jobs: jobs.slice(0, MOST_FOUND), isAll };
}

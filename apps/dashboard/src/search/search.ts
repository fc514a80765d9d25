// A job by its id, with why it is where it is; or the jobs whose ids begin so. Over every queue, lane and quarantine,
// inputs and results that no job belongs to any more included.

import { ShoalError } from '@shoal/contract';
import { findJobs, whyOfJob, type FoundJob, type JobAnswer, type Redis } from '@shoal/queue';

export interface Search {
  /** As it was typed. */
  readonly asked: string;
  /** Of a whole id. */
  readonly answer?: JobAnswer;
  /** Of a beginning. */
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
  if (!text.endsWith('*'))
    return { asked: text, answer: await whyOfJob(connection, prefix, text, queues), jobs: [], isAll: true };
  const lanes = queues.flatMap((queue) => [queue, `${queue}-cpu`, `${queue}-quarantine`]);
  const found = await Promise.all(
    lanes.map((queue) => findJobs(connection, { prefix, queue }, text.slice(0, -1), { mostFound: MOST_FOUND })),
  );
  const jobs = found.flatMap((one) => one.jobs);
  const isAll = jobs.length <= MOST_FOUND && found.every((one) => one.isAll);
  return { asked: text, jobs: jobs.slice(0, MOST_FOUND), isAll };
}

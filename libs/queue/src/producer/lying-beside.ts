// What becomes of a job whose input and result may lie on payload servers: a large input is put there before the job is
// added, and the job says where it is and which servers its reader reads. What no server takes travels as ever. A job
// whose result is kept for longer than for a live reader stays with the queue server, which loses nothing.

import { INTERACTIVE_ROWS, LIVE_RESULT_TTL_MS, SUBMITTED_RESULT_TTL_MS, type EmbedJobData } from '@shoal/contract';
import { inputPlace, type PayloadServers } from '../payload/payload-servers.ts';
import { STAGED_FROM_BYTES } from '../redis/staging.ts';
import { fingerprintOf, type NewJob } from './new-job.ts';

export interface LyingBesideParts {
  readonly payloads: PayloadServers;
  readonly prefix: string;
  readonly queue: string;
}

/** The jobs as they are to be added, in order. Never throws. */
export function lyingBeside(jobs: readonly NewJob[], parts: LyingBesideParts): Promise<NewJob[]> {
  return Promise.all(
    jobs.map((job) => (readsPointers(job, parts.payloads) && !isSmall(job) ? placed(job, parts) : job)),
  );
}

/** Whether its reader follows pointers, and asks again where what they point to is lost. `payloads`: the reader's. */
export function readsPointers(
  { name = 'embed', data, mayLieBeside = false }: NewJob,
  payloads: PayloadServers | undefined,
): boolean {
  return payloads !== undefined && mayLieBeside && name === 'embed' && (data.resultTtlMs ?? 0) <= LIVE_RESULT_TTL_MS;
}

/** Some rows that somebody waits for are answered soonest by the queue server. */
function isSmall({ data, parsed }: NewJob): boolean {
  const isBulk = 'part' in data || data.class === 'bulk';
  return !isBulk && parsed !== undefined && parsed.rows <= INTERACTIVE_ROWS;
}

async function placed(job: NewJob, { payloads, prefix, queue }: LyingBesideParts): Promise<NewJob> {
  const { jobId, input } = job;
  const data: EmbedJobData = { ...(job.data as EmbedJobData), v: 2, payloads: payloads.id };
  if (input === undefined || !('input' in data) || input.length < STAGED_FROM_BYTES) return { ...job, data };
  const key = inputPlace(prefix, queue, jobId, fingerprintOf(job));
  const store = await payloads.put(jobId, key, input, SUBMITTED_RESULT_TTL_MS);
  if (store === undefined) return { ...job, data };
  payloads.note(jobId, { store, key });
  return { ...job, data: { ...data, input: { ...data.input, store } }, input: undefined };
}

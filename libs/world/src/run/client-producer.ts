// A program that uses the SDK, as a process of a world: one call of `embed` for each job, under an id of its own, asked
// again after its death until it has the vectors or is told why there are none. What happens to its jobs on the queue it
// does not see, so the history has only that it may have added them.

import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalClient } from '@shoal/client';
import { isShoalError, type ErrorCode } from '@shoal/contract';
import type { Recorder } from '../history/recorder.ts';
import type { Process } from '../time/world.ts';
import { mayBeQuarantined, type PlannedJob } from './plan.ts';
import { PREFIX, REDIS_URL, recorderOf, type Site } from './site.ts';
import { digestOfRows, makeJob, textsOf } from './texts.ts';

const AGAIN_MS = 300;

/** Resolves when all of these jobs have ended. Throws a ShoalError where the client cannot connect. */
export async function callClient(site: Site, process: Process, jobs: readonly PlannedJob[]): Promise<void> {
  const recorder = recorderOf(site, process);
  const { log, plan, tokenizer, faults } = site;
  // all or none of a client's texts are tokenized by it, in each of its lives
  const form = plan.jobs.find(({ producer }) => producer === jobs[0]?.producer)?.form ?? 'inline';
  const client = await ShoalClient.connect({
    redisUrl: REDIS_URL,
    prefix: PREFIX,
    model: { name: 'fake', revision: '0123456789ab', isNormalized: true },
    ...(form === 'tokens' ? { tokenizer } : {}),
    limits: { maxQueuedRows: plan.maxQueuedRows },
    log,
    faults,
  });
  await Promise.all(jobs.map((job) => call(site, client, { ...job, form }, recorder)));
  await client.close();
}

async function call(site: Site, client: ShoalClient, job: PlannedJob, recorder: Recorder): Promise<void> {
  const { world, ended, problems, tokenizer } = site;
  await sleep(Math.max(0, job.atMs - world.nowMs));
  const { want, fingerprint } = makeJob(job, tokenizer, {});
  recorder.invoke('add', `default~${job.id}`, { want, fingerprint });
  const abort = new AbortController();
  if (job.cancelAfterMs !== undefined) setTimeout(() => abort.abort(), job.cancelAfterMs);
  for (;;) {
    try {
      const { vectors } = await client.embed(textsOf(job), {
        jobId: job.id,
        class: job.class,
        resultTtlMs: job.resultTtlMs,
        signal: abort.signal,
        ...(job.deadlineMs === undefined ? {} : { timeoutMs: job.deadlineMs }),
      });
      if (job.isPoison === true)
        problems.push(`poison-completed: ${job.id} was answered, and nobody survives its rows`);
      if (digestOfRows(vectors) !== want) problems.push(`wrong-rows: ${job.id} got the vectors of other texts`);
      break;
    } catch (error) {
      if (!isShoalError(error)) throw error;
      if (isEnding(job, error.code) || (error.code === 'QUARANTINED' && mayBeQuarantined(site.plan, job))) break;
      if (!PASSING.has(error.code)) problems.push(`unfit-failure: ${job.id} failed: ${error.code}: ${error.message}`);
      if (!PASSING.has(error.code)) break;
      await sleep(AGAIN_MS);
    }
  }
  ended.add(job.id);
}

/** What a program is told while a server is ill, or when a result is gone: it asks again. */
const PASSING: ReadonlySet<ErrorCode> = new Set([
  'QUEUE_UNREACHABLE',
  'QUEUE_FULL',
  'QUEUE_REFUSES_WRITES',
  'RESULT_EXPIRED',
  'RESULT_TAKEN',
]);

function isEnding(job: PlannedJob, code: ErrorCode): boolean {
  if (code === 'DEADLINE_PASSED') return job.deadlineMs !== undefined;
  return (code === 'INTERRUPTED' || code === 'CANCELLED') && job.cancelAfterMs !== undefined;
}

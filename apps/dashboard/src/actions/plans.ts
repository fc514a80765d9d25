// What an operator may do from the dashboard. Each action is planned first, from what the queue looks like now: the plan
// says in a sentence how many jobs or workers it is about, and is what the page for confirmation shows; only then is it
// done. Bounded: whoever wants to change more than a page of jobs at once has the command line.

import { ShoalError } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { Canceller, Quarantine, type Fleet, type QueueAdmin } from '@shoal/queue';
import { counted } from '../page/words.ts';

export interface Plan {
  /** "Pause embed-minilm" */
  readonly title: string;
  /** What will happen, with counts. */
  readonly sentences: readonly string[];
  /** How many jobs or workers it is about; 0: there is nothing to do. */
  readonly count: number;
  /** Cannot be taken back. */
  readonly isHarm: boolean;
  /** The same on the command line. */
  readonly command: string;
  /** The jobs that were found; what is confirmed is done to these, and to no others that came meanwhile. */
  readonly ids?: readonly string[];
  /** Does it. */
  readonly run: () => Promise<Done>;
}

export interface Done {
  /** What came of it, for the page. */
  readonly said: string;
  /** Of jobs or workers, for the audit line. */
  readonly ids: readonly string[];
  readonly count?: number;
  readonly details?: Readonly<Record<string, string | number | boolean>>;
}

export interface ActionTools {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly log: Logger;
  /** Parts of a queue that is there; throws USAGE for one that is not. */
  readonly queue: (name: string) => Promise<{ readonly fleet: Fleet; readonly admin: QueueAdmin }>;
}

/** What a request asks for. */
export interface Asked {
  readonly queue: string;
  /** An id, the beginning of one, or "all". */
  readonly worker: string;
  readonly ids: readonly string[];
  /** Only failures of this code. */
  readonly code: string;
}

/** Most jobs of one action; the command line takes any number. */
export const MOST_JOBS = 1_000;

export const ACTIONS = {
  pause: planPause,
  resume: planResume,
  drain: planDrain,
  claim: planClaim,
  retry: planRetry,
  cancel: planCancel,
  return: planReturn,
  drop: planDrop,
} as const satisfies Readonly<Record<string, (asked: Asked, tools: ActionTools) => Promise<Plan>>>;

export type ActionName = keyof typeof ACTIONS;

export function isAction(name: string): name is ActionName {
  return Object.hasOwn(ACTIONS, name);
}

async function planPause({ queue }: Asked, tools: ActionTools): Promise<Plan> {
  const { admin } = await tools.queue(queue);
  const { waiting, active, workers } = await totals(admin);
  return {
    title: `Pause ${queue}`,
    sentences: [
      `${counted(waiting, 'job that waits', 'jobs that wait')} will not be claimed by ${counted(workers, 'worker', 'workers')} until somebody resumes the queue.`,
      `${counted(active, 'job that runs is', 'jobs that run are')} finished; new jobs are taken and wait.`,
    ],
    count: 1,
    isHarm: false,
    command: `shoal queue pause --queue ${queue}`,
    run: async () => {
      await admin.pause();
      return { said: `${queue} is paused`, ids: [], count: waiting };
    },
  };
}

async function planResume({ queue }: Asked, tools: ActionTools): Promise<Plan> {
  const { admin } = await tools.queue(queue);
  const { waiting, workers } = await totals(admin);
  return {
    title: `Resume ${queue}`,
    sentences: [
      `${counted(workers, 'worker claims', 'workers claim')} again; ${counted(waiting, 'job waits', 'jobs wait')}.`,
    ],
    count: 1,
    isHarm: false,
    command: `shoal queue resume --queue ${queue}`,
    run: async () => {
      await admin.resume();
      return { said: `${queue} is claimed from again`, ids: [], count: waiting };
    },
  };
}

async function planDrain({ queue, worker }: Asked, tools: ActionTools): Promise<Plan> {
  const { fleet } = await tools.queue(queue);
  const found = await workersOf(fleet, worker);
  const claims = found.workers.reduce((sum, { facts }) => sum + (facts?.claims ?? 0), 0);
  return {
    title: worker === 'all' ? `Drain all workers of ${queue}` : `Drain ${found.ids.join(', ')}`,
    sentences: [
      `${counted(found.ids.length, 'worker claims', 'workers claim')} nothing more until resumed, and ${counted(claims, 'claimed job is', 'claimed jobs are')} finished.`,
      ...(worker === 'all' ? ['Workers that start later are drained as well.'] : []),
      `${counted(found.others, 'other worker goes', 'other workers go')} on serving ${queue}.`,
    ],
    count: found.ids.length + (worker === 'all' ? 1 : 0),
    isHarm: false,
    command: `shoal fleet drain ${worker} --queue ${queue}`,
    run: async () => {
      const ids = await fleet.drain(worker);
      return { said: `${counted(ids.length, 'worker', 'workers')} of ${queue} drained`, ids };
    },
  };
}

async function planClaim({ queue, worker }: Asked, tools: ActionTools): Promise<Plan> {
  const { fleet } = await tools.queue(queue);
  const found = await workersOf(fleet, worker);
  return {
    title: worker === 'all' ? `Let all workers of ${queue} claim again` : `Let ${found.ids.join(', ')} claim again`,
    sentences: [`${counted(found.ids.length, 'worker claims', 'workers claim')} again within a second.`],
    count: found.ids.length + (worker === 'all' ? 1 : 0),
    isHarm: false,
    command: `shoal fleet resume ${worker} --queue ${queue}`,
    run: async () => {
      const ids = await fleet.resume(worker);
      return { said: `${counted(ids.length, 'worker', 'workers')} of ${queue} claim again`, ids };
    },
  };
}

async function planRetry({ queue, ids, code }: Asked, tools: ActionTools): Promise<Plan> {
  const { admin } = await tools.queue(queue);
  const [found, leftOut] = ids.length > 0 ? [ids, 0] : await failedOf(admin, code);
  return {
    title: `Retry failed jobs of ${queue}`,
    sentences: [
      `${counted(found.length, 'failed job waits', 'failed jobs wait')} again and ${found.length === 1 ? 'is' : 'are'} computed anew${code === '' ? '' : ` (code ${code})`}.`,
      ...(leftOut > 0
        ? [`${counted(leftOut, 'job is', 'jobs are')} left out that were cancelled or came too late.`]
        : []),
      ...(found.length >= MOST_JOBS
        ? [`At most ${MOST_JOBS.toLocaleString('en')} at once; the command takes all.`]
        : []),
    ],
    count: found.length,
    ids: found,
    isHarm: false,
    command: `shoal queue retry ${ids.length > 0 ? listed(ids) : code === '' ? '--all' : `--code ${code}`} --queue ${queue}`,
    run: async () => {
      const results = await admin.retry(found);
      return outcomesOf(results, {
        retried: 'wait again',
        'input-lost': 'have no input any more: add them anew',
        'not-failed': 'had not failed',
      });
    },
  };
}

async function planCancel({ queue, ids }: Asked, tools: ActionTools): Promise<Plan> {
  await tools.queue(queue);
  needIds(ids);
  return {
    title: `Cancel ${listed(ids)}`,
    sentences: [
      `${counted(ids.length, 'job fails', 'jobs fail')} as cancelled, or ${ids.length === 1 ? 'is' : 'are'} told to end where a worker has claimed it. Whoever waits for it is told.`,
    ],
    count: ids.length,
    isHarm: true,
    command: `shoal queue cancel ${listed(ids)} --queue ${queue}`,
    run: async () => {
      const canceller = await Canceller.connect({ ...tools, queue });
      try {
        const words = {
          cancelled: 'cancelled',
          asked: 'running: the worker was told',
          finished: 'had ended',
          unknown: 'not known',
        };
        return outcomesOf(await canceller.cancel(ids), words);
      } finally {
        await canceller.close();
      }
    },
  };
}

async function planReturn({ queue, ids }: Asked, tools: ActionTools): Promise<Plan> {
  const { found, gone } = await quarantined(queue, ids, tools);
  return {
    title: `Return from quarantine of ${queue}`,
    sentences: [
      `${counted(found.length, 'job goes', 'jobs go')} back to ${queue} and ${found.length === 1 ? 'runs' : 'run'} again. It killed an executor before, or seemed to; if it does so again it comes back here.`,
      ...gone,
    ],
    count: found.length,
    ids: found,
    isHarm: false,
    command: `shoal queue quarantine return ${listed(found)} --queue ${queue}`,
    run: async () =>
      withQuarantine(queue, tools, async (quarantine) => {
        const results = (await quarantine.giveBack(found)).map((result, at) => ({
          jobId: found[at] ?? '',
          outcome: result?.outcome ?? 'unknown',
        }));
        const words = {
          added: 'wait again',
          known: 'waited already',
          ready: 'had a result already',
          finished: 'had ended',
          conflict: 'stay here: the id is in use for other input',
          refused: 'stay here: the queue is full',
          unknown: 'were not here',
        };
        return outcomesOf(results, words);
      }),
  };
}

async function planDrop({ queue, ids }: Asked, tools: ActionTools): Promise<Plan> {
  const { found, gone } = await quarantined(queue, ids, tools);
  return {
    title: `Drop from quarantine of ${queue}`,
    sentences: [
      `${counted(found.length, 'job', 'jobs')} and what was to be computed ${found.length === 1 ? 'is' : 'are'} deleted for good. Nobody can get it back.`,
      ...gone,
    ],
    count: found.length,
    ids: found,
    isHarm: true,
    command: `shoal queue quarantine drop ${listed(found)} --queue ${queue}`,
    run: async () =>
      withQuarantine(queue, tools, async (quarantine) => {
        const dropped = await quarantine.drop(found);
        return { said: `${counted(dropped.length, 'job', 'jobs')} dropped`, ids: dropped };
      }),
  };
}

// ---- what they have in common -------------------------------------------------------------------------------------

async function totals(
  admin: QueueAdmin,
): Promise<{ readonly waiting: number; readonly active: number; readonly workers: number }> {
  const { lanes } = await admin.counts();
  const sum = (of: (lane: (typeof lanes)[number]) => number): number =>
    lanes.reduce((total, lane) => total + of(lane), 0);
  return {
    waiting: sum(({ waiting, delayed }) => waiting + delayed),
    active: sum(({ active }) => active),
    workers: Math.max(0, ...lanes.map(({ workers }) => workers)),
  };
}

async function workersOf(
  fleet: Fleet,
  which: string,
): Promise<{
  readonly ids: readonly string[];
  readonly workers: Awaited<ReturnType<Fleet['look']>>['workers'];
  readonly others: number;
}> {
  const view = await fleet.look();
  const workers = which === 'all' ? view.workers : view.workers.filter(({ workerId }) => workerId === which);
  if (which !== 'all' && workers.length === 0)
    throw new ShoalError(
      'USAGE',
      `there is no live worker "${which.slice(0, 80)}"; it ended meanwhile, or its name is another`,
    );
  return { ids: workers.map(({ workerId }) => workerId), workers, others: view.workers.length - workers.length };
}

async function failedOf(admin: QueueAdmin, code: string): Promise<[readonly string[], number]> {
  const found: string[] = [];
  let leftOut = 0;
  for await (const ids of admin.failedIds(code === '' ? undefined : code, (count) => (leftOut += count))) {
    found.push(...ids);
    if (found.length >= MOST_JOBS) break;
  }
  return [found.slice(0, MOST_JOBS), leftOut];
}

/** Those that are there, and a sentence about those that are not. */
async function quarantined(
  queue: string,
  ids: readonly string[],
  tools: ActionTools,
): Promise<{ readonly found: readonly string[]; readonly gone: readonly string[] }> {
  await tools.queue(queue);
  const here = await withQuarantine(queue, tools, (quarantine) => quarantine.list(0, MOST_JOBS));
  const known = here.map(({ jobId }) => jobId);
  const found = ids.length === 0 ? known : ids.filter((id) => known.includes(id));
  const gone = ids.filter((id) => !known.includes(id));
  return { found, gone: gone.length === 0 ? [] : [`Not in quarantine of ${queue} now: ${listed(gone)}.`] };
}

async function withQuarantine<Value>(
  queue: string,
  { redisUrl, prefix, log }: ActionTools,
  use: (quarantine: Quarantine) => Promise<Value>,
): Promise<Value> {
  const quarantine = new Quarantine({ redisUrl, prefix, queue, log });
  try {
    return await use(quarantine);
  } finally {
    await quarantine.close();
  }
}

function outcomesOf<Outcome extends string>(
  results: readonly { readonly jobId: string; readonly outcome: Outcome }[],
  words: Readonly<Record<string, string>>,
): Done {
  const counts: Record<string, number> = {};
  for (const { outcome } of results) counts[outcome] = (counts[outcome] ?? 0) + 1;
  const said = Object.entries(counts).map(
    ([outcome, count]) => `${counted(count, 'job', 'jobs')} ${words[outcome] ?? outcome}`,
  );
  return {
    said: said.join('; ') || 'there was nothing to do',
    ids: results.map(({ jobId }) => jobId),
    details: counts,
  };
}

function needIds(ids: readonly string[]): void {
  if (ids.length === 0) throw new ShoalError('USAGE', 'no job is named');
  if (ids.length > MOST_JOBS)
    throw new ShoalError(
      'USAGE',
      `${ids.length.toLocaleString('en')} jobs are named; at most ${MOST_JOBS.toLocaleString('en')} at once, and more by shoal queue, on the command line`,
    );
}

/** As many as fit a line. */
function listed(ids: readonly string[]): string {
  return ids.length <= 3 ? ids.join(' ') : `${ids.slice(0, 2).join(' ')} … (${ids.length.toLocaleString('en')})`;
}

// `shoal queue`: what a person does to a model's queue by hand. Everything goes through the queue server that is there;
// none is started for it. Jobs that are named and not found make the exit code 1.

import { ERROR_CODES, ShoalError } from '@shoal/contract';
import { Canceller, Quarantine, QueueAdmin, type QueueCounts } from '@shoal/queue';
import { createLogger } from '@shoal/ops/service';
import { shareProgress, type Progress } from '../progress.ts';
import { overCells } from '../processes/over-cells.ts';
import { refuseUnseen, withRunningQueue, type RunningQueue } from '../processes/running-queue.ts';
import { audited, countedBy } from '../processes/audited.ts';
import { print, say, type Terminal } from '../terminal.ts';
import { depthOf, tooNew } from './fleet.ts';

export interface QueueFlags {
  readonly json?: boolean;
  readonly quiet?: boolean;
  /** A queue by its name, instead of a model's. */
  readonly queue?: string;
}

export interface CountsFlags extends QueueFlags {
  readonly all?: boolean;
}

export interface RetryFlags extends QueueFlags {
  readonly all?: boolean;
  readonly code?: string;
}

export interface CleanFlags extends QueueFlags {
  readonly state: 'completed' | 'failed';
  /** Milliseconds. */
  readonly olderThan: number;
}

/** Ids a call takes at once; the server does nothing else meanwhile. */
const STEP_JOBS = 200;

export async function counts(terminal: Terminal, flags: CountsFlags): Promise<void> {
  await overCells(terminal, flags, countsHere);
}

async function countsHere(terminal: Terminal, flags: CountsFlags): Promise<void> {
  if (flags.all === true) return (await import('./all-queues.ts')).countsOfAll(terminal, flags);
  await withAdmin(terminal, flags, async (admin, place) => {
    await refuseUnseen(place);
    const counted = await admin.counts();
    await print(terminal, flags.json === true ? asJson(counted) : describe(counted));
  });
}

export async function pause(terminal: Terminal, flags: QueueFlags): Promise<void> {
  await withAdmin(terminal, flags, async (admin, place) => {
    const { queue } = place;
    await admin.pause();
    await audited(terminal, place, { what: 'queue pause', queue });
    await report(
      terminal,
      flags,
      { queue, paused: true },
      `${queue} and its CPU lane are paused: nothing is claimed, what is claimed is finished, new jobs are ` +
        'taken. shoal queue resume lets it go on',
    );
  });
}

export async function resume(terminal: Terminal, flags: QueueFlags): Promise<void> {
  await withAdmin(terminal, flags, async (admin, place) => {
    const { queue } = place;
    await admin.resume();
    await audited(terminal, place, { what: 'queue resume', queue });
    await report(terminal, flags, { queue, paused: false }, `${queue} and its CPU lane are claimed from again`);
  });
}

export async function retry(terminal: Terminal, jobIds: readonly string[], flags: RetryFlags): Promise<void> {
  const isAll = flags.all === true || flags.code !== undefined;
  if (isAll === jobIds.length > 0)
    throw new ShoalError('USAGE', 'name the jobs to run again, or all that failed with --all or --code CODE');
  if (flags.code !== undefined && !Object.hasOwn(ERROR_CODES, flags.code))
    throw new ShoalError('USAGE', `"${flags.code}" is no error code; known are ${Object.keys(ERROR_CODES).join(', ')}`);
  await withAdmin(terminal, flags, async (admin, place) => {
    const bar = progressFor(terminal, 'running again', flags);
    const found: string[] = [];
    let leftOut = 0;
    const failed = admin.failedIds(flags.code, (count) => (leftOut += count));
    if (isAll) for await (const ids of failed) found.push(...ids);
    if (leftOut > 0)
      note(
        terminal,
        flags,
        `${jobsOf(leftOut)} left out that were cancelled or whose deadline passed; name them, or say --code CANCELLED`,
      );
    const results = await inSteps(terminal, isAll ? found : jobIds, bar, (ids) => admin.retry(ids));
    await noteJobs(terminal, place, 'queue retry', results, flags.code === undefined ? {} : { code: flags.code });
    await reportJobs(
      terminal,
      flags,
      results,
      {
        retried: 'waiting again',
        'input-lost': 'without an input, which went with the failure; to be added anew',
        'not-failed': 'not failed, or gone',
      },
      'retried',
    );
  });
}

export async function cancel(terminal: Terminal, jobIds: readonly string[], flags: QueueFlags): Promise<void> {
  await withRunningQueue(terminal, flags, async (place) => {
    const canceller = await Canceller.connect({ ...place, log: quietLog });
    try {
      const results = await inSteps(terminal, jobIds, progressFor(terminal, 'cancelling', flags), (ids) =>
        canceller.cancel(ids),
      );
      await noteJobs(terminal, place, 'queue cancel', results);
      await reportJobs(
        terminal,
        flags,
        results,
        {
          cancelled: 'cancelled',
          asked: 'running, the worker was told',
          finished: 'ended before',
          unknown: 'not known',
        },
        'cancelled',
        'asked',
      );
    } finally {
      await canceller.close();
    }
  });
}

export async function quarantineList(terminal: Terminal, flags: QueueFlags): Promise<void> {
  await withQuarantine(terminal, flags, async (quarantine) => {
    const jobs = await quarantine.list(0, 1_000);
    if (flags.json === true) return print(terminal, asJson(jobs));
    for (const { jobId, failure, lane, sinceMs, inputBytes } of jobs) {
      await print(
        terminal,
        `${jobId}\n  ${failure.code}: ${failure.message}\n  since ${new Date(sinceMs).toISOString()}, last in ` +
          `${lane || 'an unknown lane'}, input of ${inputBytes.toLocaleString('en')} bytes\n`,
      );
    }
    if (jobs.length === 0) note(terminal, flags, 'nothing is in quarantine');
  });
}

export async function quarantineReturn(
  terminal: Terminal,
  jobIds: readonly string[],
  flags: QueueFlags,
): Promise<void> {
  await withQuarantine(terminal, flags, async (quarantine, place) => {
    const results = (await quarantine.giveBack(jobIds)).map((result, at) => ({
      jobId: jobIds[at] ?? '',
      outcome: result?.outcome ?? 'unknown',
    }));
    await noteJobs(terminal, place, 'queue quarantine return', results);
    await reportJobs(
      terminal,
      flags,
      results,
      {
        added: 'waiting again',
        known: 'waiting or running already',
        ready: 'with a result already',
        finished: 'ended before',
        conflict: 'left in quarantine, because the id is in use for another request',
        refused: 'left in quarantine, because the queue is full; to be given back later',
        unknown: 'not in quarantine',
      },
      'added',
      'known',
      'ready',
    );
  });
}

export async function quarantineDrop(terminal: Terminal, jobIds: readonly string[], flags: QueueFlags): Promise<void> {
  await withQuarantine(terminal, flags, async (quarantine, place) => {
    const dropped = new Set(await quarantine.drop(jobIds));
    const results = jobIds.map((jobId) => ({ jobId, outcome: dropped.has(jobId) ? 'dropped' : 'unknown' }) as const);
    await noteJobs(terminal, place, 'queue quarantine drop', results);
    await reportJobs(
      terminal,
      flags,
      results,
      { dropped: 'dropped, input included', unknown: 'not in quarantine' },
      'dropped',
    );
  });
}

export async function clean(terminal: Terminal, { state, olderThan, ...flags }: CleanFlags): Promise<void> {
  await withAdmin(terminal, flags, async (admin, place) => {
    const total = (await admin.counts()).lanes[0]?.[state] ?? 0;
    const bar = progressFor(terminal, 'cleaning', flags);
    try {
      const removed = await admin.clean({
        state,
        olderThanMs: olderThan,
        signal: terminal.signal,
        onProgress: (done) => bar.update(done, total),
      });
      const details = { state, olderThanMs: olderThan };
      await audited(terminal, place, { what: 'queue clean', queue: place.queue, count: removed, details });
      terminal.signal.throwIfAborted();
      await report(
        terminal,
        flags,
        { removed },
        `${jobsOf(removed)} taken away that ${state === 'completed' ? 'had completed' : 'had failed'}`,
      );
    } finally {
      bar.stop();
    }
  });
}

export async function repair(terminal: Terminal, flags: QueueFlags): Promise<void> {
  await withAdmin(terminal, flags, async (admin, place) => {
    const bar = progressFor(terminal, 'looking', flags);
    const repaired = await admin
      .repair((jobs, total) => bar.update(jobs, Math.max(jobs, total)), terminal.signal)
      .finally(() => bar.stop());
    const { quarantined: ids, kept: _, ...numbers } = repaired;
    await audited(terminal, place, { what: 'queue repair', queue: place.queue, ids, details: numbers });
    terminal.signal.throwIfAborted();
    const { jobs, moved, shortened, setAside, mended, failed, requeued, released, removed, quarantined, kept } =
      repaired;
    const told = [
      [moved, 'keys of the queue were of another type and were moved aside'],
      [shortened, 'leases would have lasted too long, since the clock of the server was set back, and were shortened'],
      [setAside, 'ids were set aside: names that the queue keeps for itself, or something else than a job'],
      [mended, 'damaged records can be read again'],
      [failed, 'of the waiting ones have failed, with what was found'],
      [requeued, 'were in no list and wait again'],
      [released, 'waited for a child that is gone, and run again'],
      [removed, 'ids or records of nothing were taken away'],
      [
        quarantined.length,
        `sound jobs that were set aside are in quarantine now, "shoal queue quarantine return" gives them back: ` +
          namesOf(quarantined),
      ],
      [kept.length, `things that were set aside are no jobs; look at them, then delete the keys: ${namesOf(kept)}`],
    ].flatMap(([count, what]) => (count === 0 ? [] : [`  ${Number(count).toLocaleString('en')} ${what}`]));
    await report(
      terminal,
      flags,
      repaired,
      `${jobsOf(jobs)} looked at${told.length === 0 ? ', all well' : `:\n${told.join('\n')}`}`,
    );
  });
}

// ---- around them ------------------------------------------------------------------------------------------------

async function withAdmin(
  terminal: Terminal,
  flags: QueueFlags,
  use: (admin: QueueAdmin, place: RunningQueue) => Promise<void>,
): Promise<void> {
  await withRunningQueue(terminal, flags, async (place) => {
    const admin = await QueueAdmin.connect(place);
    try {
      await use(admin, place);
    } finally {
      await admin.close();
    }
  });
}

async function withQuarantine(
  terminal: Terminal,
  flags: QueueFlags,
  use: (quarantine: Quarantine, place: RunningQueue) => Promise<void>,
): Promise<void> {
  await withRunningQueue(terminal, flags, async (place) => {
    const quarantine = new Quarantine(place);
    try {
      await use(quarantine, place);
    } finally {
      await quarantine.close();
    }
  });
}

/** Which jobs a command was about, and what became of how many. */
async function noteJobs(
  terminal: Terminal,
  place: RunningQueue,
  what: string,
  results: readonly { readonly jobId: string; readonly outcome: string }[],
  chosen: Readonly<Record<string, string>> = {},
): Promise<void> {
  if (results.length === 0) return;
  const details = { ...chosen, ...countedBy(results.map(({ outcome }) => outcome)) };
  await audited(terminal, place, { what, queue: place.queue, ids: results.map(({ jobId }) => jobId), details });
}

const quietLog = createLogger({ level: 'silent', name: 'queue' });

async function inSteps<Result>(
  terminal: Terminal,
  jobIds: readonly string[],
  bar: Progress,
  step: (ids: readonly string[]) => Promise<readonly Result[]>,
): Promise<Result[]> {
  const results: Result[] = [];
  try {
    for (let at = 0; at < jobIds.length; at += STEP_JOBS) {
      terminal.signal.throwIfAborted();
      results.push(...(await step(jobIds.slice(at, at + STEP_JOBS))));
      bar.update(results.length, jobIds.length);
    }
    return results;
  } finally {
    bar.stop();
  }
}

/** How each named job fared; a failure when one did not end as one of `good`. */
async function reportJobs<Outcome extends string>(
  terminal: Terminal,
  flags: QueueFlags,
  results: readonly { readonly jobId: string; readonly outcome: Outcome }[],
  meanings: Readonly<Record<Outcome, string>>,
  ...good: Outcome[]
): Promise<void> {
  const bad = results.filter(({ outcome }) => !good.includes(outcome));
  if (flags.json === true) await print(terminal, asJson(results));
  const byOutcome = Map.groupBy(results, ({ outcome }) => outcome);
  for (const [outcome, jobs] of byOutcome)
    if (good.includes(outcome)) note(terminal, flags, `${jobsOf(jobs.length)}: ${meanings[outcome]}`);
  if (results.length === 0) note(terminal, flags, 'no such jobs');
  if (bad.length === 0) return;
  const told = [...Map.groupBy(bad, ({ outcome }) => outcome)].map(
    ([outcome, jobs]) => `${namesOf(jobs.map(({ jobId }) => jobId))}: ${meanings[outcome]}`,
  );
  throw new ShoalError('JOB_INVALID', told.join('; '), { jobs: bad });
}

async function report(terminal: Terminal, flags: QueueFlags, facts: object, message: string): Promise<void> {
  if (flags.json === true) await print(terminal, asJson(facts));
  else note(terminal, flags, message);
}

function note(terminal: Terminal, flags: QueueFlags, message: string): void {
  if (flags.quiet !== true && flags.json !== true) say(terminal, message);
}

function progressFor(terminal: Terminal, label: string, flags: QueueFlags): Progress {
  return shareProgress(terminal, label, flags.quiet !== true);
}

/** One line each, so that a shell can read them. */
function asJson(facts: object): string {
  return `${JSON.stringify(facts)}\n`;
}

export function describe({ lanes, quarantined, reserved }: QueueCounts): string {
  const head = [
    'queue',
    'waiting',
    'active',
    'delayed',
    'parked',
    'handed over',
    'failed',
    'cancelled',
    'completed',
    'workers',
    'oldest',
  ];
  const rows = lanes.map((lane) => [
    `${lane.queue}${lane.isPaused ? ' (paused)' : ''}`,
    ...depthOf(lane),
    lane.completed.toLocaleString('en'),
    lane.workers.toLocaleString('en'),
    oldestOf(lane.oldestWaitingMs),
  ]);
  const widths = head.map((title, column) => Math.max(title.length, ...rows.map((row) => row[column]?.length ?? 0)));
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  ');
  const { rows: reservedRows, bytes, unreadBytes } = reserved;
  return [
    line(head),
    ...rows.map(line),
    ...lanes.flatMap(({ queue, parked }) => tooNew(queue, parked)),
    `in quarantine: ${quarantined.toLocaleString('en')}`,
    `reserved: ${reservedRows.toLocaleString('en')} rows, ${(bytes / 1e6).toFixed(1)} MB, of these ` +
      `${(unreadBytes / 1e6).toFixed(1)} MB of results that nobody has fetched`,
    '',
  ].join('\n');
}

/** What waits longest, and of which class it is. */
function oldestOf({ interactive, bulk }: QueueCounts['lanes'][number]['oldestWaitingMs']): string {
  const [ms, name] = interactive >= bulk ? [interactive, 'interactive'] : [bulk, 'bulk'];
  return ms === 0 ? '-' : `${(ms / 1_000).toFixed(1)} s (${name})`;
}

function jobsOf(count: number): string {
  return `${count.toLocaleString('en')} job${count === 1 ? '' : 's'}`;
}

const MOST_NAMED = 5;

function namesOf(jobIds: readonly string[]): string {
  const named = jobIds.slice(0, MOST_NAMED).join(', ');
  return jobIds.length > MOST_NAMED ? `${named} and ${(jobIds.length - MOST_NAMED).toLocaleString('en')} more` : named;
}

// Why a job is where it is, in one sentence for a person: judged from what was found (job-sighting.ts), pure. Tells what
// is known and what to do about it, never what could be.

import type { WorkerStanding } from '@shoal/core';

/** Where a job, or what is left of it, was found. */
export type SightedState =
  | 'in-line'
  | 'unplaced'
  | 'running'
  | 'delayed'
  | 'parked'
  | 'handed-over'
  | 'completed'
  | 'failed'
  | 'quarantined'
  | 'lost'
  | 'result-only'
  | 'input-only';

export interface SeenWorker extends WorkerStanding {
  readonly workerId: string;
}

export interface JobSighting {
  readonly jobId: string;
  /** The main lane of its queue. */
  readonly queue: string;
  /** Where it was found; a job that was handed over is found in both. */
  readonly lane: 'main' | 'cpu' | 'quarantine';
  readonly state: SightedState;
  readonly kind?: string | undefined;
  readonly tenant?: string | undefined;
  readonly class?: 'interactive' | 'bulk' | undefined;
  readonly rows?: number | undefined;
  /** 0 is the next in line; of so many. */
  readonly position?: { readonly ahead: number; readonly of: number } | undefined;
  /** Milliseconds since it was added, and how long it has waited or run. */
  readonly ageMs?: number | undefined;
  readonly waitedMs?: number | undefined;
  readonly runningMs?: number | undefined;
  /** How often a worker took it, verdicts about its input that were tried again, and leases that ran out. */
  readonly claims: number;
  readonly attempts: number;
  readonly stalls: number;
  /** Who holds its lease, and for how long yet; undefined where nobody does. */
  readonly lease?: { readonly holder: string; readonly leftMs: number } | undefined;
  /** Until its delay is over. */
  readonly delayMs?: number | undefined;
  /** Of the format of a job that no worker has read so far. */
  readonly version?: number | undefined;
  readonly failure?: { readonly code: string; readonly message: string } | undefined;
  readonly endedMs?: number | undefined;
  /** Bytes at its input key, where its input does not travel inside it. */
  readonly inputBytes?: number | undefined;
  readonly needsInput: boolean;
  /** The result as it is kept; undefined: none is. */
  readonly result?:
    | { readonly bytes: number; readonly leftMs: number | undefined; readonly isTaken: boolean }
    | undefined;
  readonly isCancelAsked: boolean;
  readonly isPaused: boolean;
  /** Live workers of the lane. */
  readonly workers: readonly SeenWorker[];
  /** Share of the server's memory, 0 to 1, and what it has of unread results; undefined where it has no limit. */
  readonly memory?: { readonly usedShare: number; readonly unreadShare: number } | undefined;
}

/** One or two sentences without a full stop at the end. */
export function whyJob(seen: JobSighting): string {
  switch (seen.state) {
    case 'in-line':
    case 'unplaced':
      return `it waits in ${laneOf(seen)}${sinceOf(seen.waitedMs)}: ${whyItWaits(seen)}`;
    case 'running':
      return whyItRuns(seen);
    case 'delayed':
      return `it was delayed and may be claimed in ${span(seen.delayMs ?? 0)}${seen.attempts > 0 ? `, after ${seen.attempts} attempts` : ''}`;
    case 'parked':
      return (
        `it is parked: it is of version ${seen.version ?? '?'}, which no worker that met it reads; nothing is lost, a newer ` +
        'worker takes it at once'
      );
    case 'handed-over':
      return 'it did not fit its device and was handed over to the CPU lane; it ends when its child there has ended';
    case 'completed':
      return `it completed ${ago(seen.endedMs)}; ${whatOfTheResult(seen)}`;
    case 'failed':
      return `it failed ${ago(seen.endedMs)} with ${failureOf(seen)}; ${curesOf(seen)}`;
    case 'quarantined':
      return (
        `it is in quarantine since ${ago(seen.endedMs)}: ${failureOf(seen)}. Nobody claims it from there; shoal queue ` +
        `quarantine return ${seen.jobId} --queue ${seen.queue} lets it run again, drop takes it away`
      );
    case 'lost':
      return (
        'its record is there and it is in no list of the queue, so nobody will claim it; the janitor puts that right ' +
        `within ten minutes, shoal queue repair --queue ${seen.queue} at once`
      );
    case 'result-only':
      return `its record is gone, as those of finished jobs go after a while; ${whatOfTheResult(seen)}`;
    case 'input-only':
      return (
        'there is an input and no job: its producer died between the two, or adds it just now. The janitor takes such ' +
        'inputs away; adding the job again under this id is safe'
      );
  }
}

/** What is said when nothing was found. */
export function whyUnknown(jobId: string, queues: readonly string[]): string {
  return (
    `no queue of this server has a job, an input or a result of the id "${jobId}" (looked at: ` +
    `${queues.join(', ') || 'none, there are no queues'}). It was never added here, or it ended so long ago that its ` +
    'record and result are gone; is the prefix right, and the id whole?'
  );
}

/** The first thing that stands in the way, from what a person has to undo to what only takes time. */
function whyItWaits(seen: JobSighting): string {
  const { queue, workers, isPaused, memory } = seen;
  const inState = (...states: readonly string[]): SeenWorker[] => workers.filter(({ state }) => states.includes(state));
  if (seen.isCancelAsked) return 'somebody cancelled it, and it ends as soon as a worker looks at it';
  if (seen.needsInput && seen.inputBytes === undefined)
    return 'its input is gone, so it will fail with INPUT_LOST when it is claimed; add it anew';
  if (isPaused) return `${queue} is paused; shoal queue resume --queue ${queue} lets it go on`;
  if (workers.length === 0)
    return seen.lane === 'cpu'
      ? `no CPU worker is alive; start one with shoal worker --device cpu`
      : `no worker serves ${queue}; start one with shoal worker or shoal up`;
  const draining = inState('drained', 'draining');
  if (draining.length === workers.length)
    return `${allOf(workers)} drained or leaving; shoal fleet resume all --queue ${queue} lets them claim again`;
  const ready = inState('ready');
  const braked = inState('braked');
  if (ready.length === 0 && braked.length > 0) {
    const share =
      memory === undefined ? '' : ` (memory ${percent(memory.usedShare)}, unread ${percent(memory.unreadShare)})`;
    return `workers hold back: ${braked[0]?.reason}${share}. Fetch results, or give the queue server memory`;
  }
  if (ready.length === 0) return `${allOf(workers)} not ready: ${workers[0]?.reason}`;
  return `${placeOf(seen)}, and ${ready.length === 1 ? 'one worker claims' : `${ready.length} workers claim`}`;
}

function placeOf({ state, position, class: kind, stalls }: JobSighting): string {
  const again = stalls > 0 ? `it came back ${stalls === 1 ? 'once' : `${stalls} times`} from workers that died; ` : '';
  if (state === 'unplaced' || position === undefined) return `${again}it gets its place in line with the next claim`;
  const { ahead, of } = position;
  if (ahead === 0) return `${again}it is the next in line of ${jobs(of)}`;
  const slow = kind === 'bulk' ? '; interactive jobs that come now go before it' : '';
  return `${again}${jobs(ahead)} of ${of.toLocaleString('en')} ${ahead === 1 ? 'is' : 'are'} before it${slow}`;
}

function whyItRuns({ lease, runningMs, isCancelAsked, stalls, workers }: JobSighting): string {
  if (lease === undefined)
    return (
      `it was claimed${sinceOf(runningMs)} and nobody holds its lease any more: its worker died or was cut off. It waits ` +
      'again at the next check for stalled jobs, within half a minute'
    );
  const isAlive = workers.length === 0 ? '' : ` of ${workers.length} live worker${workers.length === 1 ? '' : 's'}`;
  const cancelled = isCancelAsked ? '; somebody cancelled it, and it ends as soon as its worker has heard' : '';
  const again =
    stalls > 0 ? `; it came back ${stalls === 1 ? 'once' : `${stalls} times`} before from workers that died` : '';
  return (
    `${lease.holder}${isAlive} has it${sinceOf(runningMs)}, its lease lasts ${span(lease.leftMs)} more unless it is ` +
    `renewed${cancelled}${again}`
  );
}

function whatOfTheResult({ result }: JobSighting): string {
  if (result === undefined)
    return 'its result is gone: it was fetched and taken, or its time to live is over. Add the job again to have it anew';
  const left = result.leftMs === undefined ? 'has no time to live yet' : `stays for ${span(result.leftMs)}`;
  return result.isTaken
    ? `its result was fetched and acknowledged, what is left of it ${left}`
    : `its result (${bytes(result.bytes)}) is there, nobody has acknowledged it, and it ${left}`;
}

function failureOf({ failure }: JobSighting): string {
  return failure === undefined ? 'no reason' : `${failure.code}: ${failure.message}`;
}

function curesOf({ failure, queue, jobId, needsInput, inputBytes }: JobSighting): string {
  if (failure?.code === 'CANCELLED') return 'it was taken back; add it again if it is wanted after all';
  if (needsInput && inputBytes === undefined) return 'its input went with it, so add it anew';
  return `shoal queue retry ${jobId} --queue ${queue} lets it run again`;
}

function laneOf({ queue, lane }: JobSighting): string {
  return lane === 'cpu' ? `the CPU lane of ${queue}` : queue;
}

function allOf(workers: readonly SeenWorker[]): string {
  return workers.length === 1 ? 'the only worker is' : `all ${workers.length} workers are`;
}

function sinceOf(ms: number | undefined): string {
  return ms === undefined ? '' : ` for ${span(ms)}`;
}

function ago(ms: number | undefined): string {
  return ms === undefined ? 'some time ago' : `${span(ms)} ago`;
}

function jobs(count: number): string {
  return `${count.toLocaleString('en')} job${count === 1 ? '' : 's'}`;
}

function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}

function bytes(count: number): string {
  return count < 1e6 ? `${(count / 1e3).toFixed(1)} KB` : `${(count / 1e6).toFixed(1)} MB`;
}

/** To the second below two minutes, then in minutes, hours and days. */
function span(ms: number): string {
  const seconds = Math.max(0, ms) / 1_000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3_600)} h` : `${Math.round(seconds / 86_400)} days`;
}

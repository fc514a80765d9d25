// Every name that Shoal gives to something in the queue server. Public contract (docs/jobs.md): plain BullMQ
// producers and other languages build the same names. All keys share the hash tag of the prefix, so that one
// transaction may touch a job, its input and its result on a cluster as well.

import { ShoalError } from './errors.ts';

/** What a model makes of a row: a vector of a text, or the score of a pair of texts. */
export type ModelKind = 'embedder' | 'reranker';

export const DEFAULT_PREFIX = '{shoal}';

/** The store's model name as it appears in queue names: lower case, "/" → "--", anything unusual → "-"; no revision. */
export function modelSlug(modelName: string): string {
  return modelName
    .replace(/@.*$/s, '')
    .toLowerCase()
    .replaceAll('/', '--')
    .replaceAll(/[^a-z0-9-]/g, '-');
}

/** The main lane: any device may claim from it. */
export function mainQueue(modelName: string): string {
  return `embed-${modelSlug(modelName)}`;
}

/** The main lane of a reranker. */
export function rerankQueue(modelName: string): string {
  return `rerank-${modelSlug(modelName)}`;
}

/** The main lane of a model of either kind. */
export function queueOf({ name, kind }: { readonly name: string; readonly kind: ModelKind }): string {
  return kind === 'reranker' ? rerankQueue(name) : mainQueue(name);
}

/** The CPU lane: only CPU workers claim from it. */
export function cpuQueue(modelName: string): string {
  return cpuLaneOf(mainQueue(modelName));
}

/** The CPU lane that belongs to a main lane. */
export function cpuLaneOf(queue: string): string {
  return `${queue}-cpu`;
}

/** Similarity jobs, of whatever collection. */
export const SIMILARITY_QUEUE = 'similarity';
/** Where similarity jobs go that do not fit a GPU. */
export const SIMILARITY_CPU_QUEUE = cpuLaneOf(SIMILARITY_QUEUE);

export interface KeySpace {
  /** Where the job's input waits when it does not travel inside the job (SHI1). */
  input(queue: string, jobId: string): string;
  /**
   * Where the job's result is committed (SHL1). Both lanes of a model share it: `queue` is always the main one.
   * `resultId`: see `resultIdOf`; for ids that producers chose it is the id.
   */
  output(queue: string, resultId: string): string;
  /**
   * Where a large result lies until the commit renames it; named after the claim, so that no other claim of the job
   * writes there. A large input: a token of the call that adds its job.
   */
  staged(queue: string, jobId: string, token: string): string;
  /** The lock BullMQ keeps for a claimed job; its value is the claim's token. */
  lock(queue: string, jobId: string): string;
  /** The job hash as BullMQ keeps it. */
  job(queue: string, jobId: string): string;
  /** Sorted set of live workers of a queue: member = worker id, score = epoch ms until which it counts as alive. */
  workers(queue: string): string;
  /** Sorted set of starts of named workers of a lane, by until when each lives; see worker-start.ts. */
  starts(queue: string): string;
  /** Hash of what live workers of a queue tell of themselves, JSON by worker id. */
  facts(queue: string): string;
  /** Stream of what a worker did, a step of ten seconds an entry, see worker-history.ts. Gone an hour after the last. */
  history(workerId: string): string;
  /** As `workers`, of those that are being started and serve nobody yet. */
  starting(queue: string): string;
  /** As `facts`, of those that are being started. */
  startingFacts(queue: string): string;
  /** Set of the ids of workers that are to end with exit code 75, so that whoever keeps them starts successors. */
  leaving(queue: string): string;
  /** Set of the ids of drained workers of a model, under its main queue; "*" stands for all, later ones too. */
  drained(queue: string): string;
  /** Hash: which version the structures have that Shoal keeps of its own under the prefix; libs/queue's schema.ts. */
  schema(): string;
  /** Set of all queues that were ever served or added to: lanes and quarantines. */
  queues(): string;
  /** Written for a while to see whether the server takes writes. */
  writeProbe(): string;
  /** Sorted set of the order of a lane: the end of each flow's last job in virtual time, see fair-order.ts. */
  order(queue: string): string;
  /** There while jobs of the lane may carry a mark that they were cancelled. */
  cancelled(queue: string): string;
  /** Sorted set of jobs of a lane that failed because they were cancelled, by when. */
  cancelledJobs(queue: string): string;
  /** Pub/sub channel on which the workers of a lane hear of cancelled jobs. */
  cancels(queue: string): string;
  /** Hash of reservations of a queue by job id, see admission.ts. */
  admitted(queue: string): string;
  /** Hash of what is reserved, over all queues. */
  load(): string;
  /** Hash of what has left a queue, and how fast. */
  drain(queue: string): string;
  /** Sorted set of producers that wait for room in a queue, by when their turn is. */
  door(queue: string): string;
  /** Lock of the janitor that sweeps a queue now; its value is that sweep's token. */
  janitor(queue: string): string;
  /** Sorted set of inputs without a job by when a sweep first saw them so, see janitor.ts. */
  jobless(queue: string): string;
  /** Sorted set of jobs of a lane that wait for a worker that knows their version, by that version; see parking.ts. */
  parked(queue: string): string;
  /** Server's time at which a worker of the lane last looked at it, epoch ms, see clock-watch.ts. */
  clock(queue: string): string;
  /**
   * Sorted set of what was moved aside because it lay where the queue keeps something of its own; each lies under
   * `<this>:<member>`.
   */
  setAside(queue: string): string;
  /** Of which jobs a request consists that somebody comes back for; written by producers, read by no worker. */
  request(queue: string, requestId: string): string;
  /** Hash of the done parts of a run by their numbers, see part-result.ts. */
  run(run: string): string;
  /** Pub/sub channel on which a waiting producer hears of its jobs. */
  reply(name: string): string;
  /** Hash of what is kept of the keys of HTTP callers, JSON by id; "version" changes with every change of it. */
  apiKeys(): string;
  /** Stream of what was done by hand, see audit-log.ts. */
  audit(): string;
  /** Hash of what a key of an HTTP caller has left of its limits, see key-allowance.ts. */
  allowance(keyId: string): string;
}

export function keySpace(prefix: string = DEFAULT_PREFIX): KeySpace {
  return {
    input: (queue, jobId) => `${prefix}:in:${queue}:${jobId}`,
    output: (queue, resultId) => `${prefix}:out:${queue}:${resultId}`,
    staged: (queue, jobId, token) => `${prefix}:staged:${queue}:${jobId}:${token}`,
    lock: (queue, jobId) => `${prefix}:${queue}:${jobId}:lock`,
    job: (queue, jobId) => `${prefix}:${queue}:${jobId}`,
    workers: (queue) => `${prefix}:workers:${queue}`,
    starts: (queue) => `${prefix}:starts:${queue}`,
    facts: (queue) => `${prefix}:facts:${queue}`,
    history: (workerId) => `${prefix}:history:${workerId}`,
    starting: (queue) => `${prefix}:starting:${queue}`,
    startingFacts: (queue) => `${prefix}:starting-facts:${queue}`,
    leaving: (queue) => `${prefix}:leaving:${queue}`,
    drained: (queue) => `${prefix}:drained:${queue}`,
    schema: () => `${prefix}:schema`,
    queues: () => `${prefix}:queues`,
    writeProbe: () => `${prefix}:write-probe`,
    order: (queue) => `${prefix}:order:${queue}`,
    cancelled: (queue) => `${prefix}:cancelled:${queue}`,
    cancelledJobs: (queue) => `${prefix}:cancelled-jobs:${queue}`,
    cancels: (queue) => `${prefix}:cancels:${queue}`,
    admitted: (queue) => `${prefix}:admitted:${queue}`,
    load: () => `${prefix}:load`,
    drain: (queue) => `${prefix}:drain:${queue}`,
    door: (queue) => `${prefix}:door:${queue}`,
    janitor: (queue) => `${prefix}:janitor:${queue}`,
    jobless: (queue) => `${prefix}:jobless:${queue}`,
    parked: (queue) => `${prefix}:parked:${queue}`,
    clock: (queue) => `${prefix}:clock:${queue}`,
    setAside: (queue) => `${prefix}:set-aside:${queue}`,
    request: (queue, requestId) => `${prefix}:request:${queue}:${requestId}`,
    run: (run) => `${prefix}:run:${run}`,
    reply: (name) => `${prefix}:reply:${name}`,
    audit: () => `${prefix}:audit`,
    apiKeys: () => `${prefix}:api-keys`,
    allowance: (keyId) => `${prefix}:allowance:${keyId}`,
  };
}

export const REPLY_CHANNEL = /^\{[^{}]{1,64}\}:reply:[A-Za-z0-9_-]{1,64}$/;

/**
 * What BullMQ keeps beside the jobs of a queue lies under `<prefix>:<queue>:<name>`, where a job of that id would lie: a
 * job "marker" would stop the whole queue. A contract test of libs/queue compares the list with the pinned BullMQ, and
 * the Lua that sets such ids aside with this list. Some are of older versions, which may share a server with this one.
 */
export const QUEUE_KEY_NAMES = [
  'wait',
  'paused',
  'active',
  'prioritized',
  'delayed',
  'completed',
  'failed',
  'waiting-children',
  'stalled',
  'stalled-check',
  'marker',
  'meta',
  'events',
  'limiter',
  'id',
  'pc',
  'repeat',
  'de',
  'metrics',
  'priority',
  'relay',
] as const;
const RESERVED_NAMES: ReadonlySet<string> = new Set(QUEUE_KEY_NAMES);
/** What follows the id in the names of what BullMQ keeps of one job. */
export const JOB_KEY_PARTS = ['lock', 'logs', 'dependencies', 'processed', 'failed', 'unsuccessful'] as const;
/** What names with ":" begin with that belong to a queue and not to a job; `repeat:<id>` is a scheduler itself. */
const RESERVED_WITH_COLON = new RegExp(`^(metrics|de|dn|relay|repeat):|:(${JOB_KEY_PARTS.join('|')})$`);
/** As a job scheduler of BullMQ names each job that it makes: repeat:<scheduler>:<epoch ms>. */
const SCHEDULED_ID = /^repeat:.+:\d{1,16}$/s;
const MAX_ID_CHARACTERS = 256;

/** Whether a job of this id would lie where the queue keeps something of its own. Such an id is set aside unseen. */
export function isReservedJobId(jobId: string): boolean {
  return RESERVED_NAMES.has(jobId) || (RESERVED_WITH_COLON.test(jobId) && !SCHEDULED_ID.test(jobId));
}

/**
 * Whether BullMQ made the id and no producer chose it: a counter for jobs without an id, a scheduler's name and time. A
 * counter begins anew when its queue was obliterated, so such an id alone does not tell one job from another.
 */
export function isGeneratedJobId(jobId: string): boolean {
  return /^[1-9]\d{0,15}$/.test(jobId) || SCHEDULED_ID.test(jobId);
}

/**
 * Under which name the result of a job is kept (the last part of `KeySpace.output`): its id, and where BullMQ made that,
 * the time at which the job was made as well. `madeMs`: the `timestamp` of the job.
 */
export function resultIdOf(jobId: string, madeMs: number): string {
  return isGeneratedJobId(jobId) ? `${jobId}:${madeMs}` : jobId;
}

/**
 * Refuses ids that a producer cannot choose, because BullMQ or the key names cannot carry them. Returns the id. Half of a
 * surrogate pair has no UTF-8: the server would keep the job under another id than the one that is waited for.
 */
export function checkJobId(jobId: string): string {
  return checkId(jobId, !isReservedJobId(jobId) && !jobId.includes(':') && !/^-?\d+$/.test(jobId));
}

/** The same for a job that is in the queue already: ids that BullMQ made are good as well. */
export function checkQueuedJobId(jobId: string): string {
  return isGeneratedJobId(jobId) ? checkId(jobId, true) : checkJobId(jobId);
}

function checkId(jobId: string, isFree: boolean): string {
  if (!jobId.isWellFormed()) {
    throw new ShoalError(
      'JOB_INVALID',
      `jobId "${jobId.slice(0, 80).toWellFormed()}" cannot be used: it holds half of a surrogate pair, which ` +
        'the queue server cannot store; was a text cut within a character?',
      { jobId: jobId.toWellFormed() },
    );
  }
  if (isFree && jobId.length > 0 && jobId.length <= MAX_ID_CHARACTERS) return jobId;
  const problem = isReservedJobId(jobId)
    ? 'it is the name of something that the queue keeps for itself; '
    : jobId.length > MAX_ID_CHARACTERS
      ? `it has ${jobId.length} characters; `
      : '';
  throw new ShoalError(
    'JOB_INVALID',
    `jobId "${jobId.slice(0, 80)}" cannot be used: ${problem}choose 1 to 256 characters without ":" that are not a ` +
      'whole number or a name the queue keeps for itself, for example "docs-2026-11-21-0001". The id is what makes ' +
      'adding a job twice safe.',
    { jobId },
  );
}

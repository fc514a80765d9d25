// Looks for a job by its id over all queues of a prefix: both lanes, quarantine, and what is left of it at input and
// result keys. Reads only, and little: what the job holds is not fetched unless it is small. What follows from what was
// found is why-job.ts.

import {
  RESULT_FLAG,
  cpuLaneOf,
  isReservedJobId,
  keySpace,
  needsInputKey,
  parseFailedReason,
  resultIdOf,
  type KeySpace,
} from '@shoal/contract';
import { readAdmission, readServerMemory } from '../admission/admission.ts';
import { liveFacts, standingSeen } from '../lanes/fleet.ts';
import { ALL_WORKERS } from '../lanes/worker-presence.ts';
import { CANCEL_MARK } from '../producer/cancel.ts';
import type { Redis } from '../redis/connection.ts';
import { translated } from '../redis/translated.ts';
import { quarantineQueue } from '../lanes/quarantine-queue.ts';
import { serverTime } from '../redis/server-time.ts';
import { weighJobs } from './tenants.ts';
import type { JobSighting, SightedState, SeenWorker } from './why-job.ts';

type Lane = JobSighting['lane'];

/** Larger data is not read: what it would tell stands in the sentence without it. */
const MOST_DATA_BYTES = 65_536;
const LANES: readonly Lane[] = ['main', 'cpu', 'quarantine'];

/**
 * Everything that is found under the id in these queues (main lanes), the job itself before its remains. Throws
 * QUEUE_UNREACHABLE.
 */
export function findJob(
  connection: Redis,
  prefix: string,
  jobId: string,
  queues: readonly string[],
): Promise<JobSighting[]> {
  return translated(async () => {
    if (jobId === '' || isReservedJobId(jobId)) return [];
    const sightings = await Promise.all(queues.map((queue) => new Search(connection, prefix, queue, jobId).run()));
    return sightings.flat().toSorted((a, b) => rankOf(a) - rankOf(b));
  });
}

function rankOf({ state }: JobSighting): number {
  return state === 'result-only' || state === 'input-only' ? 1 : 0;
}

class Search {
  private readonly connection: Redis;
  private readonly prefix: string;
  private readonly queue: string;
  private readonly jobId: string;
  private readonly keys: KeySpace;

  constructor(connection: Redis, prefix: string, queue: string, jobId: string) {
    this.connection = connection;
    this.prefix = prefix;
    this.queue = queue;
    this.jobId = jobId;
    this.keys = keySpace(prefix);
  }

  async run(): Promise<JobSighting[]> {
    const found = await Promise.all(
      LANES.map(async (lane) => ((await this.connection.type(this.record(lane))) === 'hash' ? [lane] : [])),
    );
    const lanes = found.flat();
    if (lanes.length === 0) return this.remains();
    return Promise.all(lanes.map((lane) => this.sight(lane)));
  }

  private nameOf(lane: Lane): string {
    if (lane === 'main') return this.queue;
    return lane === 'cpu' ? cpuLaneOf(this.queue) : quarantineQueue(this.queue);
  }

  private record(lane: Lane): string {
    return this.keys.job(this.nameOf(lane), this.jobId);
  }

  private async sight(lane: Lane): Promise<JobSighting> {
    const { connection, prefix, jobId } = this;
    const name = this.nameOf(lane);
    const record = this.record(lane);
    const [fields, data, placed, [weighed], nowMs, isPaused, workers, memory] = await Promise.all([
      connection.hmget(
        record,
        'name',
        'timestamp',
        'processedOn',
        'finishedOn',
        'failedReason',
        'ats',
        'atm',
        'stc',
        CANCEL_MARK,
      ),
      this.dataOf(record),
      this.placeIn(name),
      weighJobs(connection, { prefix, queue: name }, [jobId]),
      serverTime(connection),
      connection.hexists(this.keys.job(name, 'meta'), 'paused'),
      this.workersOf(lane),
      this.memory(),
    ]);
    const [kind, timestamp, processedOn, finishedOn, reason, starts, attempts, stalls, cancel] = fields;
    const since = (text: string | null | undefined): number | undefined =>
      text === null || text === undefined ? undefined : Math.max(0, nowMs - Number(text));
    const state = lane === 'quarantine' ? 'quarantined' : placed.state;
    const isWaiting = state === 'in-line' || state === 'unplaced';
    const held = lane === 'quarantine' ? failureIn(data) : undefined;
    return {
      jobId,
      queue: this.queue,
      lane,
      state,
      ...(typeof kind === 'string' && { kind }),
      ...(weighed !== undefined &&
        lane !== 'quarantine' && { tenant: weighed.tenant, class: weighed.class, rows: weighed.rows }),
      position: isWaiting ? placed.position : undefined,
      ageMs: since(timestamp),
      waitedMs: isWaiting && weighed !== undefined ? Math.max(0, nowMs - weighed.sinceMs) : undefined,
      runningMs: state === 'running' ? since(processedOn) : undefined,
      claims: Number(starts ?? 0),
      attempts: Number(attempts ?? 0),
      stalls: Number(stalls ?? 0),
      lease: await this.lease(name),
      delayMs: placed.dueMs === undefined ? undefined : Math.max(0, placed.dueMs - nowMs),
      version: placed.version,
      failure: held ?? (state === 'failed' ? parseFailedReason(reason ?? '') : undefined),
      endedMs: lane === 'quarantine' ? since(timestamp) : since(finishedOn),
      inputBytes: await this.inputBytes(name),
      needsInput: needsInputKey(data),
      result: await this.result(resultIdOf(jobId, Number(timestamp ?? 0))),
      isCancelAsked: typeof cancel === 'string',
      isPaused: isPaused === 1,
      workers,
      memory,
    };
  }

  /** What is there under its id and has no record. */
  private async remains(): Promise<JobSighting[]> {
    const [inputBytes, result] = await Promise.all([this.inputBytes(this.queue), this.result(this.jobId)]);
    if (inputBytes === undefined && result === undefined) return [];
    return [
      {
        jobId: this.jobId,
        queue: this.queue,
        lane: 'main',
        state: result === undefined ? 'input-only' : 'result-only',
        claims: 0,
        attempts: 0,
        stalls: 0,
        inputBytes,
        result,
        needsInput: inputBytes !== undefined,
        isCancelAsked: false,
        isPaused: false,
        workers: [],
      },
    ];
  }

  /** In which list or set of its lane it is. */
  private async placeIn(name: string): Promise<Placed> {
    const { connection, jobId } = this;
    const key = (what: string): string => this.keys.job(name, what);
    const [rank, line, wait, paused, active, due, version, completed, failed, children] = await Promise.all([
      connection.zrank(key('prioritized'), jobId),
      Promise.all([connection.zcard(key('prioritized')), connection.llen(key('wait')), connection.llen(key('paused'))]),
      connection.lpos(key('wait'), jobId),
      connection.lpos(key('paused'), jobId),
      connection.lpos(key('active'), jobId),
      connection.zscore(key('delayed'), jobId),
      connection.zscore(this.keys.parked(name), jobId),
      connection.zscore(key('completed'), jobId),
      connection.zscore(key('failed'), jobId),
      connection.zscore(key('waiting-children'), jobId),
    ]);
    const of = line.reduce((sum, one) => sum + one, 0);
    if (rank !== null) return { state: 'in-line', position: { ahead: rank, of } };
    if (wait !== null || paused !== null) return { state: 'unplaced', position: { ahead: of, of } };
    if (active !== null) return { state: 'running' };
    if (version !== null) return { state: 'parked', version: Number(version) };
    // BullMQ's scores of delayed jobs: 4,096 a millisecond, so that those of one keep their order
    if (due !== null) return { state: 'delayed', dueMs: Math.floor(Number(due) / 4_096) };
    if (completed !== null) return { state: 'completed' };
    if (failed !== null) return { state: 'failed' };
    return { state: children === null ? 'lost' : 'handed-over' };
  }

  private async dataOf(record: string): Promise<unknown> {
    if ((await this.connection.hstrlen(record, 'data')) > MOST_DATA_BYTES) return undefined;
    try {
      return JSON.parse((await this.connection.hget(record, 'data')) ?? 'null') as unknown;
    } catch {
      return undefined;
    }
  }

  private async lease(name: string): Promise<JobSighting['lease']> {
    const key = this.keys.lock(name, this.jobId);
    const [token, leftMs] = await Promise.all([this.connection.get(key), this.connection.pttl(key)]);
    return token === null ? undefined : { holder: token.split('~')[0] || 'a worker', leftMs: Math.max(0, leftMs) };
  }

  private async inputBytes(name: string): Promise<number | undefined> {
    const bytes = await this.connection.strlen(this.keys.input(name, this.jobId));
    return bytes === 0 ? undefined : bytes;
  }

  private async result(resultId: string): Promise<JobSighting['result']> {
    const key = this.keys.output(this.queue, resultId);
    const [bytes, head, leftMs] = await Promise.all([
      this.connection.strlen(key),
      this.connection.getrangeBuffer(key, 0, 7),
      this.connection.pttl(key),
    ]);
    if (bytes === 0) return undefined;
    const isTaken = head.length >= 8 && (head.readUInt16LE(6) & RESULT_FLAG.taken) !== 0;
    return { bytes, leftMs: leftMs < 0 ? undefined : leftMs, isTaken };
  }

  private async workersOf(lane: Lane): Promise<SeenWorker[]> {
    if (lane === 'quarantine') return [];
    const name = this.nameOf(lane);
    const [facts, drained] = await Promise.all([
      liveFacts(this.connection, name, this.prefix),
      this.connection.smembers(this.keys.drained(this.queue)),
    ]);
    return [...facts].map(([workerId, told]) => {
      const isDrained = drained.includes(ALL_WORKERS) || drained.includes(workerId);
      return { workerId, ...standingSeen(told, isDrained, false) };
    });
  }

  private async memory(): Promise<JobSighting['memory']> {
    const [{ usedBytes, maxBytes }, { unreadBytes }] = await Promise.all([
      readServerMemory(this.connection),
      readAdmission(this.connection, { prefix: this.prefix, queue: this.queue }),
    ]);
    return maxBytes === 0 ? undefined : { usedShare: usedBytes / maxBytes, unreadShare: unreadBytes / maxBytes };
  }
}

interface Placed {
  readonly state: SightedState;
  readonly position?: JobSighting['position'];
  readonly dueMs?: number;
  readonly version?: number;
}

function failureIn(record: unknown): JobSighting['failure'] {
  const failure: unknown = typeof record === 'object' && record !== null ? Reflect.get(record, 'failure') : undefined;
  if (typeof failure !== 'object' || failure === null) return undefined;
  return { code: String(Reflect.get(failure, 'code')), message: String(Reflect.get(failure, 'message')) };
}

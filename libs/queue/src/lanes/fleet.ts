// The fleet of one queue, a model's or that of another kind of job, as anybody sees it: live workers with what they
// tell of themselves, and how full both lanes are. Also where workers are told to claim nothing (drain) and to go on
// (resume), or to make room for a successor (leave). Reads, and writes those two sets; the workers follow within a second, when they next look at the fleet.

import { DEFAULT_PREFIX, ShoalError, cpuLaneOf, keySpace, type KeySpace, type Lane } from '@shoal/contract';
import { standingOf, type Logger, type WorkerFacts, type WorkerStanding, type WorkerState } from '@shoal/core';
import { Queue } from '../bullmq/package.ts';
import type { ServerAddress } from '../redis/given-connection.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { translated } from '../redis/translated.ts';
import { countWaiting } from '../look/tenants.ts';
import { countCancelled, oldestWaiting, type OldestWaiting } from '../producer/waiting-jobs.ts';
import { serverTime } from '../redis/server-time.ts';
import { quarantineQueue } from './quarantine-queue.ts';
import { withSoundKeys } from '../upkeep/queue-keys.ts';
import { parkedJobs, totalOf, type ParkedJobs } from '../worker/parking.ts';
import { RememberedFacts, parseFacts } from './remembered-facts.ts';
import { ALL_WORKERS, liveWorkers, startingWorkers, type StartingFacts } from './worker-presence.ts';

export interface FleetOptions {
  readonly redisUrl: ServerAddress;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  /** The main lane. */
  readonly queue: string;
  readonly log?: Logger | undefined;
}

export interface LaneDepth {
  readonly queue: string;
  readonly isPaused: boolean;
  /** Prioritized jobs count as waiting. */
  readonly waiting: number;
  readonly active: number;
  /** Without those that are parked. */
  readonly delayed: number;
  /** Until a worker comes that knows their version, by version; empty where none is. */
  readonly parked: ParkedJobs;
  /** Handed over, and not ended yet. Of the main lane only. */
  readonly handedOver: number;
  /** Without those that were cancelled. */
  readonly failed: number;
  readonly cancelled: number;
  /** How long the job has waited that waits longest; 0 when none waits. */
  readonly oldestMs: number;
  /** The same of each class. */
  readonly oldestWaitingMs: OldestWaiting;
}

export interface LiveWorker {
  readonly workerId: string;
  /** Lanes it is seen in. */
  readonly lanes: readonly Lane[];
  /** Undefined for a worker that tells nothing of itself, or not yet. */
  readonly facts: WorkerFacts | undefined;
  readonly isDrained: boolean;
  /** Told to end, for a successor. */
  readonly isLeaving: boolean;
  readonly state: WorkerState;
  /** Why it is in that state, a sentence without a full stop. */
  readonly reason: string;
}

/** A worker that is being started and serves nobody yet. */
export interface StartingWorker extends Partial<StartingFacts> {
  readonly workerId: string;
}

export interface FleetView {
  readonly lanes: Readonly<Record<Lane, LaneDepth>>;
  readonly workers: readonly LiveWorker[];
  /** Empty where somebody only had a look. */
  readonly starting: readonly StartingWorker[];
  /** Whether workers that start later are drained as well. */
  readonly isAllDrained: boolean;
  /** Jobs of the queue in quarantine; undefined where somebody only had a look. */
  readonly quarantined?: number | undefined;
  /** When it was read, epoch ms by the server's clock; undefined where somebody only had a look. */
  readonly atMs?: number | undefined;
}

type FactsOfLane = ReadonlyMap<string, WorkerFacts | undefined>;

/** Of jobs in each place where the oldest may be. */
const BRIEF_PAGE_JOBS = 8;
/** Ids are of one life each; whoever has not left by then was gone before it heard. */
const LEAVING_S = 3_600;

export class Fleet {
  private readonly connection: Redis;
  private readonly keys: KeySpace;
  private readonly prefix: string;
  private readonly queues: Readonly<Record<Lane, Queue>>;
  private readonly facts: Readonly<Record<Lane, RememberedFacts>>;

  private constructor({ prefix = DEFAULT_PREFIX, queue: main, log }: FleetOptions, connection: Redis) {
    this.connection = connection;
    this.prefix = prefix;
    this.keys = keySpace(prefix);
    const open = (name: string): Queue => new Queue(name, { prefix, connection, skipMetasUpdate: true });
    this.queues = { main: open(main), cpu: open(cpuLaneOf(main)) };
    const remember = (queue: string): RememberedFacts => new RememberedFacts({ connection, prefix, queue });
    this.facts = { main: remember(main), cpu: remember(cpuLaneOf(main)) };
    for (const queue of Object.values(this.queues))
      queue.on('error', (error) => log?.debug({ queue: queue.name, reason: error.message }, 'queue reported an error'));
  }

  /** Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
  static async connect(options: FleetOptions): Promise<Fleet> {
    const connection = await connected({
      url: options.redisUrl,
      prefix: options.prefix,
      name: `shoal:fleet:${options.queue}`,
      log: options.log,
    });
    return new Fleet(options, connection);
  }

  /** Throws QUEUE_UNREACHABLE, and QUEUE_DAMAGED where a key of the queue is of another type than it should be. */
  read(): Promise<FleetView> {
    return translated(() => {
      const quarantine = { prefix: this.prefix, queue: quarantineQueue(this.queues.main.name) };
      const lanes = Object.values(this.queues).map(({ name }) => ({ prefix: this.prefix, queue: name }));
      return withSoundKeys(this.connection, [...lanes, quarantine], async () => {
        const [view, starting, quarantined, nowMs] = await Promise.all([
          this.ask((queue) => this.depthOf(queue)),
          this.askStarting(),
          countWaiting(this.connection, quarantine),
          serverTime(this.connection),
        ]);
        return { ...view, starting, quarantined, atMs: Math.floor(nowMs) };
      });
    });
  }

  /**
   * The same at a small cost, for workers that look every second: the oldest job is looked for among a few, and
   * cancelled jobs count as failed, parked ones as delayed. What workers tell of themselves is up to six seconds old, and
   * left out where `withFacts` is false.
   */
  look({ withFacts = true }: { readonly withFacts?: boolean } = {}): Promise<FleetView> {
    return translated(() =>
      this.ask(
        (queue) => this.briefDepthOf(queue),
        () => this.remembered(withFacts),
      ),
    );
  }

  private async remembered(withFacts: boolean): Promise<readonly [FactsOfLane, FactsOfLane]> {
    const { main, cpu } = this.queues;
    const [inMain, inCpu] = await Promise.all(
      [main, cpu].map(({ name }) => liveWorkers(this.connection, name, this.prefix)),
    );
    // a worker of both lanes tells the same in both
    const onlyCpu = inCpu!.filter((workerId) => !inMain!.includes(workerId));
    const [ofMain, ofCpu] = withFacts
      ? await Promise.all([this.facts.main.of(inMain!), this.facts.cpu.of(onlyCpu)])
      : [new Map(), new Map()];
    const told = (ids: readonly string[], from: FactsOfLane): FactsOfLane =>
      new Map(ids.map((workerId) => [workerId, from.get(workerId)]));
    return [told(inMain!, ofMain), told(inCpu!, ofCpu)];
  }

  private async ask(
    depthOf: (queue: Queue) => Promise<LaneDepth>,
    factsOfLanes = () => this.allFacts(),
  ): Promise<FleetView> {
    const { main, cpu } = this.queues;
    const [mainDepth, cpuDepth, [mainWorkers, cpuWorkers], drained, leaving] = await Promise.all([
      depthOf(main),
      depthOf(cpu),
      factsOfLanes(),
      this.connection.smembers(this.keys.drained(main.name)),
      this.connection.smembers(this.keys.leaving(main.name)),
    ]);
    const isAllDrained = drained.includes(ALL_WORKERS);
    const ids = [...new Set([...mainWorkers.keys(), ...cpuWorkers.keys()])].sort();
    const depths = { main: mainDepth, cpu: cpuDepth };
    const workers = ids.map((workerId): LiveWorker => {
      const lanes = [
        ...(mainWorkers.has(workerId) ? ['main' as const] : []),
        ...(cpuWorkers.has(workerId) ? ['cpu' as const] : []),
      ];
      const facts = mainWorkers.get(workerId) ?? cpuWorkers.get(workerId);
      const isDrained = isAllDrained || drained.includes(workerId);
      const isPaused = lanes.every((lane) => depths[lane].isPaused);
      const standing = standingSeen(facts, isDrained, isPaused);
      return { workerId, lanes, facts, isDrained, isLeaving: leaving.includes(workerId), ...standing };
    });
    return { lanes: depths, workers, starting: [], isAllDrained };
  }

  private allFacts(): Promise<readonly [FactsOfLane, FactsOfLane]> {
    const { main, cpu } = this.queues;
    return Promise.all([
      liveFacts(this.connection, main.name, this.prefix),
      liveFacts(this.connection, cpu.name, this.prefix),
    ]);
  }

  private async askStarting(): Promise<StartingWorker[]> {
    const lanes = Object.values(this.queues);
    const found = await Promise.all(lanes.map(({ name }) => startingWorkersOf(this.connection, name, this.prefix)));
    return [...new Map(found.flat().map((one) => [one.workerId, one])).values()];
  }

  /**
   * name@revision of the model that the queue was served with last, where no worker is alive: as one that left without a
   * word told it, or the job that completed last. Undefined: nobody knows. Throws QUEUE_UNREACHABLE.
   */
  lastModel(): Promise<string | undefined> {
    return translated(async () => {
      const { main } = this.queues;
      const [facts, [last]] = await Promise.all([
        this.connection.hvals(this.keys.facts(main.name)),
        this.connection.zrevrange(main.toKey('completed'), 0, 0),
      ]);
      const told = facts.map((text) => parseFacts(text)?.model).find((model) => model !== undefined);
      if (told !== undefined || last === undefined) return told;
      return modelIn(await this.connection.hget(main.toKey(last), 'returnvalue'));
    });
  }

  /**
   * `which`: a worker's id, the beginning of one, or "all", which holds for workers that start later too. The ids of
   * those alive that it is about.
   */
  async drain(which: string): Promise<string[]> {
    const { members, ids } = await this.find(which);
    await translated(() => this.connection.sadd(this.drainedKey(), members));
    return ids;
  }

  /**
   * "all" also forgets what was drained one by one. A single worker of a fleet that was drained as a whole cannot be
   * resumed.
   */
  async resume(which: string): Promise<string[]> {
    const { members, ids, view } = await this.find(which);
    if (which !== 'all' && view.isAllDrained) {
      throw new ShoalError(
        'USAGE',
        `all workers of ${this.queues.main.name} are drained, later ones too; resume all, then drain those ` +
          'that are to stay so',
      );
    }
    await translated(async () =>
      which === 'all' ? this.connection.del(this.drainedKey()) : this.connection.srem(this.drainedKey(), members),
    );
    return ids;
  }

  /**
   * Tells live workers to drain and to end with exit code 75, so that whoever keeps them starts successors. Workers of
   * 0.1.0 do not hear it.
   */
  async leave(workerIds: readonly string[]): Promise<void> {
    if (workerIds.length === 0) return;
    const key = this.keys.leaving(this.queues.main.name);
    await translated(() =>
      Promise.all([this.connection.sadd(key, ...workerIds), this.connection.expire(key, LEAVING_S)]),
    );
  }

  /** Safe to call twice. */
  async close(): Promise<void> {
    await closeConnection(this.connection);
    await Promise.allSettled(Object.values(this.queues).map((queue) => queue.close()));
  }

  private drainedKey(): string {
    return this.keys.drained(this.queues.main.name);
  }

  private async find(which: string): Promise<{ members: string[]; ids: string[]; view: FleetView }> {
    const view = await this.read();
    const ids = view.workers.map(({ workerId }) => workerId);
    if (which === 'all') return { members: [ALL_WORKERS], ids, view };
    const found = ids.includes(which) ? [which] : ids.filter((id) => id.startsWith(which));
    if (found.length === 1) return { members: found, ids: found, view };
    const problem = found.length === 0 ? 'no live worker has' : `${found.length} live workers have`;
    throw new ShoalError('USAGE', `${problem} an id that begins with "${which}"; alive: ${ids.join(', ') || 'none'}`, {
      which,
    });
  }

  private async depthOf(queue: Queue): Promise<LaneDepth> {
    const place = { prefix: this.prefix, queue: queue.name };
    const [depth, cancelled, oldest] = await Promise.all([
      this.countsOf(queue),
      countCancelled(this.connection, place),
      oldestWaiting(this.connection, place),
    ]);
    return { ...depth, failed: Math.max(0, depth.failed - cancelled), cancelled, ...oldestOf(oldest) };
  }

  private async briefDepthOf(queue: Queue): Promise<LaneDepth> {
    const [depth, oldest] = await Promise.all([
      this.countsOf(queue, {}),
      oldestWaiting(this.connection, { prefix: this.prefix, queue: queue.name }, BRIEF_PAGE_JOBS),
    ]);
    return { ...depth, cancelled: 0, ...oldestOf(oldest) };
  }

  private async countsOf(
    queue: Queue,
    known?: ParkedJobs,
  ): Promise<Omit<LaneDepth, 'cancelled' | 'oldestMs' | 'oldestWaitingMs'>> {
    const [counts, isPaused, parked] = await Promise.all([
      queue.getJobCounts('wait', 'prioritized', 'active', 'delayed', 'waiting-children', 'failed'),
      queue.isPaused(),
      known ?? parkedJobs(this.connection, { prefix: this.prefix, queue: queue.name }),
    ]);
    const { wait = 0, prioritized = 0, active = 0, delayed = 0, failed = 0 } = counts;
    const handedOver = counts['waiting-children'] ?? 0;
    return {
      queue: queue.name,
      isPaused,
      waiting: wait + prioritized,
      active,
      delayed: Math.max(0, delayed - totalOf(parked)),
      parked,
      handedOver,
      failed,
    };
  }
}

/** What a worker told two seconds ago, or nothing of the kind, and what is known of its queue now. */
export function standingSeen(facts: WorkerFacts | undefined, isDrained: boolean, isPaused: boolean): WorkerStanding {
  const told = facts?.standing;
  if (told === undefined) return standingOf({ isDrained, claims: facts?.claims ?? 0, isPaused });
  const { state, reason } = told;
  if (state === 'starting' || state === 'draining' || state === 'drained') return { state, reason };
  if (isDrained) return { state: 'draining', reason: 'it was told to claim nothing, and has not answered yet' };
  if (isPaused || state === 'paused') return standingOf({ isDrained, claims: 0, isPaused });
  return { state, reason };
}

/** What live workers of a lane tell of themselves, by id. */
export async function liveFacts(
  connection: Redis,
  queue: string,
  prefix: string,
): Promise<Map<string, WorkerFacts | undefined>> {
  const [alive, facts] = await Promise.all([
    liveWorkers(connection, queue, prefix),
    connection.hgetall(keySpace(prefix).facts(queue)),
  ]);
  return new Map(alive.map((workerId) => [workerId, parseFacts(facts[workerId])]));
}

/** Workers that are being started for a lane, with what they tell of themselves; a second command where there are any. */
export async function startingWorkersOf(connection: Redis, queue: string, prefix: string): Promise<StartingWorker[]> {
  const ids = await startingWorkers(connection, queue, prefix);
  const told = ids.length === 0 ? [] : await connection.hmget(keySpace(prefix).startingFacts(queue), ...ids);
  return ids.map((workerId, at) => ({ ...parsedObject(told[at] ?? ''), workerId }));
}

function oldestOf(oldestWaitingMs: OldestWaiting): Pick<LaneDepth, 'oldestMs' | 'oldestWaitingMs'> {
  return { oldestMs: Math.max(oldestWaitingMs.interactive, oldestWaitingMs.bulk), oldestWaitingMs };
}

function modelIn(returnValue: string | null): string | undefined {
  try {
    const { model }: { readonly model?: unknown } = Object(JSON.parse(returnValue ?? '{}'));
    return typeof model === 'string' ? model : undefined;
  } catch {
    return undefined;
  }
}

function parsedObject(text: string): object {
  try {
    return Object(JSON.parse(text)) as object;
  } catch {
    return {};
  }
}

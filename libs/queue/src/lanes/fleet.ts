// The fleet of one queue, a model's or that of another kind of job, as anybody sees it: live workers with what they
// tell of themselves, and how full both lanes are. Also where workers are told to claim nothing (drain) and to go on
// (resume). Reads, and writes that one set; the workers follow within a second, when they next look at the fleet.

import { DEFAULT_PREFIX, ShoalError, cpuLaneOf, keySpace, type KeySpace, type Lane } from '@shoal/contract';
import type { Logger, WorkerFacts } from '@shoal/core';
import { Queue } from 'bullmq';
import type { ServerAddress } from '../redis/given-connection.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { translated } from '../redis/translated.ts';
import { countCancelled, oldestWaiting, type OldestWaiting } from '../producer/waiting-jobs.ts';
import { withSoundKeys } from '../upkeep/queue-keys.ts';
import { ALL_WORKERS, liveWorkers } from './worker-presence.ts';

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
  /** Prioritized jobs count as waiting. */
  readonly waiting: number;
  readonly active: number;
  readonly delayed: number;
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
}

export interface FleetView {
  readonly lanes: Readonly<Record<Lane, LaneDepth>>;
  readonly workers: readonly LiveWorker[];
  /** Whether workers that start later are drained as well. */
  readonly isAllDrained: boolean;
}

/** Of jobs in each place where the oldest may be. */
const BRIEF_PAGE_JOBS = 8;

export class Fleet {
  private readonly connection: Redis;
  private readonly keys: KeySpace;
  private readonly prefix: string;
  private readonly queues: Readonly<Record<Lane, Queue>>;

  private constructor({ prefix = DEFAULT_PREFIX, queue: main, log }: FleetOptions, connection: Redis) {
    this.connection = connection;
    this.prefix = prefix;
    this.keys = keySpace(prefix);
    const open = (name: string): Queue => new Queue(name, { prefix, connection, skipMetasUpdate: true });
    this.queues = { main: open(main), cpu: open(cpuLaneOf(main)) };
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
      const places = Object.values(this.queues).map(({ name }) => ({ prefix: this.prefix, queue: name }));
      return withSoundKeys(this.connection, places, () => this.ask((queue) => this.depthOf(queue)));
    });
  }

  /**
   * The same at a small cost, for workers that look every second: the oldest job is looked for among a few, and
   * cancelled jobs count as failed.
   */
  look(): Promise<FleetView> {
    return translated(() => this.ask((queue) => this.briefDepthOf(queue)));
  }

  private async ask(depthOf: (queue: Queue) => Promise<LaneDepth>): Promise<FleetView> {
    const { main, cpu } = this.queues;
    const [mainDepth, cpuDepth, mainWorkers, cpuWorkers, drained] = await Promise.all([
      depthOf(main),
      depthOf(cpu),
      liveFacts(this.connection, main.name, this.prefix),
      liveFacts(this.connection, cpu.name, this.prefix),
      this.connection.smembers(this.keys.drained(main.name)),
    ]);
    const isAllDrained = drained.includes(ALL_WORKERS);
    const ids = [...new Set([...mainWorkers.keys(), ...cpuWorkers.keys()])].sort();
    const workers = ids.map((workerId): LiveWorker => ({
      workerId,
      lanes: [
        ...(mainWorkers.has(workerId) ? ['main' as const] : []),
        ...(cpuWorkers.has(workerId) ? ['cpu' as const] : []),
      ],
      facts: mainWorkers.get(workerId) ?? cpuWorkers.get(workerId),
      isDrained: isAllDrained || drained.includes(workerId),
    }));
    return { lanes: { main: mainDepth, cpu: cpuDepth }, workers, isAllDrained };
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
      this.countsOf(queue),
      oldestWaiting(this.connection, { prefix: this.prefix, queue: queue.name }, BRIEF_PAGE_JOBS),
    ]);
    return { ...depth, cancelled: 0, ...oldestOf(oldest) };
  }

  private async countsOf(queue: Queue): Promise<Omit<LaneDepth, 'cancelled' | 'oldestMs' | 'oldestWaitingMs'>> {
    const counts = await queue.getJobCounts('wait', 'prioritized', 'active', 'delayed', 'waiting-children', 'failed');
    const { wait = 0, prioritized = 0, active = 0, delayed = 0, failed = 0 } = counts;
    const handedOver = counts['waiting-children'] ?? 0;
    return { queue: queue.name, waiting: wait + prioritized, active, delayed, handedOver, failed };
  }
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

/** Written by a worker of this or another version. */
function parseFacts(text: string | undefined): WorkerFacts | undefined {
  try {
    const facts: unknown = JSON.parse(text ?? 'null');
    if (typeof facts !== 'object' || facts === null) return undefined;
    const { rates, mix, lanes, device } = facts as Record<string, unknown>;
    const isWhole =
      typeof rates === 'object' &&
      rates !== null &&
      typeof mix === 'object' &&
      mix !== null &&
      Array.isArray(lanes) &&
      typeof device === 'string';
    return isWhole ? (facts as WorkerFacts) : undefined;
  } catch {
    return undefined;
  }
}

// Every queue of a prefix at one look: jobs by state and class, how long the oldest wait, who serves it and in which
// state, and for how many seconds of work what waits is. For the fleet exporter and the dashboard's page. Reads only:
// nine commands for each queue, one more while a worker starts there, and three for all together; where nobody has noted
// the queues, once a minute a scan for them, of a million keys at most. A queue with a damaged key is told of as such,
// and costs no other.

import { DEFAULT_PREFIX, INTERACTIVE_ROWS, ShoalError, cpuLaneOf, keySpace, type KeySpace } from '@shoal/contract';
import type { Logger, WorkerFacts, WorkerState } from '@shoal/core';
import { closeConnection, connected, openConnection, type Redis } from '../redis/connection.ts';
import type { ServerAddress } from '../redis/given-connection.ts';
import { literally } from '../redis/scan-pattern.ts';
import { runScript } from '../redis/script.ts';
import { translated } from '../redis/translated.ts';
import { countCancelled, oldestWaiting, type OldestWaiting } from '../producer/waiting-jobs.ts';
import { serverTime } from '../redis/server-time.ts';
import { quarantineQueue } from './quarantine-queue.ts';
import { parkedJobs, totalOf, type ParkedJobs } from '../worker/parking.ts';
import { findWrongKeys, isWrongType, queueDamaged } from '../upkeep/queue-keys.ts';
import { liveFacts, standingSeen, startingWorkersOf, type LiveWorker, type StartingWorker } from './fleet.ts';
import { payloadsSeen, type PayloadServerSeen } from './payloads-seen.ts';
import { SURVEY_QUEUE } from './lua/scripts.generated.ts';
import { ALL_WORKERS } from './worker-presence.ts';

export interface FleetSurveyOptions {
  readonly redisUrl: ServerAddress;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  readonly log?: Logger | undefined;
}

export interface SurveyedQueue {
  readonly queue: string;
  readonly waiting: Readonly<Record<'interactive' | 'bulk', number>>;
  /** Cancelled jobs do not count as failed. */
  readonly jobs: Readonly<Record<'active' | 'delayed' | 'handed-over' | 'completed' | 'failed' | 'cancelled', number>>;
  readonly oldestWaitingMs: OldestWaiting;
  /** Rows with a reservation that have not ended, and those that have, since the queue is there. */
  readonly reservedRows: number;
  readonly leftRows: number;
  readonly backlog: Backlog;
  /** How many are in each state, those among them that are being started. */
  readonly workers: Readonly<Record<WorkerState, number>>;
  /** Those that are seen in this queue, by id; one that serves two lanes is seen in both. */
  readonly live: readonly LiveWorker[];
  readonly starting: readonly StartingWorker[];
  /** Whether workers that start later are drained as well. */
  readonly isAllDrained: boolean;
  readonly isPaused: boolean;
  readonly quarantined: number;
  /** By the version of their format; they do not count as delayed. */
  readonly parked: ParkedJobs;
  /** How many different sets of payload servers those that claim have, none among them; undefined: nobody has any. */
  readonly payloadSets?: number | undefined;
}

export interface Backlog {
  /** Undefined: jobs wait, and no worker has told how many tokens a job has. */
  readonly tokens: number | undefined;
  /** Tokens a second that the workers which claim can run; undefined: those that claim have measured none yet. */
  readonly tokensPerSecond: number | undefined;
  /** See `MOST_BACKLOG_SECONDS`; undefined: not known yet. */
  readonly seconds: number | undefined;
}

/** A queue that could not be read, and why, in a sentence. */
export interface UnreadQueue {
  readonly queue: string;
  readonly problem: string;
}

export interface FleetSurveyed {
  /** By the server's clock, epoch ms. */
  readonly atMs: number;
  readonly queues: readonly SurveyedQueue[];
  readonly unread: readonly UnreadQueue[];
  /** Of workers of all queues. */
  readonly payloadServers: readonly PayloadServerSeen[];
  /** Of all queues: what is reserved of the server's memory, and what of it belongs to results that nobody has read. */
  readonly reservedBytes: number;
  readonly unreadBytes: number;
}

/** Places of a line, and jobs without one, that are looked at for their class: two milliseconds of the server at most. */
const CLASS_PLACES = 4_000;
const CLASS_PAGE = 200;
/** Where jobs wait and nobody claims, and most that is told: a day. A number, so that a scaler can go by it. */
export const MOST_BACKLOG_SECONDS = 86_400;

export class FleetSurvey {
  private readonly connection: Redis;
  private readonly prefix: string;
  private readonly keys: KeySpace;
  private readonly log: Logger | undefined;
  private readonly names: QueueNames;
  /** Those whose fault was logged: once, and not at each look. */
  private readonly unwell = new Set<string>();

  private constructor(connection: Redis, { prefix = DEFAULT_PREFIX, log }: FleetSurveyOptions) {
    this.connection = connection;
    this.prefix = prefix;
    this.keys = keySpace(prefix);
    this.log = log;
    this.names = new QueueNames(connection, prefix);
  }

  /** Begins to connect and returns at once. Throws CONFIG_INVALID for a URL it cannot understand. */
  static open(options: FleetSurveyOptions): FleetSurvey {
    const { redisUrl: url, prefix, log } = options;
    return new FleetSurvey(openConnection({ url, prefix, name: 'shoal:survey', log }), options);
  }

  /** The same, once it is connected. Throws QUEUE_UNREACHABLE as well. */
  static async connect(options: FleetSurveyOptions): Promise<FleetSurvey> {
    const { redisUrl: url, prefix, log } = options;
    return new FleetSurvey(await connected({ url, prefix, name: 'shoal:survey', log }), options);
  }

  /** Whether the server can be asked now; while it cannot, questions wait until it is back. */
  get isConnected(): boolean {
    return this.connection.status === 'ready';
  }

  /**
   * Of all queues of the prefix, or of those whose `names` are given. Throws QUEUE_UNREACHABLE, at once while the
   * connection is lost.
   */
  read(names?: readonly string[]): Promise<FleetSurveyed> {
    return translated(async () => {
      if (!this.isConnected) throw new ShoalError('QUEUE_UNREACHABLE', 'the connection to the queue server is lost');
      const asked = names ?? (await this.names.find());
      const [atMs, [reserved, unread], read] = await Promise.all([
        serverTime(this.connection),
        this.connection.hmget(this.keys.load(), 'bytes', 'unread'),
        Promise.all(asked.map((queue) => this.survey(queue))),
      ]);
      const queues = read.filter((one): one is SurveyedQueue => !('problem' in one));
      const live = new Map(queues.flatMap((queue) => queue.live.map((worker) => [worker.workerId, worker])));
      return {
        atMs,
        queues,
        payloadServers: payloadsSeen([...live.values()])?.servers ?? [],
        unread: read.filter((one): one is UnreadQueue => 'problem' in one),
        reservedBytes: Number(reserved ?? 0),
        unreadBytes: Number(unread ?? 0),
      };
    });
  }

  /** Safe to call twice. */
  close(): Promise<void> {
    return closeConnection(this.connection);
  }

  private async survey(queue: string): Promise<SurveyedQueue | UnreadQueue> {
    const place = { prefix: this.prefix, queue };
    try {
      const [[counts], oldestWaitingMs, cancelled, facts, drained, leaving, starting, parked] = await Promise.all([
        runScript(this.connection, SURVEY_QUEUE, [this.questionsOf(queue)]),
        oldestWaiting(this.connection, place),
        countCancelled(this.connection, place),
        liveFacts(this.connection, queue, this.prefix),
        this.connection.smembers(this.keys.drained(mainOf(queue))),
        this.connection.smembers(this.keys.leaving(mainOf(queue))),
        startingWorkersOf(this.connection, queue, this.prefix),
        parkedJobs(this.connection, place),
      ]);
      this.unwell.delete(queue);
      const [interactive, bulk, active, delayed, handedOver, completed, failed, paused, ...rest] = numbersIn(counts);
      const [reservedRows = 0, leftRows = 0, quarantined = 0] = rest;
      const isPaused = paused === 1;
      const waiting = { interactive: interactive ?? 0, bulk: bulk ?? 0 };
      const isAllDrained = drained.includes(ALL_WORKERS);
      const byId = [...facts].toSorted(([a], [b]) => (a < b ? -1 : 1));
      const live = byId.map(([workerId, told]): LiveWorker => {
        const isDrained = isAllDrained || drained.includes(workerId);
        return {
          workerId,
          lanes: [mainOf(queue) === queue ? 'main' : 'cpu'],
          facts: told,
          isDrained,
          isLeaving: leaving.includes(workerId),
          ...standingSeen(told, isDrained, isPaused),
        };
      });
      return {
        queue,
        waiting,
        jobs: {
          active: active ?? 0,
          delayed: Math.max(0, (delayed ?? 0) - totalOf(parked)),
          'handed-over': handedOver ?? 0,
          completed: completed ?? 0,
          failed: Math.max(0, (failed ?? 0) - cancelled),
          cancelled,
        },
        oldestWaitingMs,
        reservedRows,
        leftRows,
        backlog: backlogOf(waiting.interactive + waiting.bulk, live),
        workers: countsOf(live, starting.length),
        live,
        starting,
        isAllDrained,
        isPaused,
        quarantined,
        parked,
        payloadSets: queue.startsWith('embed-') ? payloadsSeen(live)?.sets.length : undefined,
      };
    } catch (error) {
      if (!this.isConnected) throw error;
      if (!this.unwell.has(queue)) this.log?.warn({ err: error, queue }, 'a queue could not be surveyed');
      this.unwell.add(queue);
      return { queue, problem: await this.problemOf(queue, error) };
    }
  }

  private async problemOf(queue: string, error: unknown): Promise<string> {
    const wrong = isWrongType(error) ? await findWrongKeys(this.connection, { prefix: this.prefix, queue }) : [];
    const told = wrong.length > 0 ? queueDamaged(wrong) : error;
    return told instanceof Error ? told.message : String(told);
  }

  private questionsOf(queue: string): (string | number)[] {
    const { keys } = this;
    const quarantine = quarantineQueue(queue);
    const lists = [
      'wait',
      'paused',
      'prioritized',
      'active',
      'delayed',
      'waiting-children',
      'completed',
      'failed',
      'meta',
    ];
    return [
      ...lists.map((name) => keys.job(queue, name)),
      keys.load(),
      keys.drain(queue),
      keys.job(quarantine, 'wait'),
      keys.job(quarantine, 'prioritized'),
      queue,
      keys.job(queue, ''),
      INTERACTIVE_ROWS,
      CLASS_PLACES,
      CLASS_PAGE,
    ];
  }
}

// ---- which queues there are -----------------------------------------------------------------------------------------

const SCAN_KEYS = 5_000;
/** A million keys. What lies behind them is found by a later look: each goes on where the last one ended. */
const MOST_SCANS = 200;
const SCAN_EVERY_MS = 60_000;

/**
 * Names of the queues of a prefix: those that workers and producers noted. Where nobody has, as with workers of 0.1.0
 * alone, those that a scan finds, once a minute and in bounded steps.
 */
class QueueNames {
  private readonly connection: Redis;
  private readonly prefix: string;
  private readonly found = new Set<string>();
  private cursor = '0';
  private scannedMs = Number.NEGATIVE_INFINITY;

  constructor(connection: Redis, prefix: string) {
    this.connection = connection;
    this.prefix = prefix;
  }

  /** Quarantines are told with the queue that they belong to. */
  async find(): Promise<readonly string[]> {
    const noted = await this.connection.smembers(keySpace(this.prefix).queues());
    if (noted.length === 0 && performance.now() - this.scannedMs >= SCAN_EVERY_MS) await this.scan();
    const names = noted.length === 0 ? [...this.found] : noted;
    return names.filter((name) => !name.endsWith(quarantineQueue(''))).sort();
  }

  /** A queue has a hash `<prefix>:<name>:meta` as soon as anybody opened it to add or to work. */
  private async scan(): Promise<void> {
    const [start, end] = [`${this.prefix}:`, ':meta'];
    const match = `${literally(start)}*${end}`;
    if (this.cursor === '0') this.found.clear();
    for (let scans = 0; scans < MOST_SCANS; scans++) {
      const [next, keys] = await this.connection.scan(this.cursor, 'MATCH', match, 'COUNT', SCAN_KEYS, 'TYPE', 'hash');
      for (const name of keys.map((key) => key.slice(start.length, -end.length)))
        if (name !== '' && !name.includes(':')) this.found.add(name);
      this.cursor = next;
      if (next === '0') break;
    }
    this.scannedMs = performance.now();
  }
}

/** Workers are drained under the main lane, whichever lane they are seen in. */
function mainOf(queue: string): string {
  const end = cpuLaneOf('');
  return queue.endsWith(end) ? queue.slice(0, -end.length) : queue;
}

// ---- who serves it --------------------------------------------------------------------------------------------------

type Seen = Pick<LiveWorker, 'facts' | 'state'>;

function countsOf(live: readonly Seen[], starting: number): Record<WorkerState, number> {
  const counts = { starting, ready: 0, braked: 0, paused: 0, draining: 0, drained: 0 };
  for (const { state } of live) counts[state]++;
  return counts;
}

/**
 * CPU workers serve the main lane beside others only where that helps, so they count there where nobody else claims.
 */
export function backlogOf(waitingJobs: number, seen: readonly Seen[]): Backlog {
  const claiming = seen.flatMap(({ facts, state }) => (state === 'ready' && facts !== undefined ? [facts] : []));
  const others = claiming.filter(({ lanes }) => !lanes.includes('cpu'));
  const rates = (others.length > 0 ? others : claiming).map(tokensPerSecondOf);
  const known = rates.filter((rate) => rate !== undefined);
  const tokensPerSecond = known.length === 0 ? undefined : known.reduce((sum, rate) => sum + rate, 0);
  const tokens = waitingJobs === 0 ? 0 : tokensOf(waitingJobs, seen);
  return { tokens, tokensPerSecond, seconds: secondsOf(waitingJobs, tokens, tokensPerSecond, claiming.length) };
}

function secondsOf(
  waitingJobs: number,
  tokens: number | undefined,
  tokensPerSecond: number | undefined,
  claiming: number,
): number | undefined {
  if (waitingJobs === 0) return 0;
  if (claiming === 0) return MOST_BACKLOG_SECONDS;
  if (tokens === undefined || tokensPerSecond === undefined) return undefined;
  return Math.min(MOST_BACKLOG_SECONDS, tokens / tokensPerSecond);
}

/** Waiting jobs are taken to be as long as those that workers completed lately. */
function tokensOf(waitingJobs: number, seen: readonly Seen[]): number | undefined {
  const told = seen.flatMap(({ facts }) => facts?.tokensPerJob ?? []);
  if (told.length === 0) return undefined;
  return (waitingJobs * told.reduce((sum, tokens) => sum + tokens, 0)) / told.length;
}

/** Of the mix of lengths that it ran lately: a token takes the mean of its lengths' times. Undefined before its first run. */
function tokensPerSecondOf({ rates, mix }: WorkerFacts): number | undefined {
  let secondsPerToken = 0;
  for (const [length, share] of Object.entries(mix)) {
    const rate = rates[length as keyof typeof rates];
    if (rate === undefined || !(rate > 0)) return undefined;
    secondsPerToken += share / rate;
  }
  return secondsPerToken > 0 ? 1 / secondsPerToken : undefined;
}

function numbersIn(reply: unknown): number[] {
  return Array.isArray(reply) ? reply.map(Number) : [];
}

// One look at the whole fleet for the page: the survey of every queue, lanes put together, with what each worker did in the
// last ten minutes, those included that died in that time, and whose jobs wait. Read while somebody looks and at no other
// time; what acts on a queue is opened with the first action.

import { cpuLaneOf } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import {
  Fleet,
  LATELY_MS,
  QueueAdmin,
  closeConnection,
  mainLanes,
  openConnection,
  readHistory,
  readTenants,
  successorOf,
  workersWithHistory,
  type FleetSurvey,
  type FleetSurveyed,
  type LiveWorker,
  type PayloadsHere,
  type Redis,
  type StartingWorker,
  type SurveyedQueue,
  type TenantLoad,
  type WorkerHistory,
} from '@shoal/queue';
import type { CellReading } from './cells-reading.ts';

export interface QueueReading {
  /** The main lane. */
  readonly queue: string;
  readonly lanes: readonly SurveyedQueue[];
  readonly quarantined: number;
  /** One that serves both lanes once, by id. */
  readonly workers: readonly LiveWorker[];
  /** Of the main lane and the CPU lane, that are being started and serve nobody yet. */
  readonly starting: readonly StartingWorker[];
  /** Those with most waiting rows, as of some seconds ago. */
  readonly tenants: readonly TenantLoad[];
  /** Whether workers that start later are drained as well. */
  readonly isAllDrained: boolean;
  /** Why it could not be read, in a sentence; the rest is empty then. */
  readonly problem?: string;
}

export interface FleetReading {
  /** By the server's clock, epoch ms. */
  readonly atMs: number;
  readonly queues: readonly QueueReading[];
  /** Where there are any. The rest is of the one at home. */
  readonly cells?: readonly CellReading[] | undefined;
  /** How payload servers of the dashboard's settings fare with it; undefined: none are named, or it is not known yet. */
  readonly payloadsHere?: PayloadsHere | undefined;
  /** Of all queues: what is reserved of the server's memory, and what of it belongs to results that nobody has read. */
  readonly reservedBytes: number;
  readonly unreadBytes: number;
  /** By worker: of live ones and of `gone`. */
  readonly histories: ReadonlyMap<string, WorkerHistory>;
  /** Workers that died without a word in the last ten minutes. */
  readonly gone: readonly WorkerHistory[];
  /** Workers that left in order in that time and have no successor. */
  readonly left: readonly WorkerHistory[];
}

export const HISTORY_MS = LATELY_MS;
/** Finding those that died walks over all keys of the server. */
const LOOK_FOR_DEAD_EVERY_MS = 30_000;
/** Whose jobs wait is told by the jobs themselves: some 4 ms of the server's time. */
const WEIGH_EVERY_MS = 10_000;
const MOST_WEIGHED = 2_000;

export interface FleetReaderOptions {
  /** Closed by whoever opened it. */
  readonly survey: FleetSurvey;
  readonly redisUrl: string;
  readonly prefix: string;
  readonly log: Logger;
}

interface OpenQueue {
  readonly fleet: Fleet;
  readonly admin: QueueAdmin;
}

interface Weighed {
  readonly tenants: readonly TenantLoad[];
  readonly againMs: number;
}

export class FleetReader {
  private readonly options: FleetReaderOptions;
  private readonly connection: Redis;
  private readonly open = new Map<string, Promise<OpenQueue>>();
  private readonly weighed = new Map<string, Weighed>();
  private known: ReadonlySet<string> = new Set();
  private lookForDeadMs = 0;

  constructor(options: FleetReaderOptions) {
    this.options = options;
    const { redisUrl: url, prefix, log } = options;
    this.connection = openConnection({ url, prefix, name: 'shoal:fleet-page', log });
  }

  /** `names`: of all queues, lanes and quarantines among them. Throws QUEUE_UNREACHABLE. */
  async read(names: readonly string[]): Promise<FleetReading> {
    const mains = mainLanes(names);
    const surveyed = await this.options.survey.read(mains.flatMap((queue) => [queue, cpuLaneOf(queue)]));
    const queues = await Promise.all(mains.map((queue) => this.readQueue(queue, surveyed)));
    const { atMs, reservedBytes, unreadBytes } = surveyed;
    const live = new Set(queues.flatMap(({ workers }) => workers.map(({ workerId }) => workerId)));
    // of a queue that could not be read nobody knows who lives
    const unread = new Set(queues.flatMap(({ queue, problem }) => (problem === undefined ? [] : [queue])));
    const asked = new Set([...live, ...(await this.toldLately())]);
    const read = await Promise.all(
      [...asked].map((workerId) =>
        readHistory(this.connection, { prefix: this.options.prefix, workerId }, { nowMs: atMs, lengthMs: HISTORY_MS }),
      ),
    );
    const told = read.filter(({ steps }) => steps.length > 0);
    this.known = new Set([...live, ...told.map(({ workerId }) => workerId)]);
    const absent = told.filter(({ workerId, owner }) => !live.has(workerId) && !unread.has(owner?.queue ?? ''));
    return {
      atMs,
      queues,
      reservedBytes,
      unreadBytes,
      histories: new Map(told.map((history) => [history.workerId, history])),
      gone: absent.filter((history) => !hasLeft(history)),
      left: absent.filter((history) => hasLeft(history) && successorOf(history.workerId, [...live]) === undefined),
    };
  }

  /** What acts on a queue, and reads single jobs of it. */
  queue(name: string): Promise<OpenQueue> {
    const opened = this.open.get(name) ?? this.openQueue(name);
    this.open.set(name, opened);
    return opened;
  }

  /** For what is asked of no queue in particular. */
  get server(): Redis {
    return this.connection;
  }

  /** Safe to call twice. */
  async close(): Promise<void> {
    const opened = await Promise.allSettled(this.open.values());
    const parts = opened.flatMap((one) => (one.status === 'fulfilled' ? [one.value.fleet, one.value.admin] : []));
    await Promise.allSettled([closeConnection(this.connection), ...parts.map((part) => part.close())]);
  }

  /** A queue that cannot be read is shown as such; the others are there all the same. */
  private async readQueue(queue: string, { queues, unread }: FleetSurveyed): Promise<QueueReading> {
    const isHere = (one: { readonly queue: string }): boolean => [queue, cpuLaneOf(queue)].includes(one.queue);
    const lanes = queues.filter(isHere);
    try {
      const problem = unread.find(isHere)?.problem;
      if (problem !== undefined) return nothingOf(queue, problem);
      return {
        queue,
        lanes,
        quarantined: lanes[0]?.quarantined ?? 0,
        workers: workersOf(lanes),
        starting: byId(lanes.flatMap(({ starting }) => starting)),
        tenants: await this.tenantsOf(queue),
        isAllDrained: lanes.some(({ isAllDrained }) => isAllDrained),
      };
    } catch (error) {
      return nothingOf(queue, error instanceof Error ? error.message : String(error));
    }
  }

  private async tenantsOf(queue: string): Promise<readonly TenantLoad[]> {
    const known = this.weighed.get(queue);
    if (known !== undefined && performance.now() < known.againMs) return known.tenants;
    const againMs = performance.now() + WEIGH_EVERY_MS;
    const { tenants } = await readTenants(this.connection, { prefix: this.options.prefix, queue }, MOST_WEIGHED);
    this.weighed.set(queue, { tenants, againMs });
    return tenants;
  }

  private async openQueue(queue: string): Promise<OpenQueue> {
    try {
      const [fleet, admin] = await Promise.all([
        Fleet.connect({ ...this.options, queue }),
        QueueAdmin.connect({ ...this.options, queue }),
      ]);
      return { fleet, admin };
    } catch (error) {
      this.open.delete(queue);
      throw error;
    }
  }

  private async toldLately(): Promise<Iterable<string>> {
    if (performance.now() < this.lookForDeadMs) return this.known;
    const { workerIds } = await workersWithHistory(this.connection, this.options.prefix);
    this.lookForDeadMs = performance.now() + LOOK_FOR_DEAD_EVERY_MS;
    return workerIds;
  }
}

function hasLeft({ steps }: WorkerHistory): boolean {
  return steps.at(-1)?.isLast === true;
}

/** Jobs of a lane that wait, those among them that wait for their time. */
export function waitingIn({ waiting: { interactive, bulk }, jobs: { delayed } }: SurveyedQueue): number {
  return interactive + bulk + delayed;
}

/** A worker of both lanes is paused where both are. */
function workersOf(lanes: readonly SurveyedQueue[]): readonly LiveWorker[] {
  const all = lanes.flatMap(({ live }) => live);
  const awakeLast = all.toSorted((a, b) => Number(a.state !== 'paused') - Number(b.state !== 'paused'));
  return byId(awakeLast).map((worker) => ({
    ...worker,
    lanes: all.filter(({ workerId }) => workerId === worker.workerId).flatMap((one) => one.lanes),
  }));
}

/** Of those with the same id the last. */
function byId<Worker extends { readonly workerId: string }>(all: readonly Worker[]): readonly Worker[] {
  const last = new Map(all.map((one) => [one.workerId, one]));
  return [...last.values()].toSorted((a, b) => (a.workerId < b.workerId ? -1 : 1));
}

function nothingOf(queue: string, problem: string): QueueReading {
  return { queue, lanes: [], quarantined: 0, workers: [], starting: [], tenants: [], isAllDrained: false, problem };
}

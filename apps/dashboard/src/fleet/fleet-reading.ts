// One look at the whole fleet: every queue of the prefix with its lanes and live workers, and what each worker did in the
// last ten minutes, those included that died in that time. Read while somebody looks and at no other time; connections
// are opened with the first look at a queue and kept.

import type { Logger } from '@shoal/core';
import {
  Fleet,
  QueueAdmin,
  closeConnection,
  openConnection,
  readHistory,
  readTenants,
  workersWithHistory,
  type LaneCounts,
  type LiveWorker,
  type QueueCounts,
  type Redis,
  type StartingWorker,
  type TenantLoad,
  type WorkerHistory,
} from '@shoal/queue';

export interface QueueReading {
  /** The main lane. */
  readonly queue: string;
  readonly lanes: readonly LaneCounts[];
  readonly quarantined: number;
  readonly reserved: QueueCounts['reserved'];
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
  /** By worker: of live ones and of `gone`. */
  readonly histories: ReadonlyMap<string, WorkerHistory>;
  /** Workers that died without a word in the last ten minutes. */
  readonly gone: readonly WorkerHistory[];
}

export const HISTORY_MS = 600_000;
/** Finding those that died walks over all keys of the server. */
const LOOK_FOR_DEAD_EVERY_MS = 30_000;
/** Whose jobs wait is told by the jobs themselves: some 4 ms of the server's time. */
const WEIGH_EVERY_MS = 10_000;
const MOST_WEIGHED = 2_000;

export interface FleetReaderOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly log: Logger;
}

interface OpenQueue {
  readonly fleet: Fleet;
  readonly admin: QueueAdmin;
  tenants: readonly TenantLoad[];
  weighAgainMs: number;
}

export class FleetReader {
  private readonly options: FleetReaderOptions;
  private readonly connection: Redis;
  private readonly open = new Map<string, Promise<OpenQueue>>();
  private known: ReadonlySet<string> = new Set();
  private lookForDeadMs = 0;

  constructor(options: FleetReaderOptions) {
    this.options = options;
    const { redisUrl: url, prefix, log } = options;
    this.connection = openConnection({ url, prefix, name: 'shoal:fleet-page', log });
  }

  /** `names`: of all queues, lanes and quarantines among them. Throws QUEUE_UNREACHABLE. */
  async read(names: readonly string[]): Promise<FleetReading> {
    const [clock, ...queues] = await Promise.all([
      this.connection.time(),
      ...mainQueuesOf(names).map((queue) => this.readQueue(queue)),
    ]);
    const atMs = Number(clock[0]) * 1_000 + Number(clock[1]) / 1_000;
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
    return {
      atMs,
      queues,
      histories: new Map(told.map((history) => [history.workerId, history])),
      gone: told.filter(
        ({ workerId, owner, steps }) =>
          !live.has(workerId) && steps.at(-1)?.isLast === false && !unread.has(owner?.queue ?? ''),
      ),
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
  private async readQueue(queue: string): Promise<QueueReading> {
    try {
      const open = await this.queue(queue);
      const { fleet, admin } = open;
      const [view, counts] = await Promise.all([fleet.read(), admin.counts(), this.weigh(queue, open)]);
      const { tenants } = open;
      return {
        queue,
        ...counts,
        workers: view.workers,
        starting: view.starting,
        tenants,
        isAllDrained: view.isAllDrained,
      };
    } catch (error) {
      const problem = error instanceof Error ? error.message : String(error);
      const reserved = { rows: 0, bytes: 0, unreadBytes: 0 };
      return {
        queue,
        lanes: [],
        quarantined: 0,
        reserved,
        workers: [],
        starting: [],
        tenants: [],
        isAllDrained: false,
        problem,
      };
    }
  }

  private async weigh(queue: string, open: OpenQueue): Promise<void> {
    if (performance.now() < open.weighAgainMs) return;
    open.weighAgainMs = performance.now() + WEIGH_EVERY_MS;
    const place = { prefix: this.options.prefix, queue };
    open.tenants = (await readTenants(this.connection, place, MOST_WEIGHED)).tenants;
  }

  private async openQueue(queue: string): Promise<OpenQueue> {
    try {
      const [fleet, admin] = await Promise.all([
        Fleet.connect({ ...this.options, queue }),
        QueueAdmin.connect({ ...this.options, queue }),
      ]);
      return { fleet, admin, tenants: [], weighAgainMs: 0 };
    } catch (error) {
      this.open.delete(queue);
      throw error;
    }
  }

  private async toldLately(): Promise<Iterable<string>> {
    if (performance.now() < this.lookForDeadMs) return this.known;
    const found = await workersWithHistory(this.connection, this.options.prefix);
    this.lookForDeadMs = performance.now() + LOOK_FOR_DEAD_EVERY_MS;
    return found;
  }
}

/** Names of main lanes, of names of queues of any kind. */
export function mainQueuesOf(names: readonly string[]): readonly string[] {
  return [...new Set(names.map((name) => name.replace(/-quarantine$/, '').replace(/-cpu$/, '')))].sort();
}

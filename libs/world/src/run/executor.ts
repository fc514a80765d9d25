// A worker's executor as a process of a world of its own, in place of libs/worker's ForkedExecutor: core's Executor with
// a store over connections of its own and a simulated device. Messages travel as between processes: cloned, in order, a
// moment later. It ends with its claimer, as the real one does, a moment later.

import { keySpace } from '@shoal/contract';
import {
  Executor,
  fixedBudget,
  systemClock,
  type AnyOrder,
  type ExecutorLink,
  type FromExecutor,
  type JobOrder,
  type ToExecutor,
} from '@shoal/core';
import { FakeBackend, READY, type Ready } from '@shoal/core/testing';
import { RedisPayloadStore } from '@shoal/queue/payload';
import type { Process } from '../time/world.ts';
import type { Target } from './plan.ts';
import { recordedStore } from './recorded.ts';
import { CPU_QUEUE, MODEL, PREFIX, QUEUE, REDIS_URL, recorderOf, type Site } from './site.ts';
import { poisonIn } from './texts.ts';

/** Mean time of a message from one process to the other, ms. */
const MESSAGE_MS = 0.1;
/** A run that lasts longer than its claimer waits is a device that hangs, of which its job is suspected. */
const MOST_RUN_MS = 8_000;

interface Child {
  readonly process: Process;
  handle: (message: ToExecutor<JobOrder>) => void;
  lastArrivalMs: number;
}

export class SimulatedExecutor implements ExecutorLink {
  private readonly site: Site;
  private readonly owner: Process;
  private readonly target: Target;
  private readonly messageListeners: ((message: FromExecutor) => void)[] = [];
  private readonly lostListeners: ((reason: string) => void)[] = [];
  private child: Child | undefined;
  private started: PromiseWithResolvers<Ready> | undefined;
  private exited: (() => void) | undefined;
  private isStopping = false;
  private lastArrivalMs = 0;

  constructor(site: Site, owner: Process, target: Target) {
    this.site = site;
    this.owner = owner;
    this.target = target;
    owner.onDeath.push(() => this.endWithOwner());
  }

  start(): Promise<Ready> {
    const { world, targets } = this.site;
    const process = world.newProcess(this.target, { wallOffsetMs: this.owner.wallOffsetMs });
    const child: Child = { process, handle: () => undefined, lastArrivalMs: 0 };
    this.child = child;
    targets.set(this.target, process);
    const started = Promise.withResolvers<Ready>();
    this.started = started;
    process.onDeath.push(() => this.buried(child));
    world.start(process, () => this.open(child));
    return started.promise;
  }

  send(message: ToExecutor<AnyOrder>): void {
    const { child } = this;
    if (child === undefined) return;
    const copy = structuredClone(message) as ToExecutor<JobOrder>;
    const { world } = this.site;
    child.lastArrivalMs = Math.max(child.lastArrivalMs, this.leavesAt(this.owner) + this.travelMs());
    world.at(child.process, child.lastArrivalMs, `message ${copy.kind}`, () => child.handle(copy));
  }

  onMessage(listener: (message: FromExecutor) => void): void {
    this.messageListeners.push(listener);
  }

  onLost(listener: (reason: string) => void): void {
    this.lostListeners.push(listener);
  }

  kill(): void {
    if (this.child !== undefined) this.site.world.kill(this.child.process);
  }

  stop(): Promise<void> {
    this.isStopping = true;
    if (this.child === undefined) return Promise.resolve();
    const exited = new Promise<void>((resolve) => (this.exited = resolve));
    this.send({ kind: 'stop' });
    return exited;
  }

  // ---- in the child ---------------------------------------------------------------------------------------------

  private async open(child: Child): Promise<void> {
    const { site } = this;
    const { world } = site;
    const tell = (message: FromExecutor): void => this.tell(child, structuredClone(message));
    try {
      const store = await RedisPayloadStore.connect({
        redisUrl: REDIS_URL,
        prefix: PREFIX,
        queue: QUEUE,
        cpuQueue: CPU_QUEUE,
        log: site.log,
      });
      const random = child.process.random.fork('device');
      const backend = new FakeBackend({
        clock: systemClock,
        runMs: () => Math.min(MOST_RUN_MS, 1 + random.longTailed(site.plan.deviceMs)),
      });
      const isPoison = poisonIn(site.plan.jobs, site.tokenizer);
      backend.runsOutOfVramWhen(({ ids }) => {
        if (ids.some(isPoison)) world.kill(child.process);
        return 'fits';
      });
      const executor = new Executor({
        store: recordedStore(store, recorderOf(site, child.process)),
        backend,
        budget: fixedBudget({ maxPaddedTokens: 256, maxRows: 16 }),
        tokenizer: site.tokenizer,
        clock: systemClock,
        log: site.log,
        limits: { maxRowAgeMs: 50, windowRows: 8, maxWaitMs: 1, minRows: 1 },
        isLastLane: true,
        model: MODEL,
        prompts: { query: '', passage: '' },
        resultKey: (resultId) => keySpace(PREFIX).output(QUEUE, resultId),
        send: tell,
        faults: site.faults,
      });
      const close = async (): Promise<void> => {
        await executor.stop();
        await backend.stop();
        await store.stop();
        world.kill(child.process);
      };
      child.handle = (message) => {
        if (message.kind === 'stop') void close();
        else executor.handle(message);
      };
      tell({ ...READY, pid: 10_000 + child.process.id });
    } catch (error) {
      site.log.error({ err: error }, 'executor did not start');
      world.kill(child.process);
    }
  }

  private tell(child: Child, message: FromExecutor): void {
    if (!child.process.isAlive) return;
    this.deliver(child, `message ${message.kind}`, () => {
      if (message.kind === 'ready') this.started?.resolve(message);
      else if (this.child === child) for (const listener of this.messageListeners) listener(message);
    });
  }

  private buried(child: Child): void {
    this.deliver(child, 'executor ended', () => {
      if (this.child !== child) return;
      this.child = undefined;
      this.started?.reject(new Error('the executor ended before it was ready'));
      this.exited?.();
      if (!this.isStopping) for (const listener of this.lostListeners) listener('killed by SIGKILL');
    });
  }

  private endWithOwner(): void {
    const { child } = this;
    const { world } = this.site;
    if (child !== undefined)
      world.after(child.process, this.travelMs(), 'claimer ended', () => world.kill(child.process));
  }

  /** To the claimer, behind what was sent before. */
  private deliver({ process }: Child, kind: string, arrive: () => void): void {
    const { world } = this.site;
    this.lastArrivalMs = Math.max(this.lastArrivalMs, this.leavesAt(process) + this.travelMs());
    world.at(this.owner, this.lastArrivalMs, kind, arrive);
  }

  /** Who was stopped in this step sends when it goes on; a dead one has nothing to wait for. */
  private leavesAt({ isAlive, freeAtMs }: Process): number {
    const { nowMs } = this.site.world;
    return isAlive ? Math.max(nowMs, freeAtMs) : nowMs;
  }

  private travelMs(): number {
    return this.owner.random.longTailed(MESSAGE_MS);
  }
}

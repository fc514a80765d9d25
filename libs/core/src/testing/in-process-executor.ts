// An ExecutorLink whose executor is core's own, in this very process, so that both halves of the pipeline are tested
// together. Each start is a new "process" with a device of its own; one that dies does nothing any more, not even to
// the payload store. Messages are cloned as between processes and arrive in order, a moment later.

import { Executor, type ExecutorLimits } from '../executor/executor.ts';
import { isShoalError } from '@shoal/contract';
import { noFaults } from '../base/fault-points.ts';
import type { BatchBudget } from '../ports/device.ts';
import type { Clock } from '../ports/clock.ts';
import type { ExecutorLink } from '../ports/link.ts';
import type { Logger } from '../ports/logger.ts';
import type { PayloadStore } from '../ports/payload.ts';
import type { BatchTokenizer } from '../ports/tokenizer.ts';
import type { FromExecutor, ToExecutor } from '../protocol.ts';
import { FakeBackend } from './fake-backend.ts';
import { READY, type Ready } from './fake-executor-link.ts';

export interface InProcessExecutorOptions {
  readonly clock: Clock;
  readonly store: PayloadStore;
  readonly tokenizer: BatchTokenizer;
  readonly log: Logger;
  readonly limits: ExecutorLimits;
  readonly isLastLane: boolean;
  /** Of the `start`-th process. */
  readonly newBudget: (start: number) => BatchBudget;
  /** The device of the `start`-th process, the first being 1. */
  readonly newBackend: (clock: Clock, start: number) => FakeBackend;
  /** How long a message travels; one never overtakes another. Default 0: until the next microtask. */
  readonly latencyMs?: () => number;
  /** Of what a result is kept under; default a name of its own, for stores that know of no other. */
  readonly resultKey?: (resultId: string) => string;
}

interface Process {
  readonly clock: MortalClock;
  readonly backend: FakeBackend;
  readonly executor: Executor;
  isAlive: boolean;
  readonly exitListeners: (() => void)[];
}

export class InProcessExecutor implements ExecutorLink {
  starts = 0;
  readonly kills: string[] = [];
  private readonly options: InProcessExecutorOptions;
  private readonly messageListeners: ((message: FromExecutor) => void)[] = [];
  private readonly lostListeners: ((reason: string) => void)[] = [];
  private process: Process | undefined;
  private isStopping = false;
  private lastArrivalMs = 0;

  constructor(options: InProcessExecutorOptions) {
    this.options = options;
  }

  /** The device of the living process. */
  get backend(): FakeBackend | undefined {
    return this.process?.backend;
  }

  async start(): Promise<Ready> {
    this.process = this.spawn();
    return READY;
  }

  send(message: ToExecutor): void {
    const { process } = this;
    if (process === undefined) return;
    const copy = structuredClone(message);
    this.deliver(() => {
      if (!process.isAlive) return;
      if (copy.kind === 'stop') void this.exit(process);
      else process.executor.handle(copy);
    });
  }

  onMessage(listener: (message: FromExecutor) => void): void {
    this.messageListeners.push(listener);
  }

  onLost(listener: (reason: string) => void): void {
    this.lostListeners.push(listener);
  }

  kill(reason: string): void {
    if (this.process === undefined) return;
    this.kills.push(reason);
    this.die(reason);
  }

  async stop(): Promise<void> {
    this.isStopping = true;
    const { process } = this;
    if (process === undefined) return;
    const exited = new Promise<void>((resolve) => process.exitListeners.push(resolve));
    this.send({ kind: 'stop' });
    await exited;
  }

  /** As by SIGKILL: nothing of the process happens from now on. */
  die(reason = 'killed by SIGKILL'): void {
    const { process } = this;
    if (process === undefined) return;
    this.bury(process);
    if (!this.isStopping) this.deliver(() => this.lostListeners.forEach((listener) => listener(reason)));
  }

  private async exit(process: Process): Promise<void> {
    await process.executor.stop();
    await process.backend.stop();
    this.deliver(() => {
      if (process.isAlive) this.bury(process);
    });
  }

  private bury(process: Process): void {
    process.isAlive = false;
    process.clock.die();
    if (this.process === process) this.process = undefined;
    for (const listener of process.exitListeners.splice(0)) listener();
  }

  private spawn(): Process {
    const { store, tokenizer, log, limits, isLastLane } = this.options;
    const clock = new MortalClock(this.options.clock);
    const backend = this.options.newBackend(clock, ++this.starts);
    this.crashWhenDeviceIsLost(backend);
    const mortal = mortalStore(store, () => process.isAlive);
    const send = (message: FromExecutor): void => {
      if (!process.isAlive) return;
      const copy = structuredClone(message);
      this.deliver(() => this.messageListeners.forEach((listener) => listener(copy)));
    };
    const executor = new Executor({
      store: mortal,
      backend,
      tokenizer,
      clock,
      log,
      limits,
      isLastLane,
      send,
      budget: this.options.newBudget(this.starts),
      model: READY.model,
      prompts: { query: '', passage: '' },
      resultKey: this.options.resultKey ?? ((resultId) => `out:${resultId}`),
      faults: noFaults,
    });
    const process: Process = { clock, backend, executor, isAlive: true, exitListeners: [] };
    return process;
  }

  /** A lost device is nothing an executor survives: there its process would end. */
  private crashWhenDeviceIsLost(backend: FakeBackend): void {
    const run = backend.run.bind(backend);
    backend.run = async (slot, shape, options) => {
      try {
        return await run(slot, shape, options);
      } catch (error) {
        if (!isShoalError(error, 'DEVICE_LOST')) throw error;
        if (this.process?.backend === backend) this.die('device lost');
        return new Promise<never>(() => undefined);
      }
    };
  }

  private deliver(arrive: () => void): void {
    const { clock, latencyMs } = this.options;
    if (latencyMs === undefined) return queueMicrotask(arrive);
    this.lastArrivalMs = Math.max(this.lastArrivalMs, clock.nowMs() + latencyMs());
    clock.after(this.lastArrivalMs - clock.nowMs(), arrive);
  }
}

/** The clock of one process: its timers die with it. */
class MortalClock implements Clock {
  private readonly clock: Clock;
  private readonly timers = new Set<() => void>();

  constructor(clock: Clock) {
    this.clock = clock;
  }

  nowMs(): number {
    return this.clock.nowMs();
  }

  after(delayMs: number, wake: () => void): () => void {
    const cancel = this.clock.after(delayMs, () => {
      this.timers.delete(cancel);
      wake();
    });
    this.timers.add(cancel);
    return () => {
      this.timers.delete(cancel);
      cancel();
    };
  }

  die(): void {
    for (const cancel of this.timers) cancel();
    this.timers.clear();
  }
}

/** The store as one process sees it: a dead one asks nothing and hears no answer. */
function mortalStore(store: PayloadStore, isAlive: () => boolean): PayloadStore {
  const never = new Promise<never>(() => undefined);
  const whileAlive = async <T>(ask: () => Promise<T>): Promise<T> => {
    if (!isAlive()) return never;
    const answer = await ask();
    return isAlive() ? answer : never;
  };
  return {
    read: (jobs) => whileAlive(() => store.read(jobs)),
    commit: (requests) => whileAlive(() => store.commit(requests)),
    stop: async () => undefined,
  };
}

// Looks at the fleet once a second for a worker, and follows: opens and closes the main lane for a CPU worker (core's
// lane-choice.ts decides), and says aloud when jobs wait in the CPU lane that nobody serves. Claims nothing itself.

import { chooseLane, type Clock, type Hybrid, type LaneChoice, type Logger, type WorkerLoad } from '@shoal/core';
import type { FleetView, LiveWorker } from './fleet.ts';
import type { MainLaneGate } from './lanes-source.ts';

export interface FleetWatchOptions {
  readonly read: () => Promise<FleetView>;
  readonly onView: (view: FleetView) => void;
  readonly clock: Clock;
  readonly log: Logger;
}

const LOOK_MS = 1_000;

/** States: *new* → *looking* → *stopped*; any of them may be stopped, and a look under way is waited for. */
export class FleetWatch {
  private readonly options: FleetWatchOptions;
  private isStopped = false;
  private looking: Promise<void> = Promise.resolve();
  private cancel: () => void = () => undefined;

  constructor(options: FleetWatchOptions) {
    this.options = options;
  }

  /** Resolves after the first look. */
  async start(): Promise<void> {
    this.looking = this.look();
    await this.looking;
  }

  /** Does not wait for a server that is away: whoever owns the connection closes it. */
  async stop(): Promise<void> {
    this.isStopped = true;
    this.cancel();
  }

  private async look(): Promise<void> {
    const { read, onView, clock, log } = this.options;
    try {
      const view = await read();
      if (!this.isStopped) onView(view);
    } catch (error) {
      if (!this.isStopped) log.debug({ err: error }, 'the fleet could not be looked at, trying again');
    }
    if (!this.isStopped) this.cancel = clock.after(LOOK_MS, () => (this.looking = this.look()));
  }
}

export interface HybridGateOptions {
  readonly workerId: string;
  readonly hybrid: Hybrid;
  readonly ageLimitMs: number;
  readonly load: () => WorkerLoad;
  readonly clock: Clock;
  readonly log: Logger;
}

/** A GPU worker that was seen lately may only be late in showing itself, as after an outage of the server. */
const ABSENCE_MS = 3_000;

/** Closed until it has seen the fleet, unless the setting alone decides. */
export class HybridGate implements MainLaneGate {
  private readonly options: HybridGateOptions;
  private readonly listeners: (() => void)[] = [];
  private seenGpuAtMs = -Infinity;
  private chosen: LaneChoice | undefined;
  private taken = 0;

  constructor(options: HybridGateOptions) {
    this.options = options;
  }

  /** What holds now; undefined before the first look. */
  get choice(): LaneChoice | undefined {
    return this.chosen;
  }

  allows(limit: number): number {
    if (this.options.hybrid === 'always') return limit;
    return Math.max(0, Math.min(limit, (this.chosen?.jobs ?? 0) - this.taken));
  }

  took(jobs: number): void {
    this.taken += jobs;
  }

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  see(view: FleetView): void {
    const { clock, log } = this.options;
    const next = this.choose(view);
    const isGpuSeen = next.reason !== 'no-gpu-worker';
    if (isGpuSeen) this.seenGpuAtMs = clock.nowMs();
    else if (clock.nowMs() - this.seenGpuAtMs < ABSENCE_MS) return;
    if (next.reason !== this.chosen?.reason)
      log.info(
        {
          reason: next.reason,
          was: this.chosen?.reason,
          waiting: view.lanes.main.waiting,
          oldestMs: view.lanes.main.oldestMs,
        },
        'what this worker takes from the main lane has changed',
      );
    this.chosen = next;
    this.taken = 0;
    for (const listener of this.listeners) listener();
  }

  private choose({ lanes, workers }: FleetView): LaneChoice {
    const { workerId, hybrid, ageLimitMs, load } = this.options;
    const others = workers
      .filter((worker) => worker.workerId !== workerId && worker.lanes.includes('main'))
      .map(toOther);
    return chooseLane(
      { hybrid, ageLimitMs, others, own: load(), backlog: { jobs: lanes.main.waiting, oldestMs: lanes.main.oldestMs } },
      this.chosen,
    );
  }
}

const NO_LOAD: WorkerLoad = { rates: {}, mix: {}, claims: 0, poolTokens: 0, tokensPerJob: undefined };

function toOther({ facts, lanes, isDrained }: LiveWorker): Parameters<typeof chooseLane>[0]['others'][number] {
  return { ...NO_LOAD, ...facts, lanes, isDrained };
}

/** Says once that the CPU lane is left alone, and once that it is served again. */
export function alarmOfCpuLane(log: Logger): (view: FleetView) => void {
  let isAlone = false;
  return ({ lanes, workers }) => {
    const { waiting, queue, oldestMs } = lanes.cpu;
    const isServed = workers.some((worker) => worker.lanes.includes('cpu') && !worker.isDrained);
    if (!isServed && waiting > 0 && !isAlone)
      log.warn(
        { queue, waiting, oldestMs },
        'jobs wait in the CPU lane and no CPU worker is alive; start one with shoal worker --device cpu',
      );
    if (isServed && isAlone) log.info({ queue, waiting }, 'the CPU lane is served again');
    isAlone = !isServed && (waiting > 0 || isAlone);
  };
}

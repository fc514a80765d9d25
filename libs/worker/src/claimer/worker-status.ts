// Whether a worker is ready, and why not: for /readyz, /livez and the gauges beside them. In which state it is, and since
// when, is told by its Standing; this adds the queue server. Decides nothing.

import type { Clock, LoadMeter, Metrics } from '@shoal/core';
import type { Standing } from './worker-standing.ts';

/** An executor that was not there for so long does not come back: its start may take three minutes, a few times over. */
const EXECUTOR_GONE_MS = 600_000;

/** What a probe answers: 200 where there are no reasons against it, else 503. */
export interface ProbeAnswer {
  readonly reasons: readonly string[];
  readonly facts: Readonly<Record<string, unknown>>;
}

export interface WorkerStatusParts {
  readonly clock: Clock;
  readonly meter: Pick<LoadMeter, 'load'>;
  /** Whether the queue server answers. */
  readonly isServerUp: () => boolean;
}

export class WorkerStatus {
  private readonly parts: WorkerStatusParts;
  /** Since when there is no executor; undefined while one is up. */
  private executorGoneMs: number | undefined;
  private standing: Pick<Standing, 'told'> | undefined;

  constructor(parts: WorkerStatusParts) {
    this.parts = parts;
    this.executorGoneMs = parts.clock.nowMs();
  }

  /** The same metrics, listened to. */
  tap(metrics: Metrics): Metrics {
    return {
      ...metrics,
      executorReady: (pid) => {
        this.executorGoneMs = undefined;
        metrics.executorReady(pid);
      },
      executorLost: (reason, words) => {
        this.executorGoneMs = this.parts.clock.nowMs();
        metrics.executorLost(reason, words);
      },
    };
  }

  /** Others see it from now on. */
  shown(standing: Pick<Standing, 'told'>): void {
    this.standing = standing;
  }

  get isExecutorUp(): boolean {
    return this.executorGoneMs === undefined;
  }

  /**
   * Whether this worker takes jobs: its executor is ready, so the device gave known texts their known vectors; others see
   * it; nobody drained it or told it to end; and the queue server answers. A brake and a paused queue are no reasons: all
   * workers have them, and starting another changes nothing.
   */
  ready(): ProbeAnswer {
    const { state, reason } = this.standing?.told() ?? {
      state: 'starting',
      reason: this.isExecutorUp ? 'others do not see it yet' : 'its executor is starting',
    };
    const isIn = state === 'ready' || state === 'braked' || state === 'paused';
    const reasons = [
      ...(isIn ? [] : [reason]),
      ...(this.parts.isServerUp() ? [] : ['the queue server does not answer']),
    ];
    return { reasons, facts: { state, claims: this.parts.meter.load().claims } };
  }

  /**
   * Whether this process can still do its work: that it answers shows that its event loop turns, and an executor is
   * there or was not gone for long. Never about the queue server: restarting workers does not mend it.
   */
  live(): ProbeAnswer {
    const goneMs = this.executorGoneMs === undefined ? 0 : this.parts.clock.nowMs() - this.executorGoneMs;
    const reasons = goneMs < EXECUTOR_GONE_MS ? [] : [`no executor was ready for ${Math.round(goneMs / 1_000)} s`];
    return { reasons, facts: {} };
  }
}

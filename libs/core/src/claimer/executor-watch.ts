// Asks the executor a few times per timeout whether it lives, and has one killed that is silent or whose run never
// ends. A run that hangs is the fault of what is at the device; silence is not: the thread that answers does not run
// the model.

import type { Clock } from '../ports/clock.ts';
import type { Logger } from '../ports/logger.ts';

export interface ExecutorWatchParts {
  readonly clock: Clock;
  readonly timeoutMs: number;
  readonly log: Logger;
  /** Sends a ping, or does nothing while no executor is up. */
  readonly ping: (sequence: number) => void;
  readonly onSilent: (reason: string) => void;
  readonly onHung: (reason: string) => void;
  /** How many jobs the executor has. */
  readonly openJobs: () => number;
}

const LOOKS_PER_TIMEOUT = 4;

export class ExecutorWatch {
  private readonly parts: ExecutorWatchParts;
  private lastAnswerMs = 0;
  private lastProgressMs = 0;
  private sequence = 0;
  private cancel: () => void = () => undefined;

  constructor(parts: ExecutorWatchParts) {
    this.parts = parts;
  }

  start(): void {
    this.renewed();
    this.look();
  }

  stop(): void {
    this.cancel();
  }

  /** Starts counting anew: another executor is up. */
  renewed(): void {
    this.lastAnswerMs = this.parts.clock.nowMs();
    this.progressed();
  }

  /** Notes that the executor said something that it says only when work went on. */
  progressed(): void {
    this.lastProgressMs = this.parts.clock.nowMs();
  }

  /** Takes the answer to a ping. `runningMs`: how long the run at the device has been going on; 0: there is none. */
  answered(runningMs: number): void {
    const { clock, timeoutMs, onHung, openJobs, log } = this.parts;
    this.lastAnswerMs = clock.nowMs();
    if (runningMs > timeoutMs) return onHung(`a run has lasted ${Math.round(runningMs)} ms`);
    const idleMs = this.lastAnswerMs - this.lastProgressMs;
    if (runningMs > 0 || openJobs() === 0 || idleMs <= timeoutMs) return;
    // Its jobs keep their leases: it cannot reach the queue server, or the server refuses what it writes.
    log.warn({ jobs: openJobs(), durationMs: Math.round(idleMs) }, 'the executor lives but makes no progress');
    this.progressed();
  }

  private look(): void {
    const { clock, timeoutMs, ping, onSilent } = this.parts;
    const silentMs = clock.nowMs() - this.lastAnswerMs;
    if (silentMs > timeoutMs) onSilent(`no answer for ${Math.round(silentMs)} ms`);
    else ping(++this.sequence);
    this.cancel = clock.after(timeoutMs / LOOKS_PER_TIMEOUT, () => this.look());
  }
}

// Which open jobs are due: lists of those that something is to be done for, by their step. Looking through all jobs
// would take long: it is done with every few jobs that end, and thousands may be open.

import type { Again } from '@shoal/queue';
import type { OpenJob, Step } from './steps.ts';

type ToAdd = Extract<Step, { name: 'to-add' }>;
type Waiting = Extract<Step, { name: 'waiting' }>;

export interface DueToAdd {
  /** Jobs that were never on the queue. */
  readonly toEnter: readonly OpenJob[];
  /** The others, by what is to happen where the queue has them already. */
  readonly toAdd: Readonly<Record<Again, readonly OpenJob[]>>;
  /** When the next job is due that is not yet; Infinity: there is none. */
  readonly nextMs: number;
}

export class StepLists {
  private readonly toAdd = new Set<OpenJob>();
  private readonly toFetch = new Set<OpenJob>();
  private readonly waiting = new Set<OpenJob>();
  /** No *waiting* job is to be looked up before this time. */
  private lookMs = Infinity;

  /** When a *waiting* job may be due to be looked up. */
  get nextLookMs(): number {
    return this.lookMs;
  }

  /** Makes every change of a job's step: nobody else writes it. A reply that came during the last step is forgotten. */
  move(job: OpenJob, step: Step): void {
    for (const list of [this.toAdd, this.toFetch, this.waiting]) list.delete(job);
    job.step = step;
    job.announced = undefined;
    if (step.name === 'to-add') this.toAdd.add(job);
    else if (step.name === 'to-fetch') this.toFetch.add(job);
    else if (step.name === 'waiting') {
      this.waiting.add(job);
      this.lookMs = Math.min(this.lookMs, step.askAtMs);
    }
  }

  /**
   * Jobs to be added now. Those that the queue has not let in yet wait until `heldBackUntilMs`, and none of them passes
   * an earlier one that pauses after a fault of the server.
   */
  dueToAdd(nowMs: number, heldBackUntilMs = 0): DueToAdd {
    const toAdd: Record<Again, OpenJob[]> = { 'when-used-up': [], always: [], never: [] };
    const toEnter: OpenJob[] = [];
    let nextMs = Infinity;
    let firstPaused = Infinity;
    for (const job of this.toAdd) {
      const { again, notBeforeMs } = job.step as ToAdd;
      const dueMs = Math.max(notBeforeMs, job.wasLetIn ? 0 : heldBackUntilMs);
      const isFirstAdd = !job.wasLetIn && again === 'when-used-up';
      if (dueMs > nowMs) {
        nextMs = Math.min(nextMs, dueMs);
        if (isFirstAdd) firstPaused = Math.min(firstPaused, job.number);
      } else if (isFirstAdd) toEnter.push(job);
      else toAdd[again].push(job);
    }
    const inOrder = toEnter.filter(({ number }) => number < firstPaused).sort((a, b) => a.number - b.number);
    return { toEnter: inOrder, toAdd, nextMs };
  }

  /** Jobs to be looked up now. */
  dueToAsk(nowMs: number): readonly OpenJob[] {
    if (nowMs < this.lookMs) return [];
    this.lookMs = Infinity;
    const due: OpenJob[] = [];
    for (const job of this.waiting) {
      const { askAtMs } = job.step as Waiting;
      if (askAtMs <= nowMs) due.push(job);
      else this.lookMs = Math.min(this.lookMs, askAtMs);
    }
    return due;
  }

  /** Jobs whose results are to be read. */
  dueToFetch(): readonly OpenJob[] {
    return [...this.toFetch];
  }
}

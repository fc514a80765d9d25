// What a worker did in the last ten seconds, in one small record: what the fleet page draws its lines from, without any
// other program that keeps numbers. Counted from what passes on the way to the metrics, like the load in load-meter.ts.

import type { Metrics } from '../ports/metrics.ts';

/** A micro-batch as it ran: rows, tokens of its longest row, real tokens, milliseconds at the device. */
export type RanBatch = readonly [rows: number, width: number, tokens: number, runMs: number];

/** What can go wrong, or be put right, and is counted by its reason. */
export const HISTORY_EVENTS = ['failed', 'quarantined', 'handed-over', 'split', 'lost', 'recycled'] as const;
export type HistoryEvent = (typeof HISTORY_EVENTS)[number];

export interface HistoryStep {
  readonly v: 1;
  /** How long the step was. */
  readonly ms: number;
  /** Jobs that were completed, rows and tokens that ran, padding included in `padded`. */
  readonly jobs: number;
  readonly texts: number;
  readonly tokens: number;
  readonly padded: number;
  readonly runs: number;
  /** Milliseconds of runs; of runs side by side the sum. */
  readonly busyMs: number;
  /** The last ones of the step, oldest first. */
  readonly batches: readonly RanBatch[];
  /** The one that took longest, and some of the jobs in it. */
  readonly slowest?: { readonly batch: RanBatch; readonly jobs: number; readonly jobIds: readonly string[] };
  /** How often each happened, by `<event> <code or reason>`. */
  readonly events: Readonly<Record<string, number>>;
}

const MOST_BATCHES = 8;
const MOST_JOB_IDS = 3;
/** Reasons are codes and a few sentences of ours; whatever else there is goes together. */
const MOST_EVENTS = 16;
const MOST_REASON_CHARACTERS = 80;

export class HistoryMeter {
  private readonly nowMs: () => number;
  private startedMs: number;
  private counts = noCounts();
  private batches: RanBatch[] = [];
  private slowest: HistoryStep['slowest'];
  private events: Record<string, number> = {};

  /** `nowMs`: of a clock that never goes back. */
  constructor(nowMs: () => number) {
    this.nowMs = nowMs;
    this.startedMs = nowMs();
  }

  /** The same metrics, counted here as well. */
  tap(metrics: Metrics): Metrics {
    return {
      ...metrics,
      jobSettled: (job) => {
        if (job.outcome === 'complete') this.counts.jobs++;
        else if (job.outcome === 'fail') this.note('failed', job.code);
        else if (job.outcome === 'quarantine') this.note('quarantined', job.code);
        else if (job.outcome === 'hand-over') this.note('handed-over', job.code);
        metrics.jobSettled(job);
      },
      microBatchRan: (run) => {
        this.ran(run);
        metrics.microBatchRan(run);
      },
      microBatchSplit: (code) => {
        this.note('split', code);
        metrics.microBatchSplit(code);
      },
      executorLost: (reason, words) => {
        this.note('lost', words);
        metrics.executorLost(reason, words);
      },
      executorRecycled: (reason) => {
        this.note('recycled', reason);
        metrics.executorRecycled(reason);
      },
    };
  }

  private note(event: HistoryEvent, reason: string | undefined): void {
    const wanted = `${event} ${(reason ?? '').slice(0, MOST_REASON_CHARACTERS).toWellFormed()}`.trim();
    const isNew = this.events[wanted] === undefined && Object.keys(this.events).length >= MOST_EVENTS;
    const name = isNew ? `${event} for other reasons` : wanted;
    this.events[name] = (this.events[name] ?? 0) + 1;
  }

  /** What happened since this was called last. */
  take(): HistoryStep {
    const { counts, batches, events, slowest } = this;
    const ms = Math.max(1, Math.round(this.nowMs() - this.startedMs));
    this.startedMs = this.nowMs();
    [this.counts, this.batches, this.events, this.slowest] = [noCounts(), [], {}, undefined];
    const step = { v: 1, ms, ...counts, busyMs: Math.round(counts.busyMs), batches, events } as const;
    return slowest === undefined ? step : { ...step, slowest };
  }

  private ran({ rows, width, tokens, runMs, jobIds }: Parameters<Metrics['microBatchRan']>[0]): void {
    const { counts, batches } = this;
    counts.texts += rows;
    counts.tokens += tokens;
    counts.padded += rows * width;
    counts.runs++;
    counts.busyMs += runMs;
    const batch: RanBatch = [rows, width, tokens, Math.round(runMs * 10) / 10];
    batches.push(batch);
    if (batches.length > MOST_BATCHES) batches.shift();
    if (runMs > (this.slowest?.batch[3] ?? -1))
      this.slowest = { batch, jobs: jobIds?.size ?? 0, jobIds: [...(jobIds ?? [])].slice(0, MOST_JOB_IDS) };
  }
}

function noCounts(): Record<'jobs' | 'texts' | 'tokens' | 'padded' | 'runs' | 'busyMs', number> {
  return { jobs: 0, texts: 0, tokens: 0, padded: 0, runs: 0, busyMs: 0 };
}

// One cell as a client uses it: the line to its queue, whether it answers, and how full it is. It is asked twice a
// second while the client is open; who does not answer within a second is *away*, and so is one whose connection broke
// or that never answered. New work goes past a cell that is away; what it has waits for it.

import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises';
import { toFailure, type ErrorCode } from '@shoal/contract';
import type { Cell, Logger } from '@shoal/core';
import type { CellLoad } from '@shoal/queue';
import { QueueLine } from '../queue-line.ts';

/** A cell that takes no writes, or serves nobody, gets no new work for so long. */
const REFUSING_MS = 10_000;
/** A cell that left the list is closed when nothing was open there for so long. */
const IDLE_MS = 10_000;

export interface CellLineParts {
  readonly open: (cell: Cell) => Promise<QueueLine>;
  readonly log: Logger | undefined;
  /** How long it has for an answer, and a lost connection to come back, before its new work goes elsewhere. */
  readonly awayAfterMs: number;
  /** It is away for good enough that its new work is to go elsewhere. Once each time. */
  readonly onAway: (line: CellLine) => void;
}

export class CellLine {
  readonly name: string;
  cell: Cell;
  /** Undefined until it has answered once. */
  line: QueueLine | undefined;
  /** What was wrong when it was asked last. */
  problem: unknown;
  private readonly parts: CellLineParts;
  private awaySinceMs: number | undefined = performance.now();
  private wasToldAway = false;
  private refusingUntilMs = 0;
  private jobs = 0;
  private workers = 0;
  private sent = 0;
  private idleSinceMs = performance.now();
  private looking: Promise<void> | undefined;
  private isClosed = false;

  constructor(cell: Cell, parts: CellLineParts) {
    this.name = cell.name;
    this.cell = cell;
    this.parts = parts;
  }

  get isReachable(): boolean {
    return this.line !== undefined && this.awaySinceMs === undefined;
  }

  get takesWork(): boolean {
    return this.cell.write !== false && performance.now() >= this.refusingUntilMs;
  }

  get load(): CellLoad & { readonly open: number } {
    const open = this.line?.jobs.standing().open ?? 0;
    return { name: this.name, jobs: this.jobs + this.sent, open, workers: this.workers };
  }

  /** Nothing was open here for a while. */
  get isIdle(): boolean {
    return performance.now() - this.idleSinceMs > IDLE_MS;
  }

  wasSent(jobs: number): void {
    this.sent += jobs;
    this.idleSinceMs = performance.now();
  }

  /** It answers and did not take a job. */
  refused(code: ErrorCode): void {
    if (code !== 'QUEUE_UNREACHABLE' && code !== 'ADMISSION_REFUSED')
      this.refusingUntilMs = performance.now() + REFUSING_MS;
  }

  /** Asks how it is, or opens it. One at a time; never rejects. */
  look(): Promise<void> {
    return (this.looking ??= this.lookNow().finally(() => (this.looking = undefined)));
  }

  async close(): Promise<void> {
    this.isClosed = true;
    await this.line?.close();
  }

  private async lookNow(): Promise<void> {
    if (this.line === undefined) return this.open();
    if (this.line.jobs.standing().open > 0 || this.line.replies.isWaitedFor) this.idleSinceMs = performance.now();
    const askedMs = performance.now();
    const { sent } = this;
    const waiting = await answerWithin(this.parts.awayAfterMs, this.line.whyWaiting());
    if (waiting === undefined || waiting.reason === 'server-away') return this.away(askedMs);
    if (this.awaySinceMs !== undefined) this.back();
    // what was sent meanwhile may or may not be in the answer
    this.sent -= sent;
    this.jobs = waiting.waiting + waiting.active;
    this.workers = waiting.isPaused ? 0 : waiting.workers;
  }

  private async open(): Promise<void> {
    try {
      const line = await this.parts.open(this.cell);
      if (this.isClosed) return await line.close();
      this.line = line;
      line.producer.onConnection((event) => {
        if (event === 'lost') this.awaySinceMs ??= performance.now();
        else void this.look();
      });
      this.back();
      await this.lookNow();
    } catch (error) {
      this.problem = error;
      this.away(performance.now());
    }
  }

  private away(sinceMs: number): void {
    this.awaySinceMs ??= sinceMs;
    if (this.wasToldAway || performance.now() - this.awaySinceMs < this.parts.awayAfterMs - 1) return;
    this.wasToldAway = true;
    const reason = this.line === undefined ? toFailure(this.problem).message : 'it does not answer';
    this.parts.log?.warn({ cell: this.name, reason }, 'a cell is away; new work goes to the others');
    this.parts.onAway(this);
  }

  private back(): void {
    if (this.wasToldAway) this.parts.log?.info({ cell: this.name }, 'a cell is back');
    this.awaySinceMs = undefined;
    this.wasToldAway = false;
    this.problem = undefined;
  }
}

/**
 * Undefined where it fails, or takes longer. Timers come before what arrived meanwhile, in a process that was kept from
 * running: that is looked at once more, so that nobody is taken for away because we were slow.
 */
export async function answerWithin<Answer>(ms: number, answer: Promise<Answer>): Promise<Answer | undefined> {
  const late = new AbortController();
  const silence = sleep(ms, undefined, { signal: late.signal }).then(() => turn(undefined));
  try {
    return await Promise.race([answer.catch(() => undefined), silence.catch(() => undefined)]);
  } finally {
    late.abort();
  }
}

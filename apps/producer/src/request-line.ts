// Requests that are answered, and those that wait for their turn. So many are answered at a time; a request is one of
// them until its answer is written or its connection closed, and needs room for its answer in the budget of bytes.
// Others wait, first come first served, but for those whose answers are too large for the room that is left: smaller
// ones pass them. Too many, or one that has waited its time, is refused with the time to come back, which is spread so
// that those who were refused together do not come back together.

import type { Clock } from '@shoal/core';
import { Hold } from './byte-budget.ts';
import { callerLeft, overloaded, type Problem } from './problem.ts';

export interface RequestLineOptions {
  readonly mostOpen: number;
  readonly mostWaiting: number;
  readonly clock: Clock;
  /** How many are answered at present, and how many wait. */
  readonly onChange?: ((open: number, waiting: number) => void) | undefined;
}

export interface Turn {
  /** Room that the answer takes. */
  readonly bytes: number;
  readonly hold: Hold;
  /** Aborted when nobody waits any more. */
  readonly gone: AbortSignal;
  readonly waitMs: number;
}

interface Waiting extends Turn {
  readonly go: () => void;
}

/** As many endings say how fast requests are answered. */
const KNOWN_ENDINGS = 64;
/** Before any is known. */
const FIRST_GUESS_SECONDS = 2;
/** Clients of OpenAI's wait no longer than a minute because a server says so. */
const MOST_SECONDS = 60;

export class RequestLine {
  private readonly options: RequestLineOptions;
  private readonly waiting: Waiting[] = [];
  private readonly endingsMs: number[] = [];
  private open = 0;

  constructor(options: RequestLineOptions) {
    this.options = options;
  }

  /**
   * Resolves when it is this request's turn, with what ends it: to be called once its answer is written or its
   * connection closed. Rejects with a Problem.
   */
  async enter(turn: Turn): Promise<() => void> {
    const { mostOpen, mostWaiting } = this.options;
    if (turn.gone.aborted) throw callerLeft();
    // where a turn is free and others wait all the same, it is for room: what is smaller passes them
    if (!(this.open < mostOpen && turn.hold.take(turn.bytes))) {
      if (this.waiting.length >= mostWaiting)
        throw this.refusal(
          `${this.open} requests are being answered and ${this.waiting.length} wait, the most there may`,
        );
      await this.untilCalled(turn);
    } else this.open += 1;
    this.changed();
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      this.ended();
    };
  }

  /** There is room again in the budget. */
  callNext(): void {
    for (let at = 0; at < this.waiting.length && this.open < this.options.mostOpen;) {
      const next = this.waiting[at]!;
      if (!next.hold.take(next.bytes)) {
        at += 1;
        continue;
      }
      this.waiting.splice(at, 1);
      this.open += 1;
      next.go();
    }
  }

  /** What to say to a request that cannot be taken; the time is what those before it take. */
  refusal(found: string): Problem {
    return overloaded('too_many_requests', `${found}; try again in a while`, this.retryAfterSeconds());
  }

  private retryAfterSeconds(): number {
    const [first] = this.endingsMs;
    const before = this.open + this.waiting.length;
    const tookMs = first === undefined ? 0 : this.options.clock.nowMs() - first;
    const seconds = first === undefined ? FIRST_GUESS_SECONDS : (before * tookMs) / 1_000 / this.endingsMs.length;
    return Math.min(MOST_SECONDS, Math.max(1, seconds));
  }

  private untilCalled(turn: Turn): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave = (problem: Problem): void => {
        const at = this.waiting.indexOf(waiting);
        if (at < 0) return;
        this.waiting.splice(at, 1);
        stop();
        this.changed();
        reject(problem);
      };
      const onGone = (): void => leave(callerLeft());
      const cancel = this.options.clock.after(turn.waitMs, () =>
        leave(
          this.refusal(
            `the request has waited ${turn.waitMs / 1_000} s for its turn behind ${this.open} that are answered`,
          ),
        ),
      );
      const stop = (): void => {
        cancel();
        turn.gone.removeEventListener('abort', onGone);
      };
      const waiting: Waiting = {
        ...turn,
        go: () => {
          stop();
          resolve();
        },
      };
      turn.gone.addEventListener('abort', onGone);
      this.waiting.push(waiting);
      this.changed();
    });
  }

  private ended(): void {
    this.open -= 1;
    this.endingsMs.push(this.options.clock.nowMs());
    if (this.endingsMs.length > KNOWN_ENDINGS) this.endingsMs.shift();
    this.callNext();
    this.changed();
  }

  private changed(): void {
    this.options.onChange?.(this.open, this.waiting.length);
  }
}

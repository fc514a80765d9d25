// How long the executor's stages take, told to the claimer in one message a second at most, because each message costs
// its process a wake-up. Beyond a thousand of a stage in that second the rest is not told.

import type { Clock } from '../ports/clock.ts';
import type { Stage } from '../ports/metrics.ts';
import type { BatchTokenizer } from '../ports/tokenizer.ts';
import type { FromExecutor } from '../protocol.ts';

const TELL_AFTER_MS = 1_000;
const MOST_OF_A_STAGE = 1_000;

export interface StageTimesParts {
  readonly clock: Clock;
  readonly send: (message: FromExecutor) => void;
}

export class StageTimes {
  private readonly parts: StageTimesParts;
  private readonly took = new Map<Stage, number[]>();
  private cancelTimer: (() => void) | undefined;
  private isStopped = false;

  constructor(parts: StageTimesParts) {
    this.parts = parts;
  }

  /** Times `work`, however it ends. */
  async during<Value>(stage: Stage, work: () => Promise<Value>): Promise<Value> {
    const sinceMs = this.parts.clock.nowMs();
    try {
      return await work();
    } finally {
      this.add(stage, sinceMs);
    }
  }

  /** The same of work that is done at once. */
  now<Value>(stage: Stage, work: () => Value): Value {
    const sinceMs = this.parts.clock.nowMs();
    const value = work();
    this.add(stage, sinceMs);
    return value;
  }

  /** Tells the rest. */
  stop(): void {
    this.isStopped = true;
    this.tell();
  }

  private add(stage: Stage, sinceMs: number): void {
    const { clock } = this.parts;
    const times = this.took.get(stage) ?? [];
    if (times.length < MOST_OF_A_STAGE) times.push(clock.nowMs() - sinceMs);
    this.took.set(stage, times);
    if (!this.isStopped) this.cancelTimer ??= clock.after(TELL_AFTER_MS, () => this.tell());
  }

  private tell(): void {
    this.cancelTimer?.();
    this.cancelTimer = undefined;
    if (this.took.size === 0) return;
    this.parts.send({ kind: 'stages', tookMs: Object.fromEntries(this.took) });
    this.took.clear();
  }
}

/** The same tokenizer, timed as the stage "tokenize". */
export function timedTokenizer(tokenizer: BatchTokenizer, stages: StageTimes): BatchTokenizer {
  return {
    hash: tokenizer.hash,
    maxTokens: tokenizer.maxTokens,
    vocabularySize: tokenizer.vocabularySize,
    encodeAll: (texts) => stages.during('tokenize', () => tokenizer.encodeAll(texts)),
    encodePairs: (query, texts) => stages.during('tokenize', () => tokenizer.encodePairs(query, texts)),
  };
}

// An executor on a bench: the real one between fakes, with the means to give it orders, turn its clock and look at what
// it did. The test is the claimer; where it says so, a recycled executor is followed by another that gets the open
// orders.

import { Executor, type ExecutorLimits } from '../executor/executor.ts';
import { noFaults } from '../base/fault-points.ts';
import { fixedBudget, type FixedLimits } from '../budget/fixed-budget.ts';
import { openResult, type ModelKind } from '@shoal/contract';
import type { BatchBudget } from '../ports/device.ts';
import type { FromExecutor, JobOrder, JobOutcome } from '../protocol.ts';
import { FakeBackend, deliveredVector, type FakeBackendOptions } from './fake-backend.ts';
import { FakeTokenizer } from './fake-tokenizer.ts';
import { ManualClock } from './manual-clock.ts';
import { MemoryPayloadStore } from './memory-payload-store.ts';
import { RecordingLogger } from './recorders.ts';

export const MODEL = 'fake@0123456789ab';
export const DIMS = 8;
const LIMITS: ExecutorLimits = { maxRowAgeMs: 250, windowRows: 64, maxWaitMs: 10, minRows: 4 };
const BUDGET: FixedLimits = { maxPaddedTokens: 256, maxRows: 16 };

export const NOTHING = { slots: 0, timers: 0, runningMs: 0 };

export interface SetupOptions {
  readonly limits?: Partial<ExecutorLimits>;
  readonly budget?: Partial<FixedLimits>;
  /** Of each executor. Default: a fixed one. */
  readonly newBudget?: () => BatchBudget;
  readonly backend?: Omit<FakeBackendOptions, 'clock' | 'dims'>;
  /** Called with the device of each executor before its first run. */
  readonly prepare?: (backend: FakeBackend, budget: BatchBudget) => void;
  readonly isLastLane?: boolean;
  readonly prompts?: Readonly<Record<string, string>>;
  readonly defaultPrompt?: string;
  readonly isNormalized?: boolean;
  /** Default: an embedder. */
  readonly kind?: ModelKind;
  /** Default DIMS. */
  readonly dims?: number;
  readonly mayBeZero?: boolean;
  /** Whether a recycled executor is followed by another. */
  readonly isReplaced?: boolean;
}

export function setup(options: SetupOptions = {}) {
  const { isLastLane = false, isReplaced = false, prepare = () => undefined } = options;
  const clock = new ManualClock();
  const store = new MemoryPayloadStore();
  const tokenizer = new FakeTokenizer();
  const log = new RecordingLogger();
  const sent: FromExecutor[] = [];
  const open = new Map<string, JobOrder>();
  const never = new Promise<never>(() => undefined);

  const hear = (message: FromExecutor): void => {
    sent.push(structuredClone(message));
    if (message.kind === 'outcomes')
      for (const { jobId, token } of message.outcomes) if (open.get(jobId)?.token === token) open.delete(jobId);
    if (message.kind === 'recycle' && isReplaced) {
      now = start();
      now.executor.handle({ kind: 'run', jobs: [...open.values()], isQueueDrained: true });
    }
  };
  const start = () => {
    const backend = new FakeBackend({ clock, dims: options.dims ?? DIMS, slotTokens: 1024, ...options.backend });
    const budget = options.newBudget?.() ?? fixedBudget({ ...BUDGET, ...options.budget });
    prepare(backend, budget);
    /** One that was replaced was killed: it writes nothing and is not heard any more. */
    const isAlive = (): boolean => now.backend === backend;
    const executor = new Executor({
      store: {
        read: (jobs) => store.read(jobs),
        stop: async () => undefined,
        commit: (requests) => (isAlive() ? store.commit(requests) : never),
      },
      backend,
      budget,
      tokenizer,
      clock,
      log,
      isLastLane,
      limits: { ...LIMITS, ...options.limits },
      model: MODEL,
      prompts: options.prompts ?? { query: 'query : ', passage: '' },
      defaultPrompt: options.defaultPrompt,
      isNormalized: options.isNormalized,
      kind: options.kind,
      mayBeZero: options.mayBeZero,
      resultKey: (jobId) => `out:${jobId}`,
      send: (message) => (isAlive() ? hear(message) : undefined),
      faults: noFaults,
    });
    return { backend, executor };
  };
  let now = start();

  return {
    clock,
    store,
    tokenizer,
    log,
    sent,
    get backend(): FakeBackend {
      return now.backend;
    },
    get executor(): Executor {
      return now.executor;
    },
    outcomes: (): JobOutcome[] => sent.flatMap((message) => (message.kind === 'outcomes' ? message.outcomes : [])),
    outcomesOf(jobId: string): JobOutcome[] {
      return this.outcomes().filter((outcome) => outcome.jobId === jobId);
    },
    said<Kind extends FromExecutor['kind']>(kind: Kind): Extract<FromExecutor, { kind: Kind }>[] {
      return sent.filter((message): message is Extract<FromExecutor, { kind: Kind }> => message.kind === kind);
    },
    /** Sends orders as the claimer would, their locks taken. */
    run(orders: readonly JobOrder[], isQueueDrained = true): void {
      for (const order of orders) {
        store.locks.set(order.jobId, order.token);
        open.set(order.jobId, order);
      }
      now.executor.handle({ kind: 'run', jobs: orders, isQueueDrained });
    },
    untilOutcomes(count: number): Promise<void> {
      return clock.advanceUntil(() => this.outcomes().length >= count);
    },
    vectorsOf(jobId: string): Float32Array[] {
      const { header, body } = openResult(store.results.get(jobId)!);
      const values = new Float32Array(Uint8Array.from(body).buffer);
      return Array.from({ length: header.rows }, (_, row) => values.slice(row * header.dims, (row + 1) * header.dims));
    },
    /** What is still held after a stop. */
    async leftovers(): Promise<object> {
      await clock.advanceUntilSettled(now.executor.stop());
      return { slots: now.backend.lentSlots, timers: clock.pending, runningMs: now.backend.runningMs() };
    },
  };
}

export function orderOf(jobId: string, texts: readonly string[], more: Partial<JobOrder> = {}): JobOrder {
  return {
    jobId,
    token: `${jobId}-token`,
    queuedMs: 3,
    class: 'bulk',
    input: { form: 'inline', texts },
    fingerprint: undefined,
    truncate: 'end',
    prompt: undefined,
    output: { dtype: 'f32', dimensions: undefined },
    resultTtlMs: 1_000,
    remainingMs: undefined,
    ...more,
  };
}

/** A text of so many tokens, special tokens included, unlike that of any other seed. */
export function textOf(tokens: number, seed: string | number): string {
  return Array.from({ length: tokens - 2 }, (_, i) => `${seed}w${i}`).join(' ');
}

export function expectedVectors(tokenizer: FakeTokenizer, texts: readonly string[]): Float32Array[] {
  return texts.map((text) => deliveredVector(tokenizer.encode(text).ids, DIMS));
}

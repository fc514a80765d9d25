// A device that takes its time and computes nothing: real clock, a fixed number of tokens per millisecond, no memory of
// its own to run out of. It measures everything around a device on a machine that has none; `--device sim:8000` starts
// a worker on it. Its vectors are unit vectors along an axis chosen by the row's ids, so that whoever receives one can
// check it.

import type {
  InferenceBackend,
  MemoryPlan,
  MemoryReading,
  Precision,
  RunOptions,
  RunResult,
  RunShape,
  Slot,
} from '../ports/device.ts';
import { invariant } from '@shoal/contract';
import { newSlots } from '../executor/slot-buffers.ts';
import { KEPT_SLOTS } from '../executor/slots.ts';

export interface PacedBackendOptions {
  /** Padded tokens per millisecond. */
  readonly tokensPerMs: number;
  /** What a run takes however small it is. Default 0. */
  readonly fixedMs?: number;
  /** Runs side by side, none slower for the others. Default 1. */
  readonly sessions?: number;
  readonly dims: number;
  readonly slotRows: number;
  /** Padded tokens. */
  readonly slotTokens: number;
  /** What a row's vector is. Default: along `pacedAxis`. */
  readonly vectorOf?: ((ids: ArrayLike<number>, dims: number) => Float32Array) | undefined;
}

/** Besides those that run: two wait, and there is what is kept back for interactive rows. */
const WAITING_SLOTS = 2 + KEPT_SLOTS;

interface QueuedRun {
  readonly slot: Slot;
  readonly shape: RunShape;
  readonly isUrgent: boolean;
  readonly queuedMs: number;
  resolve(result: RunResult): void;
}

export class PacedBackend implements InferenceBackend {
  readonly device: string;
  readonly precision: Precision = 'fp32';
  readonly givesUnitRows = true;
  readonly dims: number;
  readonly slotRows: number;
  readonly slotTokens: number;
  readonly sessions: number;
  private readonly tokensPerMs: number;
  private readonly fixedMs: number;
  private readonly vectorOf: PacedBackendOptions['vectorOf'];
  private readonly free: Slot[];
  private readonly queue: QueuedRun[] = [];
  /**
   * When each session that does nothing ended its last run. Timers fire late, and the device must not stand still
   * for that.
   */
  private readonly idleSinceMs: number[];
  private idleListeners: (() => void)[] = [];

  constructor({ tokensPerMs, fixedMs = 0, sessions = 1, dims, slotRows, slotTokens, vectorOf }: PacedBackendOptions) {
    this.device = `sim:${tokensPerMs}`;
    this.tokensPerMs = tokensPerMs;
    this.fixedMs = fixedMs;
    this.vectorOf = vectorOf;
    this.dims = dims;
    this.slotRows = slotRows;
    this.slotTokens = slotTokens;
    this.sessions = sessions;
    this.idleSinceMs = Array.from({ length: sessions }, () => 0);
    this.free = newSlots(sessions + WAITING_SLOTS, this);
  }

  lend(): Slot | undefined {
    return this.free.shift();
  }

  giveBack(slot: Slot): void {
    this.free.push(slot);
  }

  run(slot: Slot, shape: RunShape, { isUrgent = false }: RunOptions = {}): Promise<RunResult> {
    const { rows, width } = shape;
    invariant(rows >= 1 && rows <= this.slotRows && rows * width <= this.slotTokens, 'a micro-batch fits its slot');
    return new Promise((resolve) => {
      this.queue.push({ slot, shape, isUrgent, queuedMs: performance.now(), resolve });
      this.next();
    });
  }

  runningMs(): number {
    return 0; // it cannot hang
  }

  /** The rate is the same at every size, and there is no memory to run out of. */
  memoryPlan(): MemoryPlan {
    return { kind: 'none', hasLevelRate: true };
  }

  async memory(): Promise<MemoryReading | undefined> {
    return undefined;
  }

  async stop(): Promise<void> {
    if (this.isBusy) await new Promise<void>((resolve) => this.idleListeners.push(resolve));
  }

  private get isBusy(): boolean {
    return this.idleSinceMs.length < this.sessions;
  }

  private next(): void {
    const [first] = this.queue;
    if (first === undefined) {
      if (!this.isBusy) for (const listener of this.idleListeners.splice(0)) listener();
      return;
    }
    const idleSinceMs = this.idleSinceMs.shift();
    if (idleSinceMs === undefined) return;
    const startedMs = Math.max(idleSinceMs, first.queuedMs);
    const urgent = this.queue.findIndex((run) => run.isUrgent && run.queuedMs <= startedMs);
    const run = this.queue.splice(Math.max(0, urgent), 1)[0]!;
    const runMs = this.fixedMs + (run.shape.rows * run.shape.width) / this.tokensPerMs;
    setTimeout(
      () => {
        this.write(run.slot, run.shape);
        run.resolve({ ok: true, runMs });
        this.idleSinceMs.push(startedMs + runMs);
        this.next();
      },
      startedMs + runMs - performance.now(),
    );
  }

  private write(slot: Slot, { rows, width }: RunShape): void {
    for (let row = 0; row < rows; row++) {
      const ids = slot.ids.subarray(row * width, row * width + slot.lengths[row]!);
      const vector = slot.embeddings.subarray(row * this.dims, (row + 1) * this.dims);
      if (this.vectorOf !== undefined) vector.set(this.vectorOf(ids, this.dims));
      else vector.fill(0)[pacedAxis(ids, this.dims)] = 1;
    }
  }
}

/**
 * Reads `sim:8000` and `sim:8000+15`: tokens a millisecond, and milliseconds that every run takes besides. Undefined
 * for a device that exists.
 */
export function paceOf(device: string): { readonly tokensPerMs: number; readonly fixedMs: number } | undefined {
  const [, rate, fixed = '0'] = /^sim:(\d+)(?:\+(\d+))?$/.exec(device) ?? [];
  return rate === undefined ? undefined : { tokensPerMs: Number(rate), fixedMs: Number(fixed) };
}

/** Which axis the vector of a row points along. FNV-1a over its ids. */
export function pacedAxis(ids: ArrayLike<number>, dims: number): number {
  let hash = 0x811c_9dc5;
  for (let i = 0; i < ids.length; i++) hash = Math.imul(hash ^ ids[i]!, 0x0100_0193);
  return (hash >>> 0) % dims;
}

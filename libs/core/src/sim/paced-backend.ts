// A device that takes its time and computes nothing: real clock, a fixed number of tokens per millisecond, no memory of its
// own to run out of. It measures everything around a device on a machine that has none; `--device sim:8000` starts a worker
// on it. Its vectors are unit vectors along an axis chosen by the row's ids, so that whoever receives one can check it.

import type { InferenceBackend, MemoryReading, Precision, RunResult, Slot } from '../ports.ts';
import { invariant } from '../invariant.ts';

export interface PacedBackendOptions {
  /** Padded tokens per millisecond. */
  readonly tokensPerMs: number;
  readonly dims: number;
  readonly slotRows: number;
  /** Padded tokens. */
  readonly slotTokens: number;
}

const SLOTS = 3;

export class PacedBackend implements InferenceBackend {
  readonly device: string;
  readonly precision: Precision = 'fp32';
  readonly dims: number;
  readonly slotRows: number;
  readonly slotTokens: number;
  private readonly tokensPerMs: number;
  private readonly free: Slot[];
  /** When the device will have finished everything it was given. */
  private busyUntilMs = 0;
  private readonly running = new Set<Promise<RunResult>>();

  constructor({ tokensPerMs, dims, slotRows, slotTokens }: PacedBackendOptions) {
    this.device = `sim:${tokensPerMs}`;
    this.tokensPerMs = tokensPerMs;
    this.dims = dims;
    this.slotRows = slotRows;
    this.slotTokens = slotTokens;
    this.free = Array.from({ length: SLOTS }, (_, index) => ({
      index, ids: new Int32Array(slotTokens), lengths: new Int32Array(slotRows), embeddings: new Float32Array(slotRows * dims),
    }));
  }

  lend(): Slot | undefined {
    return this.free.shift();
  }

  giveBack(slot: Slot): void {
    this.free.push(slot);
  }

  run(slot: Slot, { rows, width }: { readonly rows: number; readonly width: number }): Promise<RunResult> {
    invariant(rows >= 1 && rows <= this.slotRows && rows * width <= this.slotTokens, 'a micro-batch fits its slot');
    const runMs = (rows * width) / this.tokensPerMs;
    this.busyUntilMs = Math.max(this.busyUntilMs, performance.now()) + runMs;
    const run = new Promise<RunResult>((resolve) => {
      setTimeout(() => {
        this.write(slot, rows, width);
        resolve({ ok: true, runMs });
      }, this.busyUntilMs - performance.now());
    });
    this.running.add(run);
    void run.finally(() => this.running.delete(run));
    return run;
  }

  runningMs(): number {
    return 0; // it cannot hang
  }

  async memory(): Promise<MemoryReading | undefined> {
    return undefined;
  }

  async stop(): Promise<void> {
    await Promise.all(this.running);
  }

  private write(slot: Slot, rows: number, width: number): void {
    slot.embeddings.fill(0, 0, rows * this.dims);
    for (let row = 0; row < rows; row++) {
      const ids = slot.ids.subarray(row * width, row * width + slot.lengths[row]!);
      slot.embeddings[row * this.dims + pacedAxis(ids, this.dims)] = 1;
    }
  }
}

/** Which axis the vector of a row points along. FNV-1a over its ids. */
export function pacedAxis(ids: ArrayLike<number>, dims: number): number {
  let hash = 0x811c_9dc5;
  for (let i = 0; i < ids.length; i++) hash = Math.imul(hash ^ ids[i]!, 0x0100_0193);
  return (hash >>> 0) % dims;
}

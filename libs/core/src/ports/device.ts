// The device that runs a model, and how much it may be given at once. Every InferenceBackend, fakes included, passes
// the conformance suite in testing/.

import type { ToHalves } from '@shoal/contract';
import type { MemoryPlan } from './memory-plan.ts';
import type { Precision, RunShape } from './run-shape.ts';

export type { MemoryPlan, MemoryProbe } from './memory-plan.ts';
export type { Precision, RunShape } from './run-shape.ts';

/** How large the next micro-batch may be. The executor tells it how each run went; see budget.ts. */
export interface BatchBudget {
  /** Most rows of this width that one run may have now; at least 1: whether one row fits is for the device to say. */
  rowsAt(width: number): number;
  /** What holds now, for cutting, metrics and logs. */
  current(): BudgetState;
  ran(run: RunShape & { readonly runMs: number; readonly memory?: MemoryReading | undefined }): void;
  /**
   * `siblingWaits`: it is half of a batch that failed, and the other half has yet to run, which shows whether it was
   * the size or the rows.
   */
  ranOutOfMemory(shape: RunShape, half?: { readonly siblingWaits: boolean }): void;
  /** While an interactive row waits, runs are kept short enough for the latency target. */
  interactiveWaits(isWaiting: boolean): void;
  /** Predicted peak of a run, bytes; undefined without a memory model. */
  peakBytes(shape: RunShape): number | undefined;
  /** What a run will take; undefined while too few were seen. */
  predictMs(shape: RunShape): number | undefined;
}

export interface BudgetState {
  /** Padded tokens of the largest run, at the width where most fit. */
  readonly maxPaddedTokens: number;
  readonly limitedBy: 'memory' | 'knee' | 'latency' | 'integer' | 'setting' | 'unknown-memory';
  /** Where predictions of memory come from. */
  readonly source: 'fitted' | 'stored' | 'preset' | 'corrected' | 'learned' | 'none';
  /**
   * The device ran out of memory, and no run near the budget has gone well since: what is sent behind one that fails
   * would fail as well.
   */
  readonly isTesting?: boolean;
  /** Who has the device's memory, where a source of it is known. For people; nothing is decided by it. */
  readonly device?: DeviceMemory;
}

/** Bytes. What runs take is beyond `loadedBytes`; see MemoryReading. */
export interface DeviceMemory {
  readonly totalBytes: number;
  /** Of other processes, as far as the driver tells. */
  readonly othersBytes: number;
  /** Of this worker once the model was open: weights, context and runtime. */
  readonly loadedBytes: number;
}

/** Buffers shared with the thread that runs the model. Row-major; `ids` is rows × width, padding is 0. */
export interface Slot {
  readonly index: number;
  readonly ids: Int32Array;
  readonly lengths: Int32Array;
  /** Where in its row a pair's second text begins, one a row. Read by graphs that take pairs, and by no others. */
  readonly secondFrom: Int32Array;
  /** rows × dims after a run. */
  readonly embeddings: Float32Array;
}

/**
 * What a device holds, bytes. `liveBytes`: most that tensors used at once. `footprintBytes`: what is gone from the
 * device, arena and context included.
 */
export interface MemoryReading {
  readonly liveBytes: number | undefined;
  readonly footprintBytes: number | undefined;
  /**
   * `process`: resident set of the executor. `arena`: the runtime's own statistics. `driver`: what the driver shows.
   */
  readonly source: 'process' | 'arena' | 'driver' | 'simulated';
}

/** Running out of device memory is a result; everything else that goes wrong is thrown. */
export type RunResult =
  | {
      readonly ok: true;
      readonly runMs: number;
      /** The peak up to and with this run, where the backend knows it without asking. */
      readonly memory?: MemoryReading;
    }
  /** `needsRecycle`: a library below the arena could not allocate (cuBLAS, cuDNN); the next runs would fail as well. */
  | { readonly ok: false; readonly outOfVram: { readonly message: string; readonly needsRecycle?: boolean } };

export interface RunOptions {
  /** Runs before everything that is queued and has not begun. */
  readonly isUrgent?: boolean;
}

export interface InferenceBackend {
  /** What really runs: e.g. "cpu", "cuda:0". */
  readonly device: string;
  readonly precision: Precision;
  /** What computes, where there is a choice: our own encoder, or ONNX Runtime. */
  readonly engine?: 'native' | 'onnx';
  readonly dims: number;
  /** Most rows and most padded tokens that a slot's buffers hold. */
  readonly slotRows: number;
  readonly slotTokens: number;
  /** A shape that it has not seen before costs it many times its run: it is given few of them, see run-shapes.ts. */
  readonly prefersFewShapes?: boolean;
  /**
   * Rows of `run` are of length 1 to the last bit of f32, or NaN from their first value on: nobody has to look at every
   * number of them again. Not those of `runExact`.
   */
  readonly givesUnitRows?: boolean;
  /** Runs that go on side by side. Default 1. */
  readonly sessions?: number;
  /** A free slot to fill, or undefined while all are queued or running. */
  lend(): Slot | undefined;
  /**
   * Queues the slot's first rows × width ids. Runs happen in the order of the calls, urgent ones first. The slot stays
   * lent.
   */
  run(slot: Slot, shape: RunShape, options?: RunOptions): Promise<RunResult>;
  /** The same in fp32, for rows that a narrower precision turned into NaN. Absent where `precision` is fp32 already. */
  runExact?(slot: Slot, shape: RunShape): Promise<RunResult>;
  /** By an instruction, where one can be had. Absent: core's own loop does it. */
  readonly toHalves?: ToHalves;
  /** CRC-32 by an instruction, where one can be had. Absent: zlib's. */
  readonly checksum?: (bytes: Uint8Array) => number;
  /** How it is known what runs hold. The same kind for as long as the backend is open. */
  memoryPlan(): MemoryPlan;
  /** What the device holds now, or undefined where nothing tells. */
  memory(): Promise<MemoryReading | undefined>;
  /** The slot may be lent again: its embeddings have been read. */
  giveBack(slot: Slot): void;
  /** How long the run at the device has been going on; 0 when idle. */
  runningMs(): number;
  /** Waits for runs in flight, then frees the device. Safe to call twice. */
  stop(): Promise<void>;
}

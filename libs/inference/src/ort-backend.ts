// InferenceBackend over onnxruntime-node: buffers in shared memory, one thread that runs the model, micro-batches queued at
// it so that the device never waits for the main thread. Translates the runtime's errors; knows nothing of jobs.

import { Worker } from 'node:worker_threads';
import { ShoalError, invariant, unreachable, type InferenceBackend, type MemoryReading, type Precision, type RunOptions, type RunResult, type RunShape, type Slot } from '@shoal/core';
import { processMemory } from './process-memory.ts';
import { classifyRunFailure } from './run-failure.ts';
import type { OrtThreadData, OrtThreadMessage, RunRequest, SharedSlot } from './ort-thread-protocol.ts';

export interface OrtBackendOptions {
  readonly graphPath: string;
  /** What the graph computes in, for the records of what ran. Default fp32. */
  readonly precision?: Precision;
  /** The same model in fp32: with it `runExact` is there. Left out where the graph computes in fp32 already. */
  readonly exactGraphPath?: string | undefined;
  readonly dims: number;
  /** Threads of one run. */
  readonly threads: number;
  readonly slotRows: number;
  /** Padded tokens. */
  readonly slotTokens: number;
}

/** One batch runs, one is queued behind it, one is being packed or read. */
const SLOTS = 3;

interface Pending {
  readonly slot: number;
  resolve(result: RunResult): void;
  reject(error: Error): void;
}

export class OrtBackend implements InferenceBackend {
  readonly device = 'cpu';
  readonly precision: Precision;
  readonly dims: number;
  readonly slotRows: number;
  readonly slotTokens: number;
  readonly runExact?: (slot: Slot, shape: RunShape) => Promise<RunResult>;
  private readonly thread: Worker;
  private readonly free: Slot[];
  private readonly pending = new Map<number, Pending>();
  private runStartedMs: number | undefined;
  private readonly exited: Promise<void>;
  private isStopping = false;

  private constructor(options: OrtBackendOptions, thread: Worker, shared: readonly SharedSlot[]) {
    this.precision = options.precision ?? 'fp32';
    this.dims = options.dims;
    this.slotRows = options.slotRows;
    this.slotTokens = options.slotTokens;
    this.thread = thread;
    if (options.exactGraphPath !== undefined) this.runExact = (slot, shape) => this.queue(slot, shape, { isUrgent: false, isExact: true });
    this.free = shared.map(toSlot);
    thread.on('message', (message: OrtThreadMessage) => this.hear(message));
    thread.on('error', (error) => this.failAll(error));
    this.exited = new Promise((resolve) => {
      thread.once('exit', (code) => {
        this.failAll(new Error(`exit code ${code}`));
        resolve();
      });
    });
  }

  /** Opens the graph in a thread of its own. Throws INFERENCE_FAILED when the runtime refuses it. */
  static async open(options: OrtBackendOptions): Promise<OrtBackend> {
    disableTelemetry();
    const { graphPath, exactGraphPath, threads, dims, slotRows, slotTokens } = options;
    const shared = Array.from({ length: SLOTS }, (): SharedSlot => ({
      ids: new SharedArrayBuffer(slotTokens * 4),
      lengths: new SharedArrayBuffer(slotRows * 4),
      embeddings: new SharedArrayBuffer(slotRows * dims * 4),
    }));
    const workerData: OrtThreadData = { graphPath, exactGraphPath, provider: 'cpu', threads, dims, slots: shared };
    const isSource = import.meta.url.endsWith('.ts');
    const thread = new Worker(new URL(isSource ? './ort-thread.ts' : './ort-thread.js', import.meta.url), { workerData });
    await ready(thread, graphPath);
    return new OrtBackend(options, thread, shared);
  }

  lend(): Slot | undefined {
    return this.free.shift();
  }

  giveBack(slot: Slot): void {
    invariant(!this.free.some((other) => other.index === slot.index), 'a slot is given back once');
    this.free.push(slot);
  }

  run(slot: Slot, shape: RunShape, { isUrgent = false }: RunOptions = {}): Promise<RunResult> {
    return this.queue(slot, shape, { isUrgent, isExact: false });
  }

  private queue(slot: Slot, { rows, width }: RunShape, how: Pick<RunRequest, 'isUrgent' | 'isExact'>): Promise<RunResult> {
    invariant(rows >= 1 && rows <= this.slotRows && rows * width <= this.slotTokens, 'a micro-batch fits its slot');
    invariant(!this.isStopping, 'nothing runs on a stopped backend');
    return new Promise((resolve, reject) => {
      this.pending.set(slot.index, { slot: slot.index, resolve, reject });
      this.thread.postMessage({ slot: slot.index, rows, width, ...how } satisfies RunRequest);
    });
  }

  runningMs(): number {
    return this.runStartedMs === undefined ? 0 : performance.now() - this.runStartedMs;
  }

  async memory(): Promise<MemoryReading | undefined> {
    return processMemory();
  }

  async stop(): Promise<void> {
    if (!this.isStopping) {
      this.isStopping = true;
      this.thread.postMessage('close'); // served after every run before it
    }
    await this.exited;
  }

  private hear(message: OrtThreadMessage): void {
    switch (message.kind) {
      case 'started':
        this.runStartedMs = performance.now();
        return;
      case 'ran': return this.take(message.slot).resolve({ ok: true, runMs: message.runMs, ...(message.memory !== undefined && { memory: message.memory }) });
      case 'failed': return this.settleFailure(this.take(message.slot), message.message);
      case 'ready':
      case 'unfit':
        return; // heard by `ready` below
      default: return unreachable(message);
    }
  }

  private take(slot: number): Pending {
    const pending = this.pending.get(slot);
    invariant(pending !== undefined, 'the thread answers only what it was asked');
    this.pending.delete(slot);
    this.runStartedMs = undefined;
    return pending;
  }

  private settleFailure(pending: Pending, message: string): void {
    switch (classifyRunFailure(message)) {
      case 'out-of-vram': return pending.resolve({ ok: false, outOfVram: { message } });
      case 'device-lost': return pending.reject(new ShoalError('DEVICE_LOST', `the device stopped working: ${message}`));
      case 'failed': return pending.reject(new ShoalError('INFERENCE_FAILED', `ONNX Runtime could not run the model: ${message}`));
    }
  }

  private failAll(error: unknown): void {
    const lost = new ShoalError('DEVICE_LOST', `the ort thread ended: ${error instanceof Error ? error.message : String(error)}`, {}, error);
    for (const pending of this.pending.values()) pending.reject(lost);
    this.pending.clear();
  }
}

/**
 * ONNX Runtime 1.30 on Linux keeps a device id under the user's cache folder and uploads events unless this is set before the
 * library is loaded. Shoal tells nobody what it runs. (Set here, not in the thread: only the main thread's variables reach
 * native code.)
 */
function disableTelemetry(): void {
  process.env['ORT_DISABLE_TELEMETRY'] = '1';
}

function toSlot(shared: SharedSlot, index: number): Slot {
  return { index, ids: new Int32Array(shared.ids), lengths: new Int32Array(shared.lengths), embeddings: new Float32Array(shared.embeddings) };
}

function ready(thread: Worker, graphPath: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const refuse = (found: string): void => reject(new ShoalError('INFERENCE_FAILED', `ONNX Runtime does not open ${graphPath}: ${found}`, { graphPath }));
    thread.once('message', (message: OrtThreadMessage) => (message.kind === 'ready' ? resolve() : refuse(message.kind === 'unfit' ? message.message : message.kind)));
    thread.once('error', (error) => refuse(error instanceof Error ? error.message : String(error)));
  });
}

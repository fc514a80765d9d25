// InferenceBackend over onnxruntime-node: buffers in shared memory, one thread that runs the model, micro-batches queued at
// it so that the device never waits for the main thread. Translates the runtime's errors; knows nothing of jobs.

import { Worker } from 'node:worker_threads';
import { KEPT_SLOTS, ShoalError, invariant, unreachable, type InferenceBackend, type MemoryProbe, type MemoryReading, type Precision, type RunOptions, type RunResult, type RunShape, type Slot } from '@shoal/core';
import { processMemory } from './process-memory.ts';
import { classifyRunFailure } from './run-failure.ts';
import type { Provider } from './provider.ts';
import type { OrtThreadData, OrtThreadMessage, PrepareRequest, RunRequest, SharedSlot } from './ort-thread-protocol.ts';

export interface OrtBackendOptions {
  readonly graphPath: string;
  /** What the graph computes in, for the records of what ran. Default fp32. */
  readonly precision?: Precision;
  /** The same model in fp32: with it `runExact` is there. Left out where the graph computes in fp32 already. */
  readonly exactGraphPath?: string | undefined;
  readonly dims: number;
  /** Default: the CPU. Any other is proven by the runtime's trace before `open` resolves. */
  readonly provider?: Provider;
  /** What to call it in the records of what ran, e.g. "cuda:0". Default: the provider's name. */
  readonly device?: string;
  /** Sessions that run side by side, each with its own copy of the weights: one launches while another computes. Default 1. */
  readonly sessions?: number;
  /** The device's own name, e.g. "NVIDIA H200": what is measured on one is no use on another. */
  readonly deviceKind?: string | undefined;
  /** What the device holds for this process, where it cannot tell by itself. */
  readonly readMemory?: () => Promise<MemoryReading | undefined>;
  /** What the device has in all, and what is left for anybody. */
  readonly probe?: MemoryProbe;
  /** Threads of one run. */
  readonly threads: number;
  readonly slotRows: number;
  /** Padded tokens. */
  readonly slotTokens: number;
}

/** Beside each batch that runs: one is queued behind it, one is being packed or read, and some are kept for urgent rows. */
const SPARE_SLOTS = 2 + KEPT_SLOTS;

/**
 * Vectors of the hidden size, in fp32, that the region has for each token. A run needs 52 at most with plain operators and 512
 * tokens, 32 in the fused graph (minilm, 2026-11-22); in a region 1.27 times as large as what it needs, tensors still came to lie
 * badly, and it took 1.3 times as much.
 */
const VECTORS_PER_TOKEN = 80;
/** Their ids are 16 MB. */
const MOST_RESERVED_TOKENS = 2 ** 22;
const ELEMENT_BYTES: Readonly<Record<Precision, number>> = { fp32: 4, fp16: 2, bf16: 2, int8: 1 };

/** A thread with a session, and how busy it is. */
interface Lane {
  readonly thread: Worker;
  pending: number;
  runStartedMs: number | undefined;
}

interface Pending {
  readonly lane: Lane;
  resolve(result: RunResult): void;
  reject(error: Error): void;
}

export class OrtBackend implements InferenceBackend {
  /** What it was opened with: enough to open another like it elsewhere. */
  readonly options: OrtBackendOptions;
  readonly device: string;
  readonly precision: Precision;
  readonly dims: number;
  readonly slotRows: number;
  readonly slotTokens: number;
  readonly prefersFewShapes: boolean;
  readonly sessions: number;
  readonly runExact?: (slot: Slot, shape: RunShape) => Promise<RunResult>;
  private readonly lanes: readonly Lane[];
  private readonly free: Slot[];
  private readonly pending = new Map<number, Pending>();
  private readonly readMemory: () => Promise<MemoryReading | undefined>;
  private readonly exited: Promise<unknown>;
  private isStopping = false;

  private constructor(options: OrtBackendOptions, threads: readonly Worker[], shared: readonly SharedSlot[]) {
    const { provider = 'cpu', device = provider } = options;
    this.options = options;
    this.device = device;
    this.precision = options.precision ?? 'fp32';
    this.prefersFewShapes = provider === 'webgpu' || (provider === 'cuda' && this.precision !== 'fp32'); // in fp32 CUDA does not mind
    this.sessions = options.sessions ?? 1;
    this.dims = options.dims;
    this.slotRows = options.slotRows;
    this.slotTokens = options.slotTokens;
    this.readMemory = options.readMemory ?? (async () => (provider === 'cpu' ? processMemory() : undefined));
    if (options.exactGraphPath !== undefined) this.runExact = (slot, shape) => this.queue(slot, shape, { isUrgent: false, isExact: true });
    this.free = shared.map(toSlot);
    this.lanes = threads.map((thread) => ({ thread, pending: 0, runStartedMs: undefined }));
    this.exited = Promise.all(this.lanes.map((lane) => this.listen(lane)));
  }

  /** Opens the graph in threads of its own. Throws INFERENCE_FAILED when the runtime refuses it, or does not run it where it was told to. */
  static async open(options: OrtBackendOptions): Promise<OrtBackend> {
    prepareEnvironment();
    const { graphPath, exactGraphPath, provider = 'cpu', sessions = 1, threads, dims, slotRows, slotTokens } = options;
    const shared = Array.from({ length: sessions + SPARE_SLOTS }, (): SharedSlot => ({
      ids: new SharedArrayBuffer(slotTokens * 4),
      lengths: new SharedArrayBuffer(slotRows * 4),
      embeddings: new SharedArrayBuffer(slotRows * dims * 4),
    }));
    const workerData: OrtThreadData = { graphPath, exactGraphPath, provider, threads, dims, slots: shared };
    const opened = await Promise.allSettled(Array.from({ length: sessions }, () => openThread(workerData)));
    const running = opened.flatMap((thread) => (thread.status === 'fulfilled' ? [thread.value] : []));
    const failure = opened.find((thread) => thread.status === 'rejected');
    if (failure === undefined) return new OrtBackend(options, running, shared);
    for (const thread of running) thread.postMessage('close');
    throw failure.reason;
  }

  lend(): Slot | undefined {
    return this.free.shift();
  }

  giveBack(slot: Slot): void {
    invariant(!this.free.some((other) => other.index === slot.index), 'a slot is given back once');
    this.free.push(slot);
  }

  /**
   * Before the first run, on the CPU: lets the provider's arena begin with one region for runs of up to so many padded tokens, so that
   * what a run takes follows its size (see ort-thread.ts), and runs one short row. Costs address space, not memory, and no more of it
   * than `mostBytes`; on other devices it would be memory, and nothing happens.
   */
  async prepare(paddedTokens: number, mostBytes = Number.POSITIVE_INFINITY): Promise<void> {
    if ((this.options.provider ?? 'cpu') !== 'cpu') return;
    const vectorBytes = this.dims * ELEMENT_BYTES[this.precision];
    const wantedBytes = VECTORS_PER_TOKEN * paddedTokens * this.dims * ELEMENT_BYTES.fp32;
    const powerBelow = 2 ** Math.floor(Math.log2(mostBytes)); // regions are powers of two
    const reserveTokens = Math.min(MOST_RESERVED_TOKENS, Math.floor(Math.min(wantedBytes, powerBelow) / vectorBytes));
    invariant(this.pending.size === 0, 'the arena is laid out before anything runs');
    for (const { thread } of this.lanes) thread.postMessage({ reserveTokens } satisfies PrepareRequest);
    await Promise.all(this.lanes.map(({ thread }) => prepared(thread)));
  }

  run(slot: Slot, shape: RunShape, { isUrgent = false }: RunOptions = {}): Promise<RunResult> {
    return this.queue(slot, shape, { isUrgent, isExact: false });
  }

  private queue(slot: Slot, { rows, width }: RunShape, how: Pick<RunRequest, 'isUrgent' | 'isExact'>): Promise<RunResult> {
    invariant(rows >= 1 && rows <= this.slotRows && rows * width <= this.slotTokens, 'a micro-batch fits its slot');
    invariant(!this.isStopping, 'nothing runs on a stopped backend');
    const lane = this.lanes.reduce((least, other) => (other.pending < least.pending ? other : least));
    lane.pending++;
    return new Promise((resolve, reject) => {
      this.pending.set(slot.index, { lane, resolve, reject });
      lane.thread.postMessage({ slot: slot.index, rows, width, ...how } satisfies RunRequest);
    });
  }

  runningMs(): number {
    const nowMs = performance.now();
    return Math.max(...this.lanes.map(({ runStartedMs }) => (runStartedMs === undefined ? 0 : nowMs - runStartedMs)));
  }

  memory(): Promise<MemoryReading | undefined> {
    return this.readMemory();
  }

  async stop(): Promise<void> {
    if (!this.isStopping) {
      this.isStopping = true;
      for (const { thread } of this.lanes) thread.postMessage('close'); // served after every run before it
    }
    await this.exited;
  }

  /** Resolves when the thread is gone. */
  private listen(lane: Lane): Promise<void> {
    lane.thread.on('message', (message: OrtThreadMessage) => this.hear(lane, message));
    lane.thread.on('error', (error) => this.failAll(error));
    return new Promise((resolve) => {
      lane.thread.once('exit', (code) => {
        if (lane.pending > 0) this.failAll(new Error(`exit code ${code}`));
        resolve();
      });
    });
  }

  private hear(lane: Lane, message: OrtThreadMessage): void {
    switch (message.kind) {
      case 'started':
        lane.runStartedMs = performance.now();
        return;
      case 'ran': return this.take(message.slot).resolve({ ok: true, runMs: message.runMs, ...(message.memory !== undefined && { memory: message.memory }) });
      case 'failed': return this.settleFailure(this.take(message.slot), message.message);
      case 'ready':
      case 'unfit':
      case 'prepared':
        return; // heard where they were asked for
      default: return unreachable(message);
    }
  }

  private take(slot: number): Pending {
    const pending = this.pending.get(slot);
    invariant(pending !== undefined, 'the thread answers only what it was asked');
    this.pending.delete(slot);
    pending.lane.pending--;
    pending.lane.runStartedMs = undefined;
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
    for (const pending of this.pending.values()) {
      pending.lane.pending--;
      pending.reject(lost);
    }
    this.pending.clear();
  }
}

/**
 * Variables that have to be set before the library is loaded. (Here, not in the thread: only the main thread's variables
 * reach native code.) ONNX Runtime 1.30 on Linux keeps a device id under the user's cache folder and uploads events unless
 * told not to; Shoal tells nobody what it runs. And CUDA's libraries compute fp32 products in tf32, ten bits of fraction,
 * because the provider asks for it and the binding cannot say otherwise; what is called fp32 here is fp32.
 */
function prepareEnvironment(): void {
  process.env['ORT_DISABLE_TELEMETRY'] = '1';
  process.env['NVIDIA_TF32_OVERRIDE'] ??= '0';
}

async function openThread(workerData: OrtThreadData): Promise<Worker> {
  const isSource = import.meta.url.endsWith('.ts');
  const thread = new Worker(new URL(isSource ? './ort-thread.ts' : './ort-thread.js', import.meta.url), { workerData });
  await ready(thread, workerData.graphPath);
  return thread;
}

function toSlot(shared: SharedSlot, index: number): Slot {
  return { index, ids: new Int32Array(shared.ids), lengths: new Int32Array(shared.lengths), embeddings: new Float32Array(shared.embeddings) };
}

/** Or the thread is gone, which whoever runs something is going to hear. */
function prepared(thread: Worker): Promise<void> {
  return new Promise((resolve) => {
    thread.once('exit', () => resolve());
    thread.on('message', function hear(message: OrtThreadMessage) {
      if (message.kind !== 'prepared') return;
      thread.off('message', hear);
      resolve();
    });
  });
}

function ready(thread: Worker, graphPath: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const refuse = (found: string): void => reject(new ShoalError('INFERENCE_FAILED', `ONNX Runtime does not open ${graphPath}: ${found}`, { graphPath }));
    thread.once('message', (message: OrtThreadMessage) => (message.kind === 'ready' ? resolve() : refuse(message.kind === 'unfit' ? message.message : message.kind)));
    thread.once('error', (error) => refuse(error instanceof Error ? error.message : String(error)));
  });
}

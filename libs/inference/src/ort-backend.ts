// InferenceBackend over ONNX Runtime: buffers in shared memory, session threads that run the model, micro-batches
// queued at them so that the device never waits for the main thread. Translates the runtime's errors; knows nothing of
// jobs.

import { ShoalError, invariant } from '@shoal/contract';
import {
  KEPT_SLOTS,
  type InferenceBackend,
  type MemoryPlan,
  type MemoryProbe,
  type MemoryReading,
  type Precision,
  type RunOptions,
  type RunResult,
  type RunShape,
  type Slot,
} from '@shoal/core';
import { processMemory } from './process-memory.ts';
import type { Provider } from './provider.ts';
import { classifyRunFailure } from './run-failure.ts';
import { SessionThread, soonestThread, type RunAnswer } from './session-thread.ts';
import type { RunRequest, SessionThreadOptions, SharedSlot } from './session-thread-protocol.ts';

export interface OrtBackendOptions {
  readonly graphPath: string;
  /** What the graph computes in, for the records of what ran. Default fp32. */
  readonly precision?: Precision;
  /** The same model in fp32: with it `runExact` is there. Left out where the graph computes in fp32 already. */
  readonly exactGraphPath?: string | undefined;
  /** Asked before the first exact run that it lets pass; it throws where the exact graph does not give what it should. */
  readonly proveExact?: ProveExact | undefined;
  readonly dims: number;
  /** Values of a token in its hidden states: what the arena is laid out by. Default: as many as `dims`. */
  readonly hidden?: number | undefined;
  /** Default: the CPU. Any other is proven by the runtime's trace before `open` resolves. */
  readonly provider?: Provider;
  /** What to call it in the records of what ran, e.g. "cuda:0". Default: the provider's name. */
  readonly device?: string;
  /**
   * Sessions that run side by side, each with its own copy of the weights: one launches while another computes. Default
   * 1.
   */
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

/**
 * Runs what it likes in this slot by `run`, whose answer it hands on, and leaves ids and lengths as they were. The
 * session of exact runs opens with the first of them, so that there is nothing to look at before.
 */
export type ProveExact = (slot: Slot, run: (shape: RunShape) => Promise<RunResult>) => Promise<RunResult>;

/**
 * Beside each batch that runs: one is queued behind it, one is being packed or read, and some are kept for urgent rows.
 */
const SPARE_SLOTS = 2 + KEPT_SLOTS;

/**
 * Vectors of the hidden size, in fp32, that the region has for each token. A run needs 52 at most with plain operators
 * and 512 tokens, 32 in the fused graph (minilm, 2026-11-22); in a region 1.27 times as large as what it needs, tensors
 * still came to lie badly, and it took 1.3 times as much.
 */
const VECTORS_PER_TOKEN = 80;
/** Their ids are 16 MB. */
const MOST_RESERVED_TOKENS = 2 ** 22;
const ELEMENT_BYTES: Readonly<Record<Precision, number>> = { fp32: 4, fp16: 2, bf16: 2, int8: 1 };

export class OrtBackend implements InferenceBackend {
  /** What it was opened with: enough to open another like it elsewhere. */
  readonly options: OrtBackendOptions;
  readonly device: string;
  readonly engine = 'onnx';
  readonly precision: Precision;
  readonly dims: number;
  readonly slotRows: number;
  readonly slotTokens: number;
  readonly prefersFewShapes: boolean;
  readonly sessions: number;
  readonly runExact?: (slot: Slot, shape: RunShape) => Promise<RunResult>;
  private readonly threads: readonly SessionThread[];
  private readonly free: Slot[];
  private readonly readMemory: () => Promise<MemoryReading | undefined>;
  private isStopping = false;
  private isExactProven = false;

  private constructor(options: OrtBackendOptions, threads: readonly SessionThread[], shared: readonly SharedSlot[]) {
    const { provider = 'cpu', device = provider } = options;
    this.options = options;
    this.device = device;
    this.precision = options.precision ?? 'fp32';
    // in fp32 CUDA does not mind
    this.prefersFewShapes = provider === 'webgpu' || (provider === 'cuda' && this.precision !== 'fp32');
    this.sessions = options.sessions ?? 1;
    this.dims = options.dims;
    this.slotRows = options.slotRows;
    this.slotTokens = options.slotTokens;
    this.readMemory = options.readMemory ?? (async () => (provider === 'cpu' ? processMemory() : undefined));
    if (options.exactGraphPath !== undefined) this.runExact = (slot, shape) => this.exactly(slot, shape);
    this.free = shared.map(toSlot);
    this.threads = threads;
  }

  /**
   * Opens the graph once for each session. Throws INFERENCE_FAILED when the runtime refuses it, or does not run it
   * where it was told to.
   */
  static async open(options: OrtBackendOptions): Promise<OrtBackend> {
    prepareEnvironment();
    const { graphPath, exactGraphPath, provider = 'cpu', sessions = 1, threads, dims, slotRows, slotTokens } = options;
    const slots = Array.from({ length: sessions + SPARE_SLOTS }, (): SharedSlot => ({
      ids: new SharedArrayBuffer(slotTokens * 4),
      lengths: new SharedArrayBuffer(slotRows * 4),
      secondFrom: new SharedArrayBuffer(slotRows * 4),
      embeddings: new SharedArrayBuffer(slotRows * dims * 4),
    }));
    const session: SessionThreadOptions = { graphPath, exactGraphPath, provider, threads, dims, slots };
    const opened = await Promise.allSettled(Array.from({ length: sessions }, () => SessionThread.open(session)));
    const open = opened.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
    const failure = opened.find((one) => one.status === 'rejected');
    if (failure !== undefined) {
      await Promise.all(open.map((one) => one.stop()));
      throw refused(graphPath, failure.reason);
    }
    return new OrtBackend(options, open, slots);
  }

  /**
   * On the CPU the law of its runs is fitted to shapes; a card that is named begins with its preset. Of another device
   * nothing is known but the graph.
   */
  memoryPlan(): MemoryPlan {
    const { graphPath, threads, provider = 'cuda', deviceKind, probe } = this.options;
    if (this.device === 'cpu') {
      const { precision, dims, slotRows, slotTokens } = this;
      const { hidden } = this.options;
      return {
        kind: 'fitted',
        graph: { graphPath, precision, dims, hidden, threads, slotRows, slotTokens },
        prepare: (paddedTokens, mostBytes) => this.prepare(paddedTokens, mostBytes),
      };
    }
    if (deviceKind === undefined || probe === undefined) return { kind: 'none', graphPath };
    return { kind: 'preset', card: { name: deviceKind, probe }, provider, graphPath };
  }

  lend(): Slot | undefined {
    return this.free.shift();
  }

  giveBack(slot: Slot): void {
    invariant(!this.free.some((other) => other.index === slot.index), 'a slot is given back once');
    this.free.push(slot);
  }

  /**
   * Before the first run, on the CPU: lets the provider's arena begin with one region for runs of up to so many padded
   * tokens, so that what a run takes follows its size (see arena-region.ts), and runs one short row. Costs address
   * space, not memory, and no more of it than `mostBytes` for all sessions; on other devices it would be memory, and
   * nothing happens.
   */
  async prepare(paddedTokens: number, mostBytes = Number.POSITIVE_INFINITY): Promise<void> {
    if ((this.options.provider ?? 'cpu') !== 'cpu') return;
    const { hidden = this.dims } = this.options;
    const vectorBytes = hidden * ELEMENT_BYTES[this.precision];
    const wantedBytes = VECTORS_PER_TOKEN * paddedTokens * hidden * ELEMENT_BYTES.fp32;
    const powerBelow = 2 ** Math.floor(Math.log2(mostBytes / this.sessions)); // regions are powers of two
    const reserveTokens = Math.min(MOST_RESERVED_TOKENS, Math.floor(Math.min(wantedBytes, powerBelow) / vectorBytes));
    invariant(
      this.threads.every((thread) => thread.pending === 0),
      'the arena is laid out before anything runs',
    );
    await Promise.all(this.threads.map((thread) => thread.prepare(reserveTokens)));
  }

  run(slot: Slot, shape: RunShape, { isUrgent = false }: RunOptions = {}): Promise<RunResult> {
    return this.queue(slot, shape, { isUrgent, isExact: false });
  }

  private async exactly(slot: Slot, shape: RunShape): Promise<RunResult> {
    const run = (one: RunShape): Promise<RunResult> => this.queue(slot, one, { isUrgent: false, isExact: true });
    const { proveExact } = this.options;
    if (proveExact !== undefined && !this.isExactProven) {
      const proof = await proveExact(slot, run);
      if (!proof.ok) return proof;
      this.isExactProven = true;
    }
    return run(shape);
  }

  private async queue(
    slot: Slot,
    { rows, width }: RunShape,
    how: Pick<RunRequest, 'isUrgent' | 'isExact'>,
  ): Promise<RunResult> {
    invariant(rows >= 1 && rows <= this.slotRows && rows * width <= this.slotTokens, 'a micro-batch fits its slot');
    invariant(!this.isStopping, 'nothing runs on a stopped backend');
    const thread = soonestThread(this.threads);
    return resultOf(await thread.run({ slot: slot.index, rows, width, ...how }));
  }

  runningMs(): number {
    return Math.max(...this.threads.map((thread) => thread.runningMs()));
  }

  memory(): Promise<MemoryReading | undefined> {
    return this.readMemory();
  }

  async stop(): Promise<void> {
    this.isStopping = true;
    await Promise.all(this.threads.map((thread) => thread.stop()));
  }
}

function resultOf(answer: RunAnswer): RunResult {
  if (answer.ok) return { ok: true, runMs: answer.runMs, ...(answer.memory && { memory: answer.memory }) };
  const { message } = answer;
  switch (classifyRunFailure(message)) {
    case 'out-of-vram':
      return { ok: false, outOfVram: { message } };
    case 'device-lost':
      throw new ShoalError('DEVICE_LOST', `the device stopped working: ${message}`);
    case 'failed':
      throw new ShoalError('INFERENCE_FAILED', `ONNX Runtime could not run the model: ${message}`);
  }
}

function refused(graphPath: string, reason: unknown): ShoalError {
  return new ShoalError(
    'INFERENCE_FAILED',
    `ONNX Runtime does not open ${graphPath}: ` +
      `${(reason instanceof Error ? reason.message : String(reason)).split('\n', 1)[0]}`,
    { graphPath },
  );
}

/**
 * Sets what has to be set before the library is loaded. (Here, not in the thread: only the main thread's variables
 * reach native code.) ONNX Runtime 1.30 on Linux keeps a device id under the user's cache folder and uploads events
 * unless told not to; Shoal tells nobody what it runs. CUDA's libraries compute fp32 products in tf32, ten bits of
 * fraction, because the provider asks for it, and the package's binding cannot tell it not to. What is called fp32 here
 * is fp32.
 */
function prepareEnvironment(): void {
  process.env['ORT_DISABLE_TELEMETRY'] = '1';
  process.env['NVIDIA_TF32_OVERRIDE'] ??= '0';
}

function toSlot(shared: SharedSlot, index: number): Slot {
  return {
    index,
    ids: new Int32Array(shared.ids),
    lengths: new Int32Array(shared.lengths),
    secondFrom: new Int32Array(shared.secondFrom),
    embeddings: new Float32Array(shared.embeddings),
  };
}

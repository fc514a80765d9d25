// InferenceBackend over an encoder of native/encoder: lanes that compute real tokens alone, micro-batches queued at
// them so that the device never waits for the main thread. Buffers are ordinary memory, which the lanes' threads reach
// as well as shared memory and V8 copies in half the time. Every shape costs what its tokens cost, and what a run will
// hold is known to the byte. What is asked for exactly runs in fp32 at another backend, opened when it is needed for
// the first time.
//
// Why: docs/decisions/encoder.md

import { ShoalError, invariant, isShoalError, type ToHalves } from '@shoal/contract';
import {
  KEPT_SLOTS,
  newSlots,
  type InferenceBackend,
  type MemoryLaw,
  type MemoryPlanOf,
  type MemoryProbe,
  type MemoryReading,
  type Precision,
  type RunOptions,
  type RunResult,
  type RunShape,
  type Slot,
} from '@shoal/core';
import { Serial } from '@shoal/core/base';
import type { EncoderModel } from '@shoal/models';
import {
  ENCODER_LIBRARIES,
  ENCODER_STATUS,
  encoderAddon,
  nativeEncoderProblem,
  type EncoderAddon,
  type HeldBytes,
  type NativeEncoder,
} from './encoder-addon.ts';
import { classifyRunFailure } from './run-failure.ts';

export interface EncoderBackendOptions {
  readonly model: EncoderModel;
  /** Path of the library. Default: the one for CUDA. */
  readonly library?: string;
  /** What the library computes in. Default fp16. */
  readonly precision?: Precision;
  /** What to call it in the records of what ran, e.g. "cuda:0". */
  readonly device: string;
  /** The device's own name, e.g. "NVIDIA H200". */
  readonly deviceKind?: string | undefined;
  /** What the device holds for this process. Default: what the encoder itself holds there. */
  readonly readMemory?: (() => Promise<MemoryReading | undefined>) | undefined;
  /** What the device has in all, and what is left for anybody. */
  readonly probe?: MemoryProbe | undefined;
  /** Runs side by side. Default 1. */
  readonly lanes?: number;
  /** Most that the encoder may hold on the device. Default: what there is. */
  readonly memoryLimit?: number | undefined;
  /** GELU by the error function instead of its form with tanh: nearer to fp32 and slower. Default false. */
  readonly hasExactGelu?: boolean;
  /** Opens the same model in fp32. With it `runExact` is there. */
  readonly openExact?: (() => Promise<InferenceBackend>) | undefined;
  readonly slotRows: number;
  /** Padded tokens. */
  readonly slotTokens: number;
}

/**
 * Beside each batch that runs: one is queued behind it, one is being packed or read, and some are kept for urgent rows.
 */
const SPARE_SLOTS = 2 + KEPT_SLOTS;
/** Larger products take the algorithm of this size (LARGEST_CHOICE in native/encoder). */
const PREPARED_TOKENS = 65_536;
/** A lane's memory grows in eight steps between powers of two (capacity() in native/encoder/src/model.h). */
const MOST_ROUNDING = 1.125;

export class EncoderBackend implements InferenceBackend {
  /** What it was opened with: enough to open another like it elsewhere. */
  readonly options: EncoderBackendOptions;
  readonly device: string;
  readonly engine = 'native';
  readonly precision: Precision;
  readonly dims: number;
  readonly slotRows: number;
  readonly slotTokens: number;
  readonly prefersFewShapes = false;
  readonly givesUnitRows: boolean;
  readonly sessions: number;
  readonly runExact?: (slot: Slot, shape: RunShape) => Promise<RunResult>;
  readonly toHalves?: ToHalves;
  readonly checksum?: (bytes: Uint8Array) => number;
  private readonly addon: EncoderAddon;
  private readonly encoder: NativeEncoder;
  private readonly sizes: Float64Array;
  private readonly free: Slot[];
  private held: HeldBytes;
  private exact: Promise<InferenceBackend> | undefined;
  /** The same, once it is open. */
  private openedExact: InferenceBackend | undefined;
  /** Since when it has been opening. */
  private openingSinceMs: number | undefined;
  /** Ends with the last exact run that was asked for. */
  private readonly exactRuns = new Serial();
  private stopped: Promise<void> | undefined;

  private constructor(
    options: EncoderBackendOptions,
    addon: EncoderAddon,
    encoder: NativeEncoder,
    sizes: Float64Array,
    held: HeldBytes,
  ) {
    const { device, precision = 'fp16', lanes = 1, slotRows, slotTokens, model, openExact } = options;
    this.options = options;
    this.device = device;
    this.precision = precision;
    this.dims = model.config.hidden;
    this.givesUnitRows = model.isNormalized;
    this.slotRows = slotRows;
    this.slotTokens = slotTokens;
    this.sessions = lanes;
    this.addon = addon;
    this.encoder = encoder;
    this.sizes = sizes;
    this.held = held;
    this.free = newSlots(lanes + SPARE_SLOTS, this);
    if (addon.halves(new Float32Array(0), new Uint16Array(0)))
      this.toHalves = (values, halves) => void addon.halves(values, halves);
    if (addon.checksum(new Uint8Array(0)) !== undefined) this.checksum = (bytes) => addon.checksum(bytes)!;
    if (openExact !== undefined)
      this.runExact = (slot, shape) => this.exactRuns.run(() => this.runElsewhere(openExact, slot, shape));
  }

  /**
   * Throws SETUP_FAILED where there is no library, or it cannot take this model; OUT_OF_VRAM where there is no room for
   * the weights.
   */
  static async open(options: EncoderBackendOptions): Promise<EncoderBackend> {
    const { library = ENCODER_LIBRARIES.cuda, slotTokens } = options;
    const addon = encoderAddon();
    const problem = nativeEncoderProblem(library);
    if (problem !== undefined || addon === undefined) throw new ShoalError('SETUP_FAILED', String(problem));
    const sizes = sizesOf(options);
    const encoder = addon.encoder(library);
    try {
      const held = await addon.open(encoder, sizes, options.model.weights, Math.min(slotTokens, PREPARED_TOKENS));
      return new EncoderBackend(withoutWeights(options), addon, encoder, sizes, held);
    } catch (error) {
      await addon.close(encoder);
      throw refused(error);
    }
  }

  lend(): Slot | undefined {
    return this.free.shift();
  }

  giveBack(slot: Slot): void {
    invariant(!this.free.some((other) => other.index === slot.index), 'a slot is given back once');
    this.free.push(slot);
  }

  async run(slot: Slot, { rows, width }: RunShape, { isUrgent = false }: RunOptions = {}): Promise<RunResult> {
    invariant(rows >= 1 && rows <= this.slotRows && rows * width <= this.slotTokens, 'a micro-batch fits its slot');
    invariant(this.stopped === undefined, 'nothing runs on a stopped backend');
    try {
      const [runMs, ...held] = await this.addon.run(
        this.encoder,
        slot.ids,
        slot.lengths,
        slot.embeddings,
        rows,
        width,
        isUrgent,
      );
      this.held = held;
      return { ok: true, runMs };
    } catch (error) {
      return failure(error);
    }
  }

  /**
   * Tells of the run that has been going on longest: one that hangs elsewhere, or waits for what never opens there,
   * holds up its rows as well.
   */
  runningMs(): number {
    const openingMs = this.openingSinceMs === undefined ? 0 : performance.now() - this.openingSinceMs;
    return Math.max(this.addon.runningMs(this.encoder), this.openedExact?.runningMs() ?? openingMs);
  }

  /** What lanes hold is known to the byte before they run. */
  memoryPlan(): MemoryPlanOf<'exact'> {
    const { device, deviceKind: name = device, probe, model } = this.options;
    const { hidden: hiddenSize, intermediate: intermediateSize, heads } = model.config;
    return {
      kind: 'exact',
      card: { name, probe },
      sizes: { hiddenSize, intermediateSize, heads },
      law: (loadedBytes) => this.memoryLaw(loadedBytes),
      heldBytes: () => this.heldBytes(),
      shrink: () => this.shrink(),
    };
  }

  /** What the driver tells, where it does; else what the encoder holds, to the byte. */
  async memory(): Promise<MemoryReading | undefined> {
    const { readMemory } = this.options;
    if (readMemory !== undefined) return readMemory();
    const [weights, lanes, mostLanes] = this.held;
    return { liveBytes: weights + mostLanes, footprintBytes: weights + lanes, source: 'arena' };
  }

  /** What the encoder holds on the device now: weights, and what its lanes keep. */
  heldBytes(): number {
    const [weights, lanes] = this.held;
    return weights + lanes;
  }

  /** What one lane holds after a run of so many tokens, padding not counted, and rows: to the byte. */
  laneBytes(tokens: number, rows: number): number {
    return this.addon.bytes(this.encoder, this.sizes, tokens, rows);
  }

  /**
   * The law for planning by padded tokens: what all lanes may hold, never less than they do. A narrow row costs a
   * little more a token, for its vector.
   */
  memoryLaw(loadedBytes: number): MemoryLaw {
    const [few, many] = [8192, 1_048_576]; // powers of two, which are not rounded up
    const [small, large] = [this.laneBytes(few, few / 8), this.laneBytes(many, many / 8)];
    const perToken = ((large - small) / (many - few)) * MOST_ROUNDING;
    return {
      loadedBytes,
      floorBytes: this.sessions * Math.max(0, this.laneBytes(1, 1)),
      slackBytes: 0,
      perToken: [{ width: 8, bytes: this.sessions * perToken }],
      arena: 'exact',
    };
  }

  /** Gives what idle lanes hold back to the device. False where there was nothing. */
  async shrink(): Promise<boolean> {
    const [, before] = this.held;
    this.held = await this.addon.shrink(this.encoder);
    return this.held[1] < before;
  }

  async stop(): Promise<void> {
    await (this.stopped ??= this.close());
  }

  private async close(): Promise<void> {
    await this.addon.close(this.encoder);
    await (await this.exact?.catch(() => undefined))?.stop();
  }

  /** What does not open is tried again by the next run: what there was no room for may have room by then. */
  private async openOnce(
    openExact: () => Promise<InferenceBackend>,
  ): Promise<InferenceBackend | Extract<RunResult, { ok: false }>> {
    this.openingSinceMs = performance.now();
    try {
      return (this.openedExact = await (this.exact ??= openExact()));
    } catch (error) {
      this.exact = undefined;
      if (isShoalError(error, 'OUT_OF_VRAM') || classifyRunFailure(messageOf(error)) === 'out-of-vram')
        return { ok: false, outOfVram: { message: messageOf(error) } };
      throw error;
    } finally {
      this.openingSinceMs = undefined;
    }
  }

  /** The other backend has slots of its own: what goes there and back is copied. */
  private async runElsewhere(
    openExact: () => Promise<InferenceBackend>,
    slot: Slot,
    shape: RunShape,
  ): Promise<RunResult> {
    const exact = await this.openOnce(openExact);
    if ('outOfVram' in exact) return exact;
    const other = exact.lend();
    invariant(other !== undefined, 'exact runs come one after the other');
    try {
      other.ids.set(slot.ids.subarray(0, shape.rows * shape.width));
      other.lengths.set(slot.lengths.subarray(0, shape.rows));
      other.secondFrom.set(slot.secondFrom.subarray(0, shape.rows));
      const result = await exact.run(other, shape);
      slot.embeddings.set(other.embeddings.subarray(0, shape.rows * this.dims));
      return result;
    } finally {
      exact.giveBack(other);
    }
  }
}

/** The sizes in the order of shoal_encoder_model and shoal_encoder_options. */
function sizesOf({
  model: { config, pooling, isNormalized },
  lanes = 1,
  memoryLimit = 0,
  hasExactGelu = false,
}: EncoderBackendOptions): Float64Array {
  const { hidden, layers, heads, intermediate, vocabularySize, positions, layerNormEpsilon } = config;
  const firstDevice = 0; // CUDA_VISIBLE_DEVICES leaves one
  return Float64Array.of(
    hidden,
    layers,
    heads,
    intermediate,
    vocabularySize,
    positions,
    layerNormEpsilon,
    pooling === 'cls' ? 1 : 0,
    isNormalized ? 1 : 0,
    hasExactGelu ? 1 : 0,
    firstDevice,
    lanes,
    Math.floor(memoryLimit),
  );
}

/** They are on the device by now; nobody holds 90 MB for the rest of the process. */
function withoutWeights(options: EncoderBackendOptions): EncoderBackendOptions {
  return { ...options, model: { ...options.model, weights: [] } };
}

function statusOf(error: unknown): number | undefined {
  return error instanceof Error && 'status' in error && typeof error.status === 'number' ? error.status : undefined;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function refused(error: unknown): ShoalError {
  const code =
    statusOf(error) === ENCODER_STATUS.OUT_OF_MEMORY
      ? 'OUT_OF_VRAM'
      : statusOf(error) === ENCODER_STATUS.DEVICE_LOST
        ? 'DEVICE_LOST'
        : 'SETUP_FAILED';
  return new ShoalError(code, `the native encoder does not take this model: ${messageOf(error)}`, {}, error);
}

function failure(error: unknown): RunResult {
  switch (statusOf(error)) {
    case ENCODER_STATUS.OUT_OF_MEMORY:
      return { ok: false, outOfVram: { message: messageOf(error) } };
    case ENCODER_STATUS.DEVICE_LOST:
      throw new ShoalError('DEVICE_LOST', `the device stopped working: ${messageOf(error)}`, {}, error);
    default:
      throw new ShoalError(
        'INFERENCE_FAILED',
        `the native encoder could not run the model: ${messageOf(error)}`,
        {},
        error,
      );
  }
}

// A simulated device: vectors that follow from the token ids of their own row alone, runs that take time of a clock,
// and every way in which a real one fails, at the moment a test chooses. Passes inference-backend.conformance.ts.

import { ShoalError, invariant } from '@shoal/contract';
import { newSlots } from '../executor/slot-buffers.ts';
import { KEPT_SLOTS } from '../executor/slots.ts';
import type { Clock } from '../ports/clock.ts';
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
import { fakeVector } from '../sim/fake-vector.ts';

export interface RecordedRun extends RunShape {
  /** Token ids of each row, without padding. */
  readonly ids: readonly (readonly number[])[];
  /** Of each row: where a pair's second text begins; 0 of a text. */
  readonly seconds: readonly number[];
  readonly isUrgent: boolean;
  /** Whether it ran in fp32 because that was asked for. */
  readonly isExact: boolean;
}

export interface FakeBackendOptions {
  readonly clock: Clock;
  readonly dims?: number;
  readonly slots?: number;
  readonly slotRows?: number;
  /** Padded tokens. */
  readonly slotTokens?: number;
  /** How long a run of this shape takes. Default: 1 ms and 1 ms per 100 padded tokens. */
  readonly runMs?: (shape: RunShape) => number;
  /** Narrower than fp32, and rows can be run exactly. Default fp32. */
  readonly precision?: Precision;
  /** Rows come out as `InferenceBackend.givesUnitRows` says. Default false. */
  readonly givesUnitRows?: boolean;
  /** Rows of so many times the length, as of a model that does not normalize. Default 1. */
  readonly length?: number;
  /** Runs side by side, none slower for the others. Default 1. */
  readonly sessions?: number;
  /** What the device holds after a run of this shape. Default: nobody knows. */
  readonly memoryAfter?: (shape: RunShape) => MemoryReading;
}

type RowRule = (ids: readonly number[]) => boolean;
/** `needs-recycle`: a library below the arena could not allocate. */
export type VramRule = (run: RecordedRun) => 'fits' | 'too-large' | 'needs-recycle';

interface QueuedRun {
  readonly slot: Slot;
  readonly shape: RunShape;
  readonly isUrgent: boolean;
  readonly isExact: boolean;
  resolve(result: RunResult): void;
  reject(error: unknown): void;
}

const never: RowRule = () => false;

export class FakeBackend implements InferenceBackend {
  readonly device = 'fake';
  readonly precision: Precision;
  readonly givesUnitRows: boolean;
  readonly sessions: number;
  readonly dims: number;
  readonly slotRows: number;
  readonly slotTokens: number;
  /** Every run that was begun, in order. */
  readonly runs: RecordedRun[] = [];
  private readonly length: number;
  private readonly slots: number;
  private readonly clock: Clock;
  private readonly runMs: (shape: RunShape) => number;
  private readonly memoryAfter: ((shape: RunShape) => MemoryReading) | undefined;
  /** Only where `precision` is narrower than fp32. */
  readonly runExact?: NonNullable<InferenceBackend['runExact']>;
  private reading: MemoryReading | undefined;
  private readonly free: Slot[];
  private readonly queue: QueuedRun[] = [];
  /** Oldest first. */
  private readonly running = new Set<{ readonly run: QueuedRun; readonly startedMs: number }>();
  private idleListeners: (() => void)[] = [];
  private isStopped = false;
  private isHanging = false;
  private vramRule: VramRule = () => 'fits';
  private failsAt: RowRule = never;
  private losesDeviceAt: RowRule = never;
  private givesNanAt: RowRule = never;
  private givesNanExactlyAt: RowRule = never;

  constructor(options: FakeBackendOptions) {
    const {
      clock,
      dims = 8,
      slots = 2 + KEPT_SLOTS,
      slotRows = 64,
      slotTokens = 1024,
      runMs = ({ rows, width }) => 1 + (rows * width) / 100,
      precision = 'fp32',
      givesUnitRows = false,
      length = 1,
      memoryAfter,
      sessions = 1,
    } = options;
    this.clock = clock;
    this.slots = slots;
    this.dims = dims;
    this.slotRows = slotRows;
    this.slotTokens = slotTokens;
    this.runMs = runMs;
    this.precision = precision;
    this.givesUnitRows = givesUnitRows;
    this.length = length;
    this.sessions = sessions;
    this.memoryAfter = memoryAfter;
    if (precision !== 'fp32')
      this.runExact = (slot, shape) => this.enqueue(slot, shape, { isUrgent: false, isExact: true });
    this.free = newSlots(slots, this);
  }

  // ---- what a test makes it do ----------------------------------------------------------------------------------

  runsOutOfVramAbove({ paddedTokens }: { readonly paddedTokens: number }): void {
    this.runsOutOfVramWhen(({ rows, width }) => (rows * width > paddedTokens ? 'too-large' : 'fits'));
  }

  runsOutOfVramWhen(rule: VramRule): void {
    this.vramRule = rule;
  }

  /** Runs with such a row throw INFERENCE_FAILED. */
  failsAtRows(rule: RowRule): void {
    this.failsAt = rule;
  }

  /** Runs with such a row throw DEVICE_LOST. */
  losesDeviceAtRows(rule: RowRule): void {
    this.losesDeviceAt = rule;
  }

  /** Such rows come back as NaN, unless they run exactly. */
  givesNanAtRows(rule: RowRule): void {
    this.givesNanAt = rule;
  }

  /** Such rows come back as NaN even from a run in fp32. */
  givesNanExactlyAtRows(rule: RowRule): void {
    this.givesNanExactlyAt = rule;
  }

  /** No run ends any more. */
  hang(): void {
    this.isHanging = true;
  }

  /** Slots that were lent and not given back. */
  get lentSlots(): number {
    return this.slots - this.free.length;
  }

  // ---- InferenceBackend -----------------------------------------------------------------------------------------

  lend(): Slot | undefined {
    return this.free.shift();
  }

  giveBack(slot: Slot): void {
    invariant(!this.free.includes(slot), 'a slot is given back once');
    invariant(
      [...[...this.running].map(({ run }) => run), ...this.queue].every((run) => run.slot !== slot),
      'a slot is not given back while it is queued or running',
    );
    this.free.push(slot);
  }

  run(slot: Slot, shape: RunShape, { isUrgent = false }: RunOptions = {}): Promise<RunResult> {
    return this.enqueue(slot, shape, { isUrgent, isExact: false });
  }

  private enqueue(
    slot: Slot,
    shape: RunShape,
    { isUrgent, isExact }: { readonly isUrgent: boolean; readonly isExact: boolean },
  ): Promise<RunResult> {
    const { rows, width } = shape;
    invariant(!this.isStopped, 'nothing runs on a stopped backend');
    invariant(!this.free.includes(slot), 'only a lent slot runs');
    invariant(rows >= 1 && rows <= this.slotRows && rows * width <= this.slotTokens, 'a micro-batch fits its slot');
    invariant(width % 8 === 0, 'a width is a multiple of 8');
    for (let row = 0; row < rows; row++) {
      const length = slot.lengths[row]!;
      invariant(length >= 1 && length <= width, 'a row has at least one token and fits the width');
      for (let i = length; i < width; i++) invariant(slot.ids[row * width + i] === 0, 'padding is 0');
    }
    return new Promise((resolve, reject) => {
      const firstBulk = this.queue.findIndex((run) => !run.isUrgent);
      this.queue.splice(isUrgent && firstBulk >= 0 ? firstBulk : this.queue.length, 0, {
        slot,
        shape,
        isUrgent,
        isExact,
        resolve,
        reject,
      });
      this.next();
    });
  }

  runningMs(): number {
    const [oldest] = this.running;
    return oldest === undefined ? 0 : this.clock.nowMs() - oldest.startedMs;
  }

  memoryPlan(): MemoryPlan {
    return { kind: 'none' };
  }

  async memory(): Promise<MemoryReading | undefined> {
    return this.reading;
  }

  async stop(): Promise<void> {
    this.isStopped = true;
    if (this.running.size > 0) await new Promise<void>((resolve) => this.idleListeners.push(resolve));
  }

  private vectorOf(ids: readonly number[], isExact: boolean): Float32Array {
    if (this.length !== 1) return fakeVector(ids, this.dims).map((value) => value * this.length);
    return this.givesUnitRows && !isExact ? deliveredVector(ids, this.dims) : fakeVector(ids, this.dims);
  }

  private next(): void {
    if (this.running.size === this.sessions) return;
    const run = this.queue.shift();
    if (run === undefined) {
      if (this.running.size === 0) for (const listener of this.idleListeners.splice(0)) listener();
      return;
    }
    const running = { run, startedMs: this.clock.nowMs() };
    this.running.add(running);
    const { shape, isUrgent, isExact } = run;
    const seconds = [...run.slot.secondFrom.subarray(0, shape.rows)];
    const recorded = { ...shape, isUrgent, isExact, ids: idsOf(run.slot, shape), seconds };
    this.runs.push(recorded);
    if (this.isHanging) return;
    this.clock.after(this.runMs(run.shape), () => {
      if (this.isHanging) return;
      this.running.delete(running);
      this.finish(run, recorded);
    });
  }

  private finish(run: QueuedRun, recorded: RecordedRun): void {
    const { rows, width, ids, isExact } = recorded;
    const verdict = this.vramRule(recorded);
    const isNan = (row: readonly number[]): boolean =>
      (!isExact && this.givesNanAt(row)) || this.givesNanExactlyAt(row);
    if (verdict !== 'fits')
      run.resolve({
        ok: false,
        outOfVram: { message: `${rows * width} padded tokens do not fit`, needsRecycle: verdict === 'needs-recycle' },
      });
    else if (ids.some(this.losesDeviceAt))
      run.reject(new ShoalError('DEVICE_LOST', 'the simulated device stopped working'));
    else if (ids.some(this.failsAt))
      run.reject(new ShoalError('INFERENCE_FAILED', 'the simulated model cannot run this batch'));
    else {
      for (const [row, rowIds] of ids.entries())
        run.slot.embeddings.set(isNan(rowIds) ? nan(this.dims) : this.vectorOf(rowIds, isExact), row * this.dims);
      this.reading = this.memoryAfter?.(run.shape);
      run.resolve({
        ok: true,
        runMs: this.runMs(run.shape),
        ...(this.reading === undefined ? {} : { memory: this.reading }),
      });
    }
    this.next();
  }
}

/** The same as the executor hands it on: its length right to the last bit. */
export function deliveredVector(ids: ArrayLike<number>, dims: number): Float32Array {
  const vector = fakeVector(ids, dims);
  const factor = 1 / Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  return vector.map((value) => value * factor);
}

function idsOf(slot: Slot, { rows, width }: RunShape): number[][] {
  return Array.from({ length: rows }, (_, row) => [
    ...slot.ids.subarray(row * width, row * width + slot.lengths[row]!),
  ]);
}

function nan(dims: number): Float32Array {
  return new Float32Array(dims).fill(Number.NaN);
}

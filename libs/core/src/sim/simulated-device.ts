// A device with memory to run out of, for tests and for a whole fleet on a laptop (`--device sim:24GB`): time and
// memory by device-law.ts, vectors that follow from a row's own token ids, and every way in which a real device fails.
// It computes nothing. On a manual clock it is as exact as that clock; on the system's it takes its time in real
// milliseconds.

import { ShoalError, invariant } from '@shoal/contract';
import { newSlots } from '../executor/slot-buffers.ts';
import { KEPT_SLOTS } from '../executor/slots.ts';
import { fakeVector } from './fake-vector.ts';
import type { Clock } from '../ports/clock.ts';
import type {
  InferenceBackend,
  MemoryPlan,
  MemoryProbe,
  MemoryReading,
  Precision,
  RunOptions,
  RunResult,
  RunShape,
  Slot,
} from '../ports/device.ts';
import { seededRandom } from '../base/seeded-random.ts';
import { REFUSAL_MS, runMs, type DeviceLaw } from './device-law.ts';
import { SimulatedMemory } from './simulated-memory.ts';

export interface SimulatedDeviceOptions {
  readonly law: DeviceLaw;
  readonly clock: Clock;
  readonly dims: number;
  readonly slotRows: number;
  /** Padded tokens. */
  readonly slotTokens: number;
  readonly precision?: Precision;
  /** The same seed, the same noise. */
  readonly seed?: number;
  /** How long the first run waits: graph, context, kernels. Default 0. */
  readonly startMs?: number;
  readonly faults?: DeviceFaults;
  /** What a row's vector is. Default: as tests know it. */
  readonly vectorOf?: ((ids: ArrayLike<number>, dims: number) => Float32Array) | undefined;
}

/** What goes wrong, and when: rules over the row's token ids or the run's shape, or shares of all runs. */
export interface DeviceFaults {
  /** Runs that run out of memory whatever the law says. */
  readonly outOfMemoryAt?: (shape: RunShape) => boolean;
  /** Share of runs that run out of memory. */
  readonly outOfMemoryShare?: number;
  /** Runs that never end. */
  readonly hangsAt?: (shape: RunShape) => boolean;
  /** Runs with such a row end the process: called instead of answering. Default: DEVICE_LOST. */
  readonly abortsAtRow?: (ids: ArrayLike<number>) => boolean;
  readonly abort?: () => void;
  /** Runs with such a row throw DEVICE_LOST, and so does every run after. */
  readonly losesDeviceAtRow?: (ids: ArrayLike<number>) => boolean;
  /** Runs with such a row throw INFERENCE_FAILED. */
  readonly failsAtRow?: (ids: ArrayLike<number>) => boolean;
  /** Such rows come back as NaN, unless they run exactly. */
  readonly givesNanAtRow?: (ids: ArrayLike<number>) => boolean;
}

/** One micro-batch runs, one waits, and there is what is kept back for interactive rows. */
const SLOTS = 2 + KEPT_SLOTS;
const never = (): boolean => false;

interface QueuedRun {
  readonly slot: Slot;
  readonly shape: RunShape;
  readonly isUrgent: boolean;
  readonly isExact: boolean;
  resolve(result: RunResult): void;
  reject(error: unknown): void;
}

export class SimulatedDevice implements InferenceBackend, MemoryProbe {
  readonly device: string;
  readonly precision: Precision;
  readonly dims: number;
  readonly slotRows: number;
  readonly slotTokens: number;
  readonly runExact?: (slot: Slot, shape: RunShape) => Promise<RunResult>;
  private readonly options: SimulatedDeviceOptions;
  private readonly random: () => number;
  private readonly simulated: SimulatedMemory;
  private readonly free: Slot[];
  private readonly queue: QueuedRun[] = [];
  private running: { readonly run: QueuedRun; readonly startedMs: number } | undefined;
  private idleListeners: (() => void)[] = [];
  private hasRun = false;
  private isLost = false;
  private isStopping = false;

  constructor(options: SimulatedDeviceOptions) {
    const { law, dims, slotRows, slotTokens, precision = 'fp16', seed = 1 } = options;
    this.options = options;
    this.device = `sim:${Math.round(law.totalBytes / 1e9)}GB`;
    this.precision = precision;
    this.dims = dims;
    this.slotRows = slotRows;
    this.slotTokens = slotTokens;
    if (precision !== 'fp32') this.runExact = (slot, shape) => this.enqueue(slot, shape, false, true);
    this.random = seededRandom(seed);
    this.simulated = new SimulatedMemory(law, this.random);
    this.free = newSlots(SLOTS, this);
  }

  /** Another process takes memory, or gives it back. Unseen: the driver does not show it. */
  setTenant(tenantBytes: number, isSeen: boolean): void {
    this.simulated.othersBytes = tenantBytes;
    this.simulated.areOthersSeen = isSeen;
  }

  memoryPlan(): MemoryPlan {
    return { kind: 'simulated', probe: this };
  }

  lend(): Slot | undefined {
    return this.free.shift();
  }

  giveBack(slot: Slot): void {
    invariant(!this.free.includes(slot), 'a slot is given back once');
    this.free.push(slot);
  }

  run(slot: Slot, shape: RunShape, { isUrgent = false }: RunOptions = {}): Promise<RunResult> {
    return this.enqueue(slot, shape, isUrgent, false);
  }

  runningMs(): number {
    return this.running === undefined ? 0 : this.options.clock.nowMs() - this.running.startedMs;
  }

  async memory(): Promise<MemoryReading | undefined> {
    return this.simulated.reading();
  }

  /** What the driver shows. */
  async read(): Promise<{ readonly freeBytes: number; readonly totalBytes: number }> {
    return this.simulated.driver();
  }

  async stop(): Promise<void> {
    this.isStopping = true;
    if (this.running !== undefined) await new Promise<void>((resolve) => this.idleListeners.push(resolve));
  }

  private enqueue(slot: Slot, shape: RunShape, isUrgent: boolean, isExact: boolean): Promise<RunResult> {
    invariant(!this.isStopping, 'nothing runs on a stopped backend');
    invariant(
      shape.rows >= 1 && shape.rows <= this.slotRows && shape.rows * shape.width <= this.slotTokens,
      'a micro-batch fits its slot',
    );
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

  private next(): void {
    if (this.running !== undefined) return;
    const run = this.queue.shift();
    if (run === undefined) {
      for (const listener of this.idleListeners.splice(0)) listener();
      return;
    }
    const { clock, law, startMs = 0, faults = {} } = this.options;
    this.running = { run, startedMs: clock.nowMs() };
    if (faults.hangsAt?.(run.shape) === true) return;
    const verdict = this.verdictOn(run.shape);
    const tookMs = verdict === 'fits' ? runMs(law, run.shape) : REFUSAL_MS;
    const waitMs = this.hasRun ? tookMs : tookMs + startMs;
    this.hasRun = true;
    clock.after(waitMs, () => {
      this.running = undefined;
      this.finish(run, verdict, waitMs);
      this.next();
    });
  }

  private verdictOn(shape: RunShape): ReturnType<SimulatedMemory['take']> {
    const { outOfMemoryAt = never, outOfMemoryShare = 0 } = this.options.faults ?? {};
    if (outOfMemoryAt(shape) || this.random() < outOfMemoryShare) return 'too-large';
    return this.simulated.take(shape);
  }

  private finish(run: QueuedRun, verdict: ReturnType<SimulatedMemory['take']>, tookMs: number): void {
    const { abortsAtRow = never, losesDeviceAtRow = never, failsAtRow = never, abort } = this.options.faults ?? {};
    const rows = rowsOf(run.slot, run.shape);
    if (abort !== undefined && rows.some(abortsAtRow)) return abort();
    this.isLost ||= rows.some((ids) => losesDeviceAtRow(ids) || abortsAtRow(ids));
    if (this.isLost)
      return run.reject(
        new ShoalError('DEVICE_LOST', 'the simulated device stopped working; start its executor again'),
      );
    if (rows.some(failsAtRow))
      return run.reject(new ShoalError('INFERENCE_FAILED', 'the simulated model cannot run this batch'));
    if (verdict !== 'fits') {
      const { rows: count, width } = run.shape;
      return run.resolve({
        ok: false,
        outOfVram: {
          message: `the simulated device has no memory for ${count} rows of ${width} tokens`,
          needsRecycle: verdict === 'needs-recycle',
        },
      });
    }
    this.write(run, rows);
    run.resolve({ ok: true, runMs: tookMs, memory: this.simulated.reading() });
  }

  private write({ slot, isExact }: QueuedRun, rows: readonly Int32Array[]): void {
    const { faults: { givesNanAtRow = never } = {}, vectorOf = fakeVector } = this.options;
    for (const [i, ids] of rows.entries()) {
      const vector =
        !isExact && givesNanAtRow(ids) ? new Float32Array(this.dims).fill(Number.NaN) : vectorOf(ids, this.dims);
      slot.embeddings.set(vector, i * this.dims);
    }
  }
}

function rowsOf({ ids, lengths }: Slot, { rows, width }: RunShape): Int32Array[] {
  return Array.from({ length: rows }, (_, row) => ids.subarray(row * width, row * width + lengths[row]!));
}

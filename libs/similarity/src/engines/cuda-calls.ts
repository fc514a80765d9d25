// Calls of the CUDA library: with as much work memory as there turned out to be, at once where that is sooner than
// handing the call to another thread, and none after the device was lost. Errors are ours from here on.

import { ShoalError } from '@shoal/contract';
import type { Resident, Residents } from '@shoal/core/similarity';
import type { OpenedCuda } from './cuda-library.ts';
import type { CudaTerms } from './native-addon.ts';
import { withStop } from './native-engine.ts';
import { TurnBudget } from './turn-budget.ts';

export interface CudaCallsOptions {
  readonly cuda: OpenedCuda;
  /** As this process counts its devices. */
  readonly device: number;
  /** What stays on the device, and leaves when nothing else helps. */
  readonly residents: Residents;
  /** Most memory of the device that one call uses for its work, and for rows that pass by. */
  readonly workBytes: number;
  readonly nowMs?: (() => number) | undefined;
}

/** Where the time of the last call went that was not done at once, as the device's clock has it. */
export interface CudaTimes {
  readonly deviceUs: number;
  readonly copyUs: number;
  readonly kernelUs: number;
  readonly copiedBytes: number;
  /** Queries that were scored exactly against every row, because the choice of candidates could not be proven. */
  readonly redone: number;
}

/** What a call needs, about: bytes that the device reads, products, and bytes that it gives back. */
export interface Need {
  readonly bytes: number;
  readonly products: number;
  readonly resultBytes: number;
}
/** So much takes an H100 20 µs at most, and the caller's thread as long again to take the results. */
const AT_ONCE: Need = { bytes: 32 << 20, products: 2e9, resultBytes: 256 << 10 };
/**
 * Then the caller's thread waits for it, so long at most: handing it to another one takes longer than the call. A
 * device that others use is waited for elsewhere.
 */
const MOST_WAIT_US = 150;
const AT_ONCE_US = 50;
const AT_ONCE_US_OF_A_TURN = 2_000;
/** After waiting in vain, calls go elsewhere: one, then twice as many each time. */
const MOST_CALLS_ELSEWHERE = 64;

/** A call that is given less than this is not worth its launches. */
const LEAST_WORK_BYTES = 1 << 16;
/**
 * The smallest piece of some work is larger than what a call may use: so many times that it may have all the same, out
 * of the reserve.
 */
const MOST_GROWTH = 16;
/** So many calls that went well before one is given twice as much again. */
const CALLS_TO_REGAIN = 64;
/** How often calls are handed to another thread after waiting in vain, and from which call on that ends. */
interface Elsewhere {
  readonly calls: number;
  readonly until: number;
}

export class CudaCalls {
  readonly workBytes: number;
  /** What running out of memory has taught. */
  mostWorkBytes: number;
  readonly #cuda: OpenedCuda;
  readonly #device: number;
  readonly #residents: Residents;
  readonly #nowMs: () => number;
  readonly #times = new Float64Array(5);
  readonly #turn = new TurnBudget(AT_ONCE_US_OF_A_TURN);
  #elsewhere: Elsewhere = { calls: 0, until: 0 };
  #count = 0;
  #goodCalls = 0;
  #lost: string | undefined;

  constructor({ cuda, device, residents, workBytes, nowMs = () => performance.now() }: CudaCallsOptions) {
    this.#cuda = cuda;
    this.#device = device;
    this.#residents = residents;
    this.#nowMs = nowMs;
    this.workBytes = workBytes;
    this.mostWorkBytes = workBytes;
  }

  /** Where the time of the last call went that was not done at once. */
  get lastTimes(): CudaTimes {
    const [deviceUs, copyUs, kernelUs, copiedBytes, redone] = this.#times as unknown as [
      number,
      number,
      number,
      number,
      number,
    ];
    return { deviceUs, copyUs, kernelUs, copiedBytes, redone };
  }

  /** Counts a call of the engine, refused with DEVICE_LOST after the device failed; returns how many there were. */
  begin(): number {
    this.refuseLost();
    return ++this.#count;
  }

  /** Gives the driver back what nothing uses. */
  async trim(): Promise<void> {
    await this.#cuda.addon.cudaTrim(this.#cuda.library, this.#device);
  }

  /**
   * Tries with less and less work memory, then with nothing else on the device. `need`: undefined for what cannot be
   * done at once.
   */
  async withinMemory<Value>(
    on: Resident | undefined,
    need: Need | undefined,
    signal: AbortSignal | undefined,
    call: (...terms: CudaTerms) => Promise<Value>,
  ): Promise<Value> {
    let workBytes = this.mostWorkBytes;
    for (let hasCleared = false, hasGrown = false; ;) {
      try {
        const value = await this.call(signal, (stop) =>
          this.#soon(need, (mostWaitUs) => call(workBytes, mostWaitUs > 0 ? null : this.#times, stop, mostWaitUs)),
        );
        this.#wentWell();
        return value;
      } catch (error) {
        if (!isShoalCode(error, 'OUT_OF_VRAM')) throw error;
        const neededBytes = neededFor(error, workBytes);
        if (neededBytes !== undefined && !hasGrown && neededBytes <= MOST_GROWTH * this.workBytes) {
          hasGrown = true;
          workBytes = neededBytes;
          continue; // it was not memory that was short
        }
        if (neededBytes !== undefined || workBytes <= LEAST_WORK_BYTES) {
          if (hasCleared || !this.#residents.clear(on)) throw error; // alone already: less would not help
          [hasCleared, hasGrown] = [true, false];
          workBytes = this.workBytes;
        } else {
          workBytes = Math.max(LEAST_WORK_BYTES, Math.floor(workBytes / 2));
        }
        this.mostWorkBytes = Math.min(workBytes, this.workBytes);
        this.#goodCalls = 0;
        await this.trim();
      }
    }
  }

  #wentWell(): void {
    if (this.mostWorkBytes === this.workBytes || ++this.#goodCalls < CALLS_TO_REGAIN) return;
    this.#goodCalls = 0;
    this.mostWorkBytes = Math.min(this.workBytes, 2 * this.mostWorkBytes);
  }

  /** At once, where it needs little and the device was free the last time. */
  #soon<Value>(need: Need | undefined, call: (mostWaitUs: number) => Promise<Value>): Promise<Value> {
    const isLittle =
      need !== undefined &&
      need.bytes <= AT_ONCE.bytes &&
      need.products <= AT_ONCE.products &&
      need.resultBytes <= AT_ONCE.resultBytes;
    if (!isLittle || this.#count < this.#elsewhere.until || !this.#turn.take(AT_ONCE_US)) return call(0);
    const startedMs = this.#nowMs();
    const value = call(MOST_WAIT_US);
    const isLate = this.#nowMs() - startedMs > MOST_WAIT_US / 1e3;
    const calls = isLate ? Math.min(MOST_CALLS_ELSEWHERE, 2 * this.#elsewhere.calls + 1) : 0;
    this.#elsewhere = { calls, until: this.#count + 1 + calls };
    return value;
  }

  async call<Value>(signal: AbortSignal | undefined, call: (stop: Uint8Array) => Promise<Value>): Promise<Value> {
    this.refuseLost();
    try {
      return await withStop(signal, call);
    } catch (error) {
      throw this.#translated(error);
    }
  }

  refuseLost(): void {
    if (this.#lost !== undefined) throw new ShoalError('DEVICE_LOST', this.#lost);
  }

  #translated(error: unknown): unknown {
    if (!(error instanceof Error)) return error;
    switch ((error as { code?: unknown }).code) {
      case 'OUT_OF_MEMORY':
        return new ShoalError('OUT_OF_VRAM', `the GPU has too little memory: ${error.message}`, {}, error);
      case 'INVALID':
        return new ShoalError('SEARCH_INVALID', `the GPU cannot compute this: ${error.message}`, {}, error);
      case 'NO_DEVICE':
      case 'LOST':
        this.#lost = `the GPU failed: ${error.message}`;
        return new ShoalError('DEVICE_LOST', this.#lost, {}, error);
      default:
        return error;
    }
  }
}

/**
 * What the library says that its smallest piece takes, as what the call as a whole has to be allowed; undefined where
 * memory itself was short.
 */
function neededFor(error: unknown, workBytes: number): number | undefined {
  const [, takes, allowed] =
    /smallest piece of this work takes (\d+) bytes, and (\d+) are allowed/.exec(
      error instanceof Error ? error.message : '',
    ) ?? [];
  return takes === undefined ? undefined : Math.ceil((1.01 * workBytes * Number(takes)) / Number(allowed));
}

export function isShoalCode(error: unknown, code: ShoalError['code']): boolean {
  return error instanceof ShoalError && error.code === code;
}

// A CPU engine and a GPU engine as one: each call goes to the one that will be done sooner, by the thresholds measured
// on this machine (core's Thresholds). Rows that stay come to the device when they are asked for a second time, or at
// once where one search pays for the way. A device that fails costs no answer: the same call goes on on the CPU, and
// so does everything after it. Running out of memory is not a failure: it is for the caller to take smaller tiles.

import { ShoalError } from '@shoal/contract';
import type { Thresholds } from '@shoal/core/similarity';
import type { CudaEngine } from './cuda-engine.ts';
import type { Graph } from '../graphs/graph.ts';
import type { Engine } from './engine.ts';
import type { RowBlock } from './vectors.ts';

export interface HybridEngineOptions {
  readonly cpu: Engine;
  readonly gpu: CudaEngine;
  readonly thresholds: Thresholds;
  /** auto: whichever is sooner. never: the GPU alone, except after it failed. */
  readonly chooses?: 'auto' | 'never';
  /** The GPU could not do a call, which the CPU does now. DEVICE_LOST: nor will it do another one. */
  readonly onFellBack?: (error: ShoalError) => void;
}

/** The size of one computation, which decides where it runs. */
interface Size {
  /** "topk/f32" */
  readonly kind: string;
  readonly queries: number;
  /** Values that each query is compared with. */
  readonly work: number;
}

/** What was computed where since it was last asked. */
export interface Usage {
  readonly cpu: number;
  readonly gpu: number;
  /** Set when the GPU could not do a call of these. */
  readonly fellBack: ShoalError['code'] | undefined;
}

/** k above which the selection takes a time of its own. */
const LARGE_K = 256;

export class HybridEngine implements Engine {
  readonly isa = 'hybrid';
  readonly threads: number;
  readonly cpu: Engine;
  readonly gpu: CudaEngine;
  readonly thresholds: Thresholds;
  readonly #chooses: boolean;
  readonly #onFellBack: (error: ShoalError) => void;
  /** What stays and was asked for once since it was last on the device. */
  readonly #askedOnce = new WeakSet<RowBlock | Graph>();
  #usage: { cpu: number; gpu: number; fellBack: ShoalError['code'] | undefined } = {
    cpu: 0,
    gpu: 0,
    fellBack: undefined,
  };
  readonly #calls = { cpu: 0, gpu: 0 };
  #isLost = false;

  constructor({ cpu, gpu, thresholds, chooses = 'auto', onFellBack = () => undefined }: HybridEngineOptions) {
    this.cpu = cpu;
    this.gpu = gpu;
    this.thresholds = thresholds;
    this.threads = cpu.threads;
    this.#chooses = chooses === 'auto';
    this.#onFellBack = onFellBack;
  }

  /** Since it was made. */
  get calls(): { readonly cpu: number; readonly gpu: number } {
    return { ...this.#calls };
  }

  get isLost(): boolean {
    return this.#isLost;
  }

  takeUsage(): Usage {
    const usage = this.#usage;
    this.#usage = { cpu: 0, gpu: 0, fellBack: undefined };
    return usage;
  }

  topK(...[queries, rows, metric, k, signal]: Parameters<Engine['topK']>): ReturnType<Engine['topK']> {
    const kind = k > LARGE_K ? 'topk-many' : 'topk';
    return this.#run(
      rows,
      { kind: `${kind}/${rows.dtype}`, queries: queries.rows, work: rows.rows * rows.dims },
      (engine) => engine.topK(queries, rows, metric, k, signal),
    );
  }

  matrix(...[queries, rows, metric, signal]: Parameters<Engine['matrix']>): ReturnType<Engine['matrix']> {
    return this.#run(
      rows,
      { kind: `cosine/${rows.dtype}`, queries: queries.rows, work: rows.rows * rows.dims },
      (engine) => engine.matrix(queries, rows, metric, signal),
    );
  }

  rescore(
    ...[queries, rows, metric, begin, candidates, signal]: Parameters<Engine['rescore']>
  ): ReturnType<Engine['rescore']> {
    const work = Math.max(1, candidates.length / queries.rows) * rows.dims;
    return this.#run(rows, { kind: `rescore/${rows.dtype}`, queries: queries.rows, work }, (engine) =>
      engine.rescore(queries, rows, metric, begin, candidates, signal),
    );
  }

  spread(...[graph, lanes, activation, options]: Parameters<Engine['spread']>): ReturnType<Engine['spread']> {
    return this.#run(
      graph,
      { kind: 'spread', queries: lanes, work: Math.max(1, options.steps) * (graph.nodes + graph.source.length) },
      (engine) => engine.spread(graph, lanes, activation, options),
    );
  }

  async #run<Value>(what: RowBlock | Graph, size: Size, call: (engine: Engine) => Promise<Value>): Promise<Value> {
    if (!this.#takesGpu(what, size)) return this.#onCpu(call);
    try {
      const value = await call(this.gpu);
      this.#usage.gpu++;
      this.#calls.gpu++;
      return value;
    } catch (error) {
      if (!isFailure(error)) throw error;
      this.#isLost ||= error.code === 'DEVICE_LOST';
      this.#usage.fellBack = error.code;
      this.#onFellBack(error);
      return this.#onCpu(call);
    }
  }

  async #onCpu<Value>(call: (engine: Engine) => Promise<Value>): Promise<Value> {
    const value = await call(this.cpu);
    this.#usage.cpu++;
    this.#calls.cpu++;
    return value;
  }

  #takesGpu(what: RowBlock | Graph, { kind, queries, work }: Size): boolean {
    if (this.#isLost) return false;
    if (!this.#chooses) return true;
    if (this.thresholds.sideOf(kind, queries, work) === 'cpu') return false;
    if (this.gpu.isHeld(what)) return true;
    // A search reads all rows; a second scoring reads few, and a graph comes to stay.
    const isSearch = 'data' in what && !kind.startsWith('rescore');
    if (isSearch && this.thresholds.paysForTheWay(what.dtype, queries)) return true;
    if (!this.gpu.isKept(what)) return false;
    const isDue = this.#askedOnce.delete(what); // what leaves the device has to be asked for twice again
    if (!isDue) this.#askedOnce.add(what);
    return isDue;
  }
}

/** The device is gone, or does not take this shape. */
function isFailure(error: unknown): error is ShoalError {
  return error instanceof ShoalError && (error.code === 'DEVICE_LOST' || error.code === 'SEARCH_INVALID');
}

// Runs a reranker's graph on ONNX Runtime's CPU provider. Tests only: libs/inference is the product's importer.

import { rm } from 'node:fs/promises';
// oxlint-disable-next-line no-restricted-imports -- a test of the graph needs the engine that runs it
import { InferenceSession, Tensor } from 'onnxruntime-node';
import type { TokenPair } from '@shoal/contract';
import type { GraphKind } from '../graph/graph-kind.ts';
import type { NamedTensors } from '../graph/named-tensors.ts';
import { rerankerGraph, type Reranker } from '../graph/reranker-graph.ts';

export class ScoreRunner {
  readonly #session: InferenceSession;

  private constructor(session: InferenceSession) {
    this.#session = session;
  }

  /** Writes the graph to `path` and removes it once it is open. */
  static async open(reranker: Reranker, tensors: NamedTensors, path: string, kind: GraphKind): Promise<ScoreRunner> {
    await rerankerGraph(reranker, tensors, kind).write(path);
    const session = await InferenceSession.create(path, {
      executionProviders: ['cpu'],
      enableMemPattern: false,
      interOpNumThreads: 1,
      intraOpNumThreads: 1,
    });
    await rm(path, { force: true });
    return new ScoreRunner(session);
  }

  /** One score a pair. Rows are padded to the longest, rounded up to 8, with `padding`: nothing may depend on it. */
  async run(pairs: readonly TokenPair[], padding = 0): Promise<readonly number[]> {
    const width = Math.ceil(Math.max(...pairs.map(({ ids }) => ids.length)) / 8) * 8;
    const ids = new Int32Array(pairs.length * width).fill(padding);
    for (const [at, pair] of pairs.entries()) ids.set(pair.ids, at * width);
    const column = (valueOf: (pair: TokenPair) => number): Tensor =>
      new Tensor('int32', Int32Array.from(pairs, valueOf), [pairs.length]);
    const { embeddings } = await this.#session.run({
      input_ids: new Tensor('int32', ids, [pairs.length, width]),
      lengths: column((pair) => pair.ids.length),
      second_from: column(({ second }) => second),
    });
    if (embeddings?.dims.join() !== `${pairs.length},1`) throw new Error(`its output is [${embeddings?.dims.join()}]`);
    return [...(embeddings.data as Float32Array)];
  }

  release(): Promise<void> {
    return this.#session.release();
  }
}

// Runs a graph file on ONNX Runtime's CPU provider, as workers do. Tests only: libs/inference is the product's
// importer.

// oxlint-disable-next-line no-restricted-imports -- a test of the graph needs the engine that runs it
import { InferenceSession, Tensor } from 'onnxruntime-node';
import type { StoredModel } from '../store/stored-model.ts';
import { readFile } from 'node:fs/promises';
import { Golden, hashOf, processor, versionOf } from './golden.ts';

/**
 * A graph that remembers its answers between runs of the suite: they depend on its bytes, on ONNX Runtime and on the
 * processor alone. It opens a session for the first question that is new.
 */
export class RememberingRunner {
  readonly #golden: Golden<Float32Array[]>;
  readonly #open: () => Promise<GraphRunner>;
  #runner: Promise<GraphRunner> | undefined;

  private constructor(golden: Golden<Float32Array[]>, open: () => Promise<GraphRunner>) {
    this.#golden = golden;
    this.#open = open;
  }

  static async open(graph: string, model: Pick<StoredModel, 'dims'>): Promise<RememberingRunner> {
    const golden = new Golden<Float32Array[]>(
      'vectors',
      await readFile(graph),
      versionOf('onnxruntime-node'),
      processor,
      String(model.dims),
    );
    return new RememberingRunner(golden, () => GraphRunner.open(graph, model));
  }

  /** As GraphRunner's. */
  run(rows: readonly (readonly number[])[]): Promise<Float32Array[]> {
    return this.#golden.get(hashOf(JSON.stringify(rows)), async () =>
      (await (this.#runner ??= this.#open())).run(rows),
    );
  }

  async release(): Promise<void> {
    this.#golden.save();
    await (await this.#runner)?.release();
  }
}

export class GraphRunner {
  readonly #session: InferenceSession;
  readonly #dims: number;

  private constructor(session: InferenceSession, dims: number) {
    this.#session = session;
    this.#dims = dims;
  }

  static async open(graph: string, model: Pick<StoredModel, 'dims'>): Promise<GraphRunner> {
    const extra = { session: { intra_op: { allow_spinning: '0' } } };
    const session = await InferenceSession.create(graph, {
      executionProviders: ['cpu'],
      enableMemPattern: false,
      interOpNumThreads: 1,
      intraOpNumThreads: 2,
      extra,
    });
    return new GraphRunner(session, model.dims);
  }

  /** One vector per row; rows are padded to the longest, rounded up to 8. */
  async run(rows: readonly (readonly number[])[]): Promise<Float32Array[]> {
    const width = Math.ceil(Math.max(...rows.map((row) => row.length)) / 8) * 8;
    const ids = new Int32Array(rows.length * width);
    for (const [at, row] of rows.entries()) ids.set(row, at * width);
    const lengths = Int32Array.from(rows, (row) => row.length);
    const { embeddings } = await this.#session.run({
      input_ids: new Tensor('int32', ids, [rows.length, width]),
      lengths: new Tensor('int32', lengths, [rows.length]),
    });
    const values = embeddings?.data as Float32Array;
    return rows.map((_, at) => values.slice(at * this.#dims, (at + 1) * this.#dims));
  }

  release(): Promise<void> {
    return this.#session.release();
  }
}

export function cosine(a: Float32Array, b: Float32Array): number {
  let [dot, aa, bb] = [0, 0, 0];
  for (let at = 0; at < a.length; at++) {
    dot += a[at]! * b[at]!;
    aa += a[at]! ** 2;
    bb += b[at]! ** 2;
  }
  return dot / Math.sqrt(aa * bb);
}

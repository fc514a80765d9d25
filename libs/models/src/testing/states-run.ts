// Runs an encoder's graph up to its last hidden states on ONNX Runtime. Tests only: libs/inference is the
// product's importer.

import { rm } from 'node:fs/promises';
// oxlint-disable-next-line no-restricted-imports -- a test of the graph needs the engine that runs it
import { InferenceSession, Tensor } from 'onnxruntime-node';
import type { EncoderDescription } from '../encoder/encoder-description.ts';
import { statesGraph } from '../graph/encoder-graph.ts';
import type { GraphKind } from '../graph/graph-kind.ts';
import type { NamedTensors } from '../graph/named-tensors.ts';
import { TYPE } from '../graph/onnx-file.ts';

export class StatesRunner {
  readonly #session: InferenceSession;
  readonly #output: string;
  readonly #hidden: number;

  private constructor(session: InferenceSession, output: string, hidden: number) {
    this.#session = session;
    this.#output = output;
    this.#hidden = hidden;
  }

  /** Writes the graph to `path` and removes it once it is open. */
  static async open(
    encoder: EncoderDescription,
    tensors: NamedTensors,
    path: string,
    kind: GraphKind,
    provider = 'cpu',
  ): Promise<StatesRunner> {
    const { graph, hidden, type, batch } = statesGraph(encoder, tensors, { kind });
    const output =
      type === TYPE.FLOAT ? hidden : graph.node('Cast', [hidden], 'states_f32', { integers: { to: TYPE.FLOAT } });
    graph.output(output, TYPE.FLOAT, [batch, undefined, encoder.hidden]);
    await graph.write(path);
    const session = await InferenceSession.create(path, {
      executionProviders: [provider],
      enableMemPattern: false,
      interOpNumThreads: 1,
      intraOpNumThreads: 1,
    });
    await rm(path, { force: true });
    return new StatesRunner(session, output, encoder.hidden);
  }

  /**
   * States of each row's tokens. Rows are padded to the longest, rounded up to 8, with `padding`: nothing may depend on
   * it.
   */
  async run(rows: readonly (readonly number[])[], padding = 0): Promise<readonly (readonly (readonly number[])[])[]> {
    const width = Math.ceil(Math.max(...rows.map((row) => row.length)) / 8) * 8;
    const ids = new Int32Array(rows.length * width).fill(padding);
    for (const [at, row] of rows.entries()) ids.set(row, at * width);
    const outputs = await this.#session.run({
      input_ids: new Tensor('int32', ids, [rows.length, width]),
      lengths: new Tensor(
        'int32',
        Int32Array.from(rows, (row) => row.length),
        [rows.length],
      ),
    });
    const values = outputs[this.#output]!.data as Float32Array;
    return rows.map((row, at) =>
      row.map((_, token) => {
        const start = (at * width + token) * this.#hidden;
        return [...values.subarray(start, start + this.#hidden)];
      }),
    );
  }

  release(): Promise<void> {
    return this.#session.release();
  }
}

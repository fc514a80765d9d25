// What the layers of any encoder are made from in whole numbers of 8 bits: linear layers by codes with one scale a token and
// one a column, the word table by codes with one scale a row. What goes into a linear layer is smoothed by calibration
// maxima, which moves what is hard to quantize into the weights (quantize.ts). Attention, norms and what lies outside the
// layers stay fp32. BERT itself has a graph of its own (int8-encoder.ts), whose bytes must not change.

import type { Calibration } from './calibration.ts';
import type { EncoderTensors } from './encoder-tensors.ts';
import { GraphParts, type Linear, type LinearUse } from './graph-parts.ts';
import { addGeluRows, addProduct, addSignedRows, addWordRows, type CodedRows, type CodeForm } from './int8-linear.ts';
import { TYPE, type MakeFloats, type OnnxFile } from './onnx-file.ts';
import { divisorsOf, largestOfRows, scaleRows } from './quantize.ts';

export interface Int8Options {
  /** Without it nothing is smoothed, and vectors are further from those of fp32. */
  readonly calibration: Calibration | undefined;
  readonly codes: CodeForm;
}

export class Int8Parts extends GraphParts {
  readonly #calibration: Calibration | undefined;
  readonly #codes: CodeForm;
  /** Of each use, computed when the first of its values is written. */
  readonly #divisors = new Map<string, Promise<Float32Array>>();

  constructor(graph: OnnxFile, weights: EncoderTensors, { calibration, codes }: Int8Options) {
    super(graph, weights, 'fp32');
    this.#calibration = calibration;
    this.#codes = codes;
  }

  override linears(input: string, inputs: number, linears: readonly Linear[], use?: LinearUse): readonly string[] {
    if (use === undefined) return super.linears(input, inputs, linears);
    const divisors = use.isActive === true ? undefined : this.#divisorsOf(inputs, linears, use);
    const rows = this.#rowsOf(input, inputs, `${linears[0]!.output}.in`, use, divisors);
    return linears.map(({ name, outputs, matrix, bias, output }) => {
      const smoothed: MakeFloats =
        divisors === undefined ? matrix : async () => scaleRows(await matrix(), await divisors());
      const added = bias();
      const product = added === undefined ? output : `${output}.unbiased`;
      addProduct(this, this.#codes, rows, inputs, outputs, smoothed, product, name);
      return added === undefined ? output : this.graph.node('Add', [product, added], output);
    });
  }

  override wordRows(shape: readonly [rows: number, columns: number], table: MakeFloats): string {
    return addWordRows(this, shape, table);
  }

  /** One divisor for each value that goes in, the same for all matrices; undefined without calibration. */
  #divisorsOf(inputs: number, linears: readonly Linear[], { layer, linear }: LinearUse): MakeFloats | undefined {
    const calibration = this.#calibration;
    if (calibration === undefined) return undefined;
    const compute = async (): Promise<Float32Array> => {
      const largest = new Float32Array(inputs);
      for (const { matrix } of linears)
        for (const [at, value] of largestOfRows(await matrix(), inputs).entries())
          largest[at] = Math.max(largest[at]!, value);
      return divisorsOf(calibration.maxima(layer, linear, inputs), largest);
    };
    const key = `${layer}.${linear}`;
    return () => {
      const divisors = this.#divisors.get(key) ?? compute();
      this.#divisors.set(key, divisors);
      return divisors;
    };
  }

  #rowsOf(
    input: string,
    inputs: number,
    name: string,
    { layer, linear, isActive = false }: LinearUse,
    divisors: MakeFloats | undefined,
  ): CodedRows {
    if (isActive) return addGeluRows(this, input, inputs, name);
    if (divisors === undefined) return addSignedRows(this, input, inputs, name);
    const factors = this.graph.once(`smoothing.${layer}.${linear}`, (it) =>
      this.graph.initializer(it, TYPE.FLOAT, [inputs], async () => (await divisors()).map((divisor) => 1 / divisor)),
    );
    return addSignedRows(this, this.graph.node('Mul', [input, factors], `${name}.smooth`), inputs, name);
  }
}

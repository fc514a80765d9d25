// A linear layer in whole numbers: rows of activations become codes with one scale each while the graph runs, matrices
// were codes with one scale per column before; the product of codes is exact, and what a row gives depends on that row
// alone. ONNX Runtime's own DynamicQuantizeMatMul has one scale for all rows and is not used.

import { MICROSOFT, type GraphParts } from './graph-parts.ts';
import { TYPE, type MakeFloats, type MakeValues } from './onnx-file.ts';
import { quantizeColumns, quantizeRows, type Quantized } from './quantize.ts';

/** Activations as codes. */
export interface CodedRows {
  /** uint8 [tokens, channels] */
  readonly codes: string;
  /** f32 [tokens, 1]: what the codes of a row, less zero, are multiplied with. */
  readonly scales: string;
  /** The code that stands for 0. */
  readonly zero: string;
}

/** gelu(x) is never below this. */
const GELU_LEAST = -0.17;
/** Codes below zero that GELU's outputs need; the other 239 are for what is above. */
const GELU_ZERO = 16;
const SIGNED_ZERO = 128;

/** `input`: f32 [batch, seq, channels]. The largest magnitude of a row becomes the largest code. */
export function addSignedRows(parts: GraphParts, input: string, channels: number, name: string): CodedRows {
  const { graph } = parts;
  const rows = flatten(parts, input, channels, name);
  const lowest = graph.node('Neg', [reduce(parts, 'ReduceMin', rows, `${name}.lowest`)], `${name}.depth`);
  const most = graph.node(
    'Max',
    [reduce(parts, 'ReduceMax', rows, `${name}.highest`), lowest, graph.float(1e-9)],
    `${name}.most`,
  );
  const scales = graph.node('Mul', [most, graph.float(1 / 127)], `${name}.scale`);
  return addCodes(parts, rows, scales, SIGNED_ZERO, name);
}

/**
 * As `addSignedRows`, for what comes out of a GELU: hardly anything lies below 0, so nearly all codes go to what is
 * above.
 */
export function addGeluRows(parts: GraphParts, input: string, channels: number, name: string): CodedRows {
  const { graph } = parts;
  const rows = flatten(parts, input, channels, name);
  const above = graph.node(
    'Mul',
    [reduce(parts, 'ReduceMax', rows, `${name}.highest`), graph.float(1 / (255 - GELU_ZERO))],
    `${name}.above`,
  );
  const scales = graph.node('Max', [above, graph.float(-GELU_LEAST / GELU_ZERO)], `${name}.scale`);
  return addCodes(parts, rows, scales, GELU_ZERO, name);
}

/**
 * How the codes of matrices are stored: from -127 to 127, or 128 more, which are the same numbers once their zero is
 * taken off.
 */
export type CodeForm = 'signed' | 'unsigned';

/**
 * Rows times a matrix [inputs, outputs]: f32 [batch, seq, outputs], under this name. `matrixName`: products with the same
 * one have the same matrix.
 */
export function addProduct(
  parts: GraphParts,
  form: CodeForm,
  rows: CodedRows,
  inputs: number,
  outputs: number,
  matrix: MakeFloats,
  name: string,
  matrixName = name,
): string {
  const { graph } = parts;
  const [codes, scales] = codesAndScales(async () => quantizeColumns(await matrix(), outputs));
  const coded = graph.once(`${matrixName}.codes`, (it) =>
    form === 'signed'
      ? graph.initializer(it, TYPE.INT8, [inputs, outputs], codes)
      : graph.initializer(it, TYPE.UINT8, [inputs, outputs], async () => unsigned(await codes())),
  );
  const columnScales = (it: string): string => graph.initializer(it, TYPE.FLOAT, [outputs], scales);
  const factors = [graph.float(1), graph.once(`${matrixName}.scales`, columnScales)];
  const zeros = form === 'signed' ? [rows.zero] : [rows.zero, zeroCode(parts, SIGNED_ZERO)];
  const product = graph.node(
    'MatMulIntegerToFloat',
    [rows.codes, coded, ...factors, ...zeros],
    `${name}.product`,
    MICROSOFT,
  );
  const scaled = graph.node('Mul', [product, rows.scales], `${name}.rows`);
  const batchAndSeq = graph.once('batch_and_seq', (shape) => graph.node('Shape', ['input_ids'], shape));
  const shape = graph.once(`shape_${outputs}`, (whole) =>
    graph.node('Concat', [batchAndSeq, graph.integers(outputs)], whole, { integers: { axis: 0 } }),
  );
  return graph.node('Reshape', [scaled, shape], name);
}

/** Rows of a word table [rows, columns] that is kept in whole numbers, with one scale a row: f32 [batch, seq, columns]. */
export function addWordRows(
  { graph }: GraphParts,
  [rows, columns]: readonly [rows: number, columns: number],
  table: MakeFloats,
): string {
  const [codes, scales] = codesAndScales(async () => quantizeRows(await table(), columns));
  const found = graph.node(
    'Gather',
    [graph.initializer('words.codes', TYPE.INT8, [rows, columns], codes), 'input_ids'],
    'word_codes',
  );
  const scale = graph.node(
    'Gather',
    [graph.initializer('words.scales', TYPE.FLOAT, [rows, 1], scales), 'input_ids'],
    'word_scales',
  );
  return graph.node(
    'Mul',
    [graph.node('Cast', [found], 'word_floats', { integers: { to: TYPE.FLOAT } }), scale],
    'word_rows',
  );
}

/** Both initializers out of one computation, which is forgotten once they are written. */
function codesAndScales(quantize: () => Promise<Quantized>): [codes: () => Promise<Int8Array>, scales: MakeValues] {
  let made: Promise<Quantized> | undefined;
  const codes = async (): Promise<Int8Array> => (await (made = quantize())).codes;
  const scales = async (): Promise<Float32Array> => {
    const { scales: values } = await (made ?? quantize());
    made = undefined;
    return values;
  };
  return [codes, scales];
}

function unsigned(codes: Int8Array): Uint8Array {
  return Uint8Array.from(codes, (code) => code + SIGNED_ZERO);
}

function zeroCode({ graph }: GraphParts, code: number): string {
  return graph.once(`zero_${code}`, (it) => graph.initializer(it, TYPE.UINT8, [], async () => Uint8Array.of(code)));
}

function addCodes(parts: GraphParts, rows: string, scales: string, code: number, name: string): CodedRows {
  const { graph } = parts;
  const scaleByRow = graph.node('Squeeze', [scales, graph.integers(1)], `${name}.scale_by_row`);
  const tokens = graph.node('Shape', [scaleByRow], `${name}.tokens`);
  const zeroByRow = graph.node(
    'Expand',
    [
      graph.once(`zeros_${code}`, (it) => graph.initializer(it, TYPE.UINT8, [1], async () => Uint8Array.of(code))),
      tokens,
    ],
    `${name}.zero_by_row`,
  );
  return {
    codes: graph.node('QuantizeLinear', [rows, scaleByRow, zeroByRow], `${name}.codes`, { integers: { axis: 0 } }),
    scales,
    zero: zeroCode(parts, code),
  };
}

function flatten(parts: GraphParts, input: string, channels: number, name: string): string {
  return parts.graph.node('Reshape', [input, parts.graph.integers(-1, channels)], `${name}.flat`);
}

function reduce(parts: GraphParts, operator: 'ReduceMax' | 'ReduceMin', rows: string, name: string): string {
  return parts.graph.node(operator, [rows], name, { integers: { axes: [1], keepdims: 1 } });
}

// The states of a static model: each token's row of its table, times its weight where there is one. The table is kept as
// it lies in the file (fp32, fp16, whole numbers of 8 bits; fp64 as fp32) and added up in fp32. Behind its last row lies
// one of zeros, which texts without a token have.

import { ShoalError, fromHalves } from '@shoal/contract';
import type { EncoderDescription, TableDescription } from '../encoder/encoder-description.ts';
import { MAPPING, WEIGHTS } from '../encoder/static-family.ts';
import type { GraphParts } from './graph-parts.ts';
import type { NamedTensors, StoredTensor } from './named-tensors.ts';
import { TYPE, type ElementType, type MakeFloats } from './onnx-file.ts';
import { asFloats } from './pooling.ts';

/** Where tensors are found, and the file for messages. */
type Tensors = Pick<NamedTensors, 'path' | 'stored'>;

/** Returns f32 [batch, seq, hidden]. MODEL_CORRUPT, by file, tensor and value, for what is no such table. */
export function addTableRows(encoder: EncoderDescription, table: TableDescription, parts: GraphParts): string {
  const { graph, weights } = parts;
  const { hidden, vocabularySize } = encoder;
  const { type, make } = tableValues(encoder, table, weights);
  const values = graph.initializer('table', type, [table.rows + 1, hidden], make);
  const at = table.hasMapping ? addPlaces(encoder, table, parts) : 'input_ids';
  const found = graph.node('Gather', [values, at], 'rows_as_stored');
  const rows = asFloats(graph, found, type, 'rows');
  if (!table.hasWeights) return rows;
  const factors = graph.initializer('factors', TYPE.FLOAT, [vocabularySize], factorsOfTokens(encoder, weights));
  const ofTokens = graph.node('Gather', [factors, 'input_ids'], 'factors_of_tokens');
  const column = graph.node('Unsqueeze', [ofTokens, graph.integers(2)], 'factor_column');
  return graph.node('Mul', [rows, column], 'weighted_rows');
}

function addPlaces(encoder: EncoderDescription, table: TableDescription, { graph, weights }: GraphParts): string {
  const make = placesOfTokens(encoder, table, weights);
  const places = graph.initializer('places_of_tokens', TYPE.INT32, [encoder.vocabularySize], make);
  return graph.node('Gather', [places, 'input_ids'], 'row_places');
}

/** Reads all values: MODEL_CORRUPT where one is none that a row can have, or a token's row is none of the table. */
export async function checkTable(encoder: EncoderDescription, table: TableDescription, file: Tensors): Promise<void> {
  await tableValues(encoder, table, file).make();
  if (table.hasMapping) await placesOfTokens(encoder, table, file)();
  if (table.hasWeights) await factorsOfTokens(encoder, file)();
}

type TableValues = Float32Array | Uint16Array | Int8Array;

/** The table with a row of zeros behind it. */
function tableValues(
  { hidden }: EncoderDescription,
  { name, rows }: TableDescription,
  file: Tensors,
): { readonly type: ElementType; readonly make: () => Promise<TableValues> } {
  const tensor = expectShape(file, name, [rows, hidden]);
  const size = (rows + 1) * hidden;
  switch (tensor.dtype) {
    case 'I8':
      return { type: TYPE.INT8, make: async () => ended(new Int8Array(size), new Int8Array(await tensor.read())) };
    case 'F16':
      return {
        type: TYPE.FLOAT16,
        make: async () => {
          const halves = new Uint16Array(await tensor.read());
          expectNumbers(file, name, fromHalves(halves));
          return ended(new Uint16Array(size), halves);
        },
      };
    case 'F32':
    case 'F64':
      return {
        type: TYPE.FLOAT,
        make: async () => ended(new Float32Array(size), await floatsOf(file, name, tensor)),
      };
    default:
      throw refuseType(file, name, tensor, 'F32, F16, F64 and I8');
  }
}

/** `values` at the beginning of `all`, which has zeros behind them. */
function ended<Values extends TableValues>(all: Values, values: ArrayLike<number>): Values {
  all.set(values);
  return all;
}

/** The row of each token, the last one that of zeros. */
function placesOfTokens(
  { vocabularySize }: EncoderDescription,
  { rows }: TableDescription,
  file: Tensors,
): () => Promise<Int32Array> {
  const tensor = expectShape(file, MAPPING, [vocabularySize - 1]);
  if (tensor.dtype !== 'I64' && tensor.dtype !== 'I32') throw refuseType(file, MAPPING, tensor, 'I64 and I32');
  return async () => {
    const bytes = await tensor.read();
    const found = tensor.dtype === 'I32' ? new Int32Array(bytes) : Array.from(new BigInt64Array(bytes), Number);
    const odd = found.findIndex((row) => row < 0 || row >= rows);
    if (odd !== -1)
      throw corrupt(file, MAPPING, `has the row ${found[odd]} for the token ${odd}, and the table ends at ${rows - 1}`);
    const places = new Int32Array(vocabularySize);
    places.set(found);
    places[vocabularySize - 1] = rows;
    return places;
  };
}

/** The factor of each token, and 0 for a text without any. */
function factorsOfTokens({ vocabularySize }: EncoderDescription, file: Tensors): MakeFloats {
  const tensor = expectShape(file, WEIGHTS, [vocabularySize - 1]);
  return async () => {
    const factors = new Float32Array(vocabularySize);
    factors.set(await floatsOf(file, WEIGHTS, tensor));
    return factors;
  };
}

async function floatsOf(file: Tensors, name: string, tensor: StoredTensor): Promise<Float32Array> {
  const read = async (): Promise<Float32Array> => {
    switch (tensor.dtype) {
      case 'F32':
        return new Float32Array(await tensor.read());
      case 'F64':
        return Float32Array.from(new Float64Array(await tensor.read()));
      case 'F16':
        return fromHalves(new Uint16Array(await tensor.read()));
      default:
        throw refuseType(file, name, tensor, 'F32, F16 and F64');
    }
  };
  const values = await read();
  expectNumbers(file, name, values);
  return values;
}

/** One row that is no number would be in the mean of every text beside it. */
function expectNumbers(file: Tensors, name: string, values: Float32Array): void {
  const odd = values.findIndex((value) => !Number.isFinite(value));
  if (odd !== -1) throw corrupt(file, name, `has ${values[odd]} as its value ${odd}, which is no number of fp32`);
}

function expectShape(file: Tensors, name: string, expected: readonly number[]): StoredTensor {
  const tensor = file.stored(name);
  if (tensor.shape.join() === expected.join()) return tensor;
  throw corrupt(file, name, `should have the shape [${expected.join(', ')}] and has [${tensor.shape.join(', ')}]`);
}

function refuseType(file: Tensors, name: string, { dtype }: StoredTensor, known: string): ShoalError {
  return corrupt(file, name, `holds ${dtype}; ${known} can be read`);
}

function corrupt({ path }: Tensors, name: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${path}: tensor ${name} ${problem}`, { path, tensor: name });
}

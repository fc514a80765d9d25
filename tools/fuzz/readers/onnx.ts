// ONNX files as `shoal model import` looks at them: what the graph says of itself, and that nothing but names changed in
// the graph that is put into ours. The second reader is a plain walk over protobuf.

import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { adaptOnnx } from '../../../libs/models/src/graph/adapt-onnx.ts';
import { OnnxFile, TYPE } from '../../../libs/models/src/graph/onnx-file.ts';
import { plainHead } from '../../../libs/models/src/graph/sentence-head.ts';
import type { FuzzedReader, Values } from '../fuzzed-reader.ts';

async function exported(types: boolean, output: 'last_hidden_state' | 'sentence_embedding'): Promise<Buffer> {
  const graph = new OnnxFile('encoder', { '': 17 });
  const inputs = ['input_ids', 'attention_mask', ...(types ? ['token_type_ids'] : [])];
  for (const name of inputs) graph.input(name, TYPE.INT64, ['batch', 'seq']);
  graph.initializer('table', TYPE.FLOAT, [6, 4], async () => Float32Array.from({ length: 24 }, (_, at) => at / 7));
  const hidden = graph.node('Gather', ['table', 'input_ids'], output === 'last_hidden_state' ? output : 'hidden');
  if (output === 'last_hidden_state') graph.output(hidden, TYPE.FLOAT, ['batch', 'seq', 4]);
  else {
    graph.node('ReduceMax', [hidden], output, { integers: { axes: [1], keepdims: 0 } });
    graph.output(output, TYPE.FLOAT, ['batch', 4]);
  }
  const folder = await mkdtemp(join(tmpdir(), 'shoal-fuzz-'));
  try {
    await graph.write(join(folder, 'model.onnx'));
    return await readFile(join(folder, 'model.onnx'));
  } finally {
    await rm(folder, { recursive: true });
  }
}

export const onnxReader: FuzzedReader = {
  name: 'onnx',
  kind: 'binary',
  extension: '.onnx',
  codes: ['MODEL_CORRUPT'],
  variants: 1,
  seeds: () => Promise.all([exported(true, 'last_hidden_state'), exported(false, 'sentence_embedding')]),
  read: async (bytes) => {
    const { bytes: adapted, width, precision, isWrapped } = await adaptOnnx(bytes, 'model.onnx', plainHead('mean'));
    return [width, precision, String(isWrapped), ...(isWrapped ? weightsIn(adapted) : [])];
  },
  readAgain: (bytes) => readOnnx(bytes),
};

function weightsIn(file: Uint8Array): string[] {
  const graph = fieldsOf(Buffer.from(file))?.find(({ number }) => number === 7);
  return (fieldsOf(graph!.bytes) ?? [])
    .filter(({ number }) => number === 5)
    .map(({ bytes }) => fieldsOf(bytes)!)
    .filter((fields) => fields.some((field) => field.number === 8 && field.bytes.toString().startsWith('imported.')))
    .map((fields) => fields.map(({ number, value, bytes }) => describeField(number, value, bytes)).join('; '));
}

const describeField = (number: number, value: bigint, bytes: Buffer): string =>
  `${number} ${value} ${number === 8 ? bytes.toString().replace(/^imported\./, '') : bytes.toString('hex')}`;

interface Field {
  readonly number: number;
  readonly value: bigint;
  readonly bytes: Buffer;
}

/** Undefined where a message is cut or is none. */
function fieldsOf(message: Buffer): Field[] | undefined {
  const fields: Field[] = [];
  let at = 0;
  const varint = (): bigint | undefined => {
    for (let value = 0n, shift = 0n; shift < 70n; shift += 7n) {
      const byte = message[at++];
      if (byte === undefined) return undefined;
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
    return undefined;
  };
  while (at < message.length) {
    const tag = varint();
    if (tag === undefined || tag >> 3n === 0n) return undefined;
    const wire = Number(tag & 7n);
    const value = wire === 0 ? varint() : 0n;
    const length = wire === 2 ? varint() : [0n, 8n, undefined, undefined, undefined, 4n][wire];
    if (value === undefined || length === undefined || BigInt(at) + length > BigInt(message.length)) return undefined;
    fields.push({ number: Number(tag >> 3n), value, bytes: message.subarray(at, at + Number(length)) });
    at += Number(length);
  }
  return fields;
}

function readOnnx(file: Buffer): Values | undefined {
  const graphs = fieldsOf(file)?.filter(({ number }) => number === 7) ?? [];
  const fields = graphs.length === 1 ? fieldsOf(graphs[0]!.bytes) : undefined;
  if (fields === undefined) return undefined;
  const inside = (message: Buffer, number: number): Field[] =>
    (fieldsOf(message) ?? []).filter((field) => field.number === number);
  const last = (message: Buffer, number: number): Field | undefined => inside(message, number).at(-1);
  const outputs = fields.filter(({ number }) => number === 12).map(({ bytes }) => bytes);
  const tensors = fields.filter(({ number }) => number === 5).map(({ bytes }) => bytes);
  const named = (name: string) => outputs.find((bytes) => last(bytes, 1)?.bytes.toString() === name);
  const output = named('last_hidden_state') ?? named('token_embeddings') ?? named('sentence_embedding');
  if (output === undefined) return undefined;
  const type = last(last(output, 2)?.bytes ?? Buffer.of(), 1)?.bytes ?? Buffer.of();
  const dims = inside(last(type, 2)?.bytes ?? Buffer.of(), 1).at(-1);
  const size = dims === undefined ? undefined : last(dims.bytes, 1)?.value;
  const bytesOfType = (...types: bigint[]): number =>
    tensors.reduce((sum, tensor) => sum + (types.includes(last(tensor, 2)?.value ?? 0n) ? tensor.length : 0), 0);
  const [full, half, whole] = [bytesOfType(1n), bytesOfType(10n), bytesOfType(3n, 2n)];
  const precision = whole > full && whole > half ? 'int8' : half > full ? 'fp16' : 'fp32';
  const weights = tensors
    .filter((tensor) => inside(tensor, 8).some(({ bytes }) => bytes.length > 0))
    .map((tensor) =>
      fieldsOf(tensor)!
        .map(({ number, value, bytes }) => describeField(number, value, bytes))
        .join('; '),
    );
  return [size === undefined ? undefined : Number(size), precision, 'true', ...weights];
}

// Vectors in JSONL: as many rows as lines that are not empty, each with the numbers that JSON.parse finds there.

import { readVectors } from '@shoal/similarity';
import { bytesOf, type FuzzedReader, type Values } from '../fuzzed-reader.ts';

export const jsonlVectorsReader: FuzzedReader = {
  name: 'vectors.jsonl',
  kind: 'text',
  extension: '.jsonl',
  codes: ['INPUT_INVALID', 'VECTOR_INVALID', 'DIMENSIONS_MISMATCH'],
  variants: 1,
  seeds: async () => [
    Buffer.from('{"id":"a","embedding":[1,0.5,-2]}\n{"id":7,"embedding":[3,1e-3,7]}\n\n{"embedding":[0,0,1]}\n'),
    Buffer.from('[1,2]\r\n[3,4]\r\n[5,6]'),
    Buffer.from(
      '\ufeff{"vector":[0.25,1,2],"id":9007199254740993,"text":"line\u2028one"}\n{"vector":[1,1,1],"id":null}\n',
    ),
  ],
  read: async (_bytes, path) => {
    const values: (string | number | Uint8Array)[] = [];
    for await (const { dims, vectors, names } of readVectors(path)) {
      values.push(dims, vectors.length, bytesOf(vectors).slice());
      for (let row = 0; row < vectors.length / dims; row++) values.push(names?.[row] ?? '');
    }
    return values;
  },
  readAgain: (bytes) => readLines(bytes),
};

function readLines(bytes: Buffer): Values | undefined {
  const text = bytes.toString();
  if (!Buffer.from(text).equals(bytes)) return undefined;
  const lines = text
    .replace(/^\ufeff/, '')
    .split('\n')
    .filter((line) => line.trim() !== '');
  const vectors: number[] = [];
  const names: string[] = [];
  let dims: number | undefined;
  for (const line of lines) {
    const record = parse(line);
    const vector = vectorIn(record);
    if (vector === undefined || vector.length !== (dims ?? vector.length)) return undefined;
    dims = vector.length;
    vectors.push(...vector);
    const id = Array.isArray(record) ? undefined : (record as Readonly<Record<string, unknown>>)['id'];
    if (!['undefined', 'string', 'number'].includes(typeof id) && id !== null) return undefined;
    names.push(typeof id === 'number' && !Number.isSafeInteger(id) ? written(line) : String(id ?? ''));
  }
  return dims === undefined ? [] : [dims, vectors.length, bytesOf(Float32Array.from(vectors)), ...names];
}

function parse(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

function vectorIn(record: unknown): readonly number[] | undefined {
  if (typeof record !== 'object' || record === null) return undefined;
  const { embedding, vector } = record as Readonly<Record<string, unknown>>;
  const found = Array.isArray(record) ? record : (embedding ?? vector);
  const isSound = Array.isArray(found) && found.length > 0 && found.every((value) => typeof value === 'number');
  return isSound ? found : undefined;
}

/** The last "id" of the line, as it stands there. */
function written(line: string): string {
  return [...line.matchAll(/"id"\s*:\s*(-?[\d.eE+-]+)/g)].at(-1)?.[1] ?? '';
}

// SHI1, inputs of rerank jobs, as docs/jobs.md describes them.

import { decodePairs, encodePairs, encodeQueryTexts } from '@shoal/contract';
import { type FuzzedReader, type Values } from '../fuzzed-reader.ts';

export const pairsReader: FuzzedReader = {
  name: 'shi1 of pairs',
  kind: 'binary',
  codes: ['INPUT_CORRUPT'],
  takesAll: true,
  seeds: async () => [
    encodeQueryTexts('hello', ['', 'x']),
    encodeQueryTexts('漢字 and 🙂', ['\ufeffmark', 'x'.repeat(300)]),
    encodePairs([
      { ids: [101, 7592, 102, 2088, 102], second: 3 },
      { ids: [101, 102, 102], second: 0 },
    ]),
    encodePairs([{ ids: [101, 70_000, 2 ** 32 - 1, 102], second: 4 }]),
    encodeQueryTexts(
      '',
      Array.from({ length: 1_024 }, (_, at) => `row ${at}`),
    ),
  ],
  read: async (bytes) => {
    const input = decodePairs(bytes);
    if (input.form === 'texts') return ['texts', input.query, ...input.texts];
    return ['tokens', ...input.rows.flatMap((row, at) => [[...row].join(), input.seconds[at]])];
  },
  readAgain: (bytes) => readPairs(bytes),
};

function readPairs(bytes: Buffer): Values | undefined {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 16 || bytes.toString('latin1', 0, 5) !== 'SHI1\x01' || view.getUint16(6, true) !== 0)
    return undefined;
  const [form, rows] = [view.getUint8(5), view.getUint32(8, true)];
  const elementBytes = [1, 2, 4][form - 3];
  if (elementBytes === undefined || rows < 1 || rows > 1_024) return undefined;
  const isTexts = form === 3;
  const lists = isTexts ? rows + 1 : rows;
  const start = 16 + 4 * lists + (isTexts ? 0 : 4 * rows);
  if (bytes.length < start) return undefined;
  const begin = (list: number): number => start + elementBytes * view.getUint32(12 + 4 * list, true);
  if (begin(0) !== start || begin(lists) !== bytes.length) return undefined;
  const values: (string | number)[] = [];
  for (let list = 0; list < lists; list++) {
    const [from, to] = [begin(list), begin(list + 1)];
    if (to < from || to > bytes.length || (!isTexts && to === from)) return undefined;
    const content = bytes.subarray(from, to);
    if (isTexts) {
      if (!content.equals(Buffer.from(content.toString()))) return undefined; // no UTF-8
      values.push(content.toString());
      continue;
    }
    const second = view.getUint32(16 + 4 * lists + 4 * list, true);
    if (second > (to - from) / elementBytes) return undefined;
    const ids: number[] = [];
    for (let at = from; at < to; at += elementBytes)
      ids.push(form === 4 ? view.getUint16(at, true) : view.getUint32(at, true));
    values.push(ids.join(), second);
  }
  return [isTexts ? 'texts' : 'tokens', ...values];
}

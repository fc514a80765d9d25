// SHI1, inputs of embed jobs, as docs/jobs.md describes them.

import { decodeInput, encodeTexts, encodeTokens } from '@shoal/contract';
import { type FuzzedReader, type Values } from '../fuzzed-reader.ts';

export const inputReader: FuzzedReader = {
  name: 'shi1',
  kind: 'binary',
  codes: ['INPUT_CORRUPT'],
  takesAll: true,
  seeds: async () => [
    encodeTexts(['hello', '']),
    encodeTexts(['how does a worker renew its leases', '漢字 and 🙂', '\ufeffmark', 'x'.repeat(300)]),
    encodeTokens([[101, 7592, 102], [101, 102], Array.from({ length: 40 }, (_, at) => at + 1)]),
    encodeTokens([[101, 70_000, 2 ** 32 - 1, 102], [0]]),
    encodeTexts(Array.from({ length: 1_024 }, (_, at) => `row ${at}`)),
  ],
  read: async (bytes) => {
    const input = decodeInput(bytes);
    return input.form === 'texts' ? ['texts', ...input.texts] : ['tokens', ...input.rows.map((row) => [...row].join())];
  },
  readAgain: (bytes) => readInput(bytes),
};

function readInput(bytes: Buffer): Values | undefined {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 16 || bytes.toString('latin1', 0, 5) !== 'SHI1\x01' || view.getUint16(6, true) !== 0)
    return undefined;
  const [form, rows] = [view.getUint8(5), view.getUint32(8, true)];
  const elementBytes = [1, 2, 4][form];
  if (elementBytes === undefined || rows < 1 || rows > 1_024 || bytes.length < 16 + 4 * rows) return undefined;
  const begin = (row: number): number => 16 + 4 * rows + elementBytes * view.getUint32(12 + 4 * row, true);
  if (begin(0) !== 16 + 4 * rows || begin(rows) !== bytes.length) return undefined;
  const values: string[] = [];
  for (let row = 0; row < rows; row++) {
    const [from, to] = [begin(row), begin(row + 1)];
    if (to < from || to > bytes.length || (form !== 0 && to === from)) return undefined;
    const content = bytes.subarray(from, to);
    if (form === 0 && !content.equals(Buffer.from(content.toString()))) return undefined; // no UTF-8
    const ids: number[] = [];
    if (form !== 0)
      for (let at = from; at < to; at += elementBytes)
        ids.push(form === 1 ? view.getUint16(at, true) : view.getUint32(at, true));
    values.push(form === 0 ? content.toString() : ids.join());
  }
  return [form === 0 ? 'texts' : 'tokens', ...values];
}

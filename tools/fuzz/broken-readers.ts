// Readers that do what no reader may, each when a byte of its file is not 0: what the fuzzer's own test shows it.

import type { FuzzedReader } from './fuzzed-reader.ts';

const sound = {
  kind: 'binary',
  codes: ['INPUT_INVALID'],
  variants: 1,
  seeds: async () => [Buffer.alloc(64)],
  readAgain: () => ['as it is'],
} as const;

/** `doHarm` returns what is read, if it returns at all. */
function broken(name: string, doHarm: () => string): FuzzedReader {
  return { ...sound, name, read: async (bytes) => [bytes.every((byte) => byte === 0) ? 'as it is' : doHarm()] };
}

const kept: Uint8Array[] = [];

export const BROKEN_READERS: readonly FuzzedReader[] = [
  broken('broken: ends the process', () => process.exit(3)),
  broken('broken: never answers', () => {
    for (;;);
  }),
  broken('broken: takes memory', () => {
    for (;;) kept.push(new Uint8Array(1 << 24).fill(1));
  }),
  broken('broken: throws what has no code', () => {
    throw new RangeError('out of range');
  }),
  broken('broken: throws a code that is not its own', () => {
    throw Object.assign(new Error('gone'), { name: 'ShoalError', code: 'RESULT_TAKEN' });
  }),
  broken('broken: says too much', () => {
    throw Object.assign(new Error('x'.repeat(200_000)), { name: 'ShoalError', code: 'INPUT_INVALID' });
  }),
  broken('broken: reads other values', () => 'as it is not'),
  {
    ...sound,
    name: 'broken: reads what is damaged',
    read: async () => ['as it is'],
    readAgain: (bytes) => (bytes.every((byte) => byte === 0) ? ['as it is'] : undefined),
  },
  {
    ...broken('broken: nobody can tell', () => 'as it is'),
    readAgain: () => 'unknown',
  },
  {
    ...broken('broken: refuses what is sound', () => {
      throw Object.assign(new Error('no'), { name: 'ShoalError', code: 'INPUT_INVALID' });
    }),
    takesAll: true,
  },
];

// Damage as files get it (bits that flip, ends that are missing, blocks that moved) and as somebody makes it who knows
// the format (lengths at their extremes, two files in one). Blind to formats: what needs to know one, such as a
// checksum that is made right again, is the reader's (fuzzed-reader.ts).

import type { Dice } from './dice.ts';

type Mutation = (bytes: Buffer, dice: Dice, others: readonly Buffer[]) => Buffer;

const BYTES = [0x00, 0x01, 0x7f, 0x80, 0xff];
const WORDS = [0, 1, 2, 0x7f, 0xff, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];
/** Beyond what a number can say exactly, beyond what is signed, and what a multiplication by 4 or 8 brings round. */
const LONG_WORDS = [0n, 1n, 2n ** 31n, 2n ** 32n, 2n ** 53n, 2n ** 61n, 2n ** 62n, 2n ** 63n, 2n ** 64n - 1n];
/** Where headers are. */
const HEAD_BYTES = 128;

function placeIn(bytes: Buffer, dice: Dice): number {
  return dice.below(Math.max(1, dice.isLucky(0.5) ? Math.min(HEAD_BYTES, bytes.length) : bytes.length));
}

/** Begins on a multiple of `size` more often than not, as fields do. */
function fieldIn(bytes: Buffer, size: number, dice: Dice): number | undefined {
  if (bytes.length < size) return undefined;
  const at = Math.min(placeIn(bytes, dice), bytes.length - size);
  return dice.isLucky(0.8) ? at - (at % size) : at;
}

function blockIn(bytes: Buffer, dice: Dice): readonly [from: number, to: number] {
  const from = placeIn(bytes, dice);
  const most = dice.pick([1, 4, 8, 64, 512]);
  return [from, Math.min(bytes.length, from + dice.between(1, most))];
}

const flipBit: Mutation = (bytes, dice) => {
  const at = placeIn(bytes, dice);
  if (bytes.length > 0) bytes[at]! ^= 1 << dice.below(8);
  return bytes;
};

const setByte: Mutation = (bytes, dice) => {
  if (bytes.length > 0) bytes[placeIn(bytes, dice)] = dice.isLucky(0.7) ? dice.pick(BYTES) : dice.below(256);
  return bytes;
};

const setWord: Mutation = (bytes, dice) => {
  const at = fieldIn(bytes, 4, dice);
  if (at === undefined) return bytes;
  const near = bytes.readUInt32LE(at) + dice.between(-2, 2);
  bytes.writeUInt32LE(dice.pick([dice.pick(WORDS), bytes.length, near, near * 2]) >>> 0, at);
  return bytes;
};

const setLongWord: Mutation = (bytes, dice) => {
  const at = fieldIn(bytes, 8, dice);
  if (at === undefined) return bytes;
  const near = bytes.readBigUInt64LE(at) + BigInt(dice.between(-65, 65));
  const value = dice.pick([dice.pick(LONG_WORDS), dice.pick(LONG_WORDS) - 1n, BigInt(bytes.length), near]);
  bytes.writeBigUInt64LE(BigInt.asUintN(64, value), at);
  return bytes;
};

const truncate: Mutation = (bytes, dice) => bytes.subarray(0, dice.below(bytes.length + 1));

const extend: Mutation = (bytes, dice) => {
  const length = dice.pick([1, 3, 4, 8, 64, 4096]);
  const more = dice.isLucky(0.5) ? Buffer.alloc(length, dice.pick(BYTES)) : bytes.subarray(0, length);
  return Buffer.concat([bytes, more]);
};

const removeBlock: Mutation = (bytes, dice) => {
  const [from, to] = blockIn(bytes, dice);
  return Buffer.concat([bytes.subarray(0, from), bytes.subarray(to)]);
};

const repeatBlock: Mutation = (bytes, dice) => {
  const [from, to] = blockIn(bytes, dice);
  const times = dice.pick([1, 1, 2, 100]);
  return Buffer.concat([
    bytes.subarray(0, to),
    ...Array<Buffer>(times).fill(bytes.subarray(from, to)),
    bytes.subarray(to),
  ]);
};

const swapBlocks: Mutation = (bytes, dice) => {
  const [[a, b], [c, d]] = [blockIn(bytes, dice), blockIn(bytes, dice)].toSorted(([x], [y]) => x - y) as [
    readonly [number, number],
    readonly [number, number],
  ];
  if (b > c) return bytes;
  const cut = (from: number, to?: number): Buffer => bytes.subarray(from, to);
  return Buffer.concat([cut(0, a), cut(c, d), cut(b, c), cut(a, b), cut(d)]);
};

const splice: Mutation = (bytes, dice, others) => {
  const other = dice.pick(others);
  return Buffer.concat([bytes.subarray(0, placeIn(bytes, dice)), other.subarray(placeIn(other, dice))]);
};

const BINARY: readonly Mutation[] = [
  flipBit,
  flipBit,
  setByte,
  setByte,
  setWord,
  setWord,
  setLongWord,
  setLongWord,
  truncate,
  extend,
  removeBlock,
  repeatBlock,
  swapBlocks,
  splice,
];

/** What breaks readers of text: ends of lines, marks and quotes, numbers, Markdown, and what is no UTF-8. */
const LINE_ENDS = ['\r', '\n', '\r\n', '\n\r', '\u2028', '\u0085', '\v', '\f', '\n\n'];
const MARKS = ['\0', '\ufeff', '"', '""', "'", '`', '\\', '\\u0000', '\\ud800', '\\"', ',', ';', '\t', ':'];
const JSON_PIECES = ['{', '}', '[', ']', '{}', '[]', 'null', 'true', '"__proto__":', '"constructor":1,'];
const NUMBERS = [
  '-1',
  '0',
  '007',
  '1.5',
  '1e999',
  '-0',
  'NaN',
  '4294967295',
  '9007199254740993',
  '18446744073709551616',
];
const MARKDOWN = ['# ', '- ', '> ', '|', '***', '---\n', '```\n', '    ', '<!--', '-->', '&#0;', '![](', '](', '<a>'];
const LETTERS = ['🙂', 'e\u0301', '漢字', 'ﷺ'];
const NO_UTF8 = ['ff', 'c0af', 'eda080', 'f4908080', 'fffe', 'feff'].map((hex) => Buffer.from(hex, 'hex'));
const TOKENS = [LINE_ENDS, MARKS, JSON_PIECES, NUMBERS, MARKDOWN, LETTERS, NO_UTF8];

function tokenBy(dice: Dice): Buffer {
  return Buffer.from(dice.pick<string | Uint8Array>(dice.pick<readonly (string | Uint8Array)[]>(TOKENS)) as string);
}

const insertToken: Mutation = (bytes, dice) => {
  const at = dice.below(bytes.length + 1);
  return Buffer.concat([bytes.subarray(0, at), tokenBy(dice), bytes.subarray(at)]);
};

const insertLongToken: Mutation = (bytes, dice) => {
  const at = dice.below(bytes.length + 1);
  const token = tokenBy(dice);
  return Buffer.concat([
    bytes.subarray(0, at),
    ...Array<Buffer>(dice.pick([10, 1_000, 20_000])).fill(token),
    bytes.subarray(at),
  ]);
};

const nest: Mutation = (bytes, dice) => {
  const at = dice.below(bytes.length + 1);
  const [open, close] = dice.pick([
    ['[', ']'],
    ['{"a":', '}'],
    ['> ', ''],
    ['- ', ''],
    ['*a ', ''],
    ['![', '](a)'],
  ] as const);
  const depth = dice.pick([10, 1_000, 10_000]);
  return Buffer.concat([
    bytes.subarray(0, at),
    Buffer.from(open.repeat(depth) + close.repeat(depth)),
    bytes.subarray(at),
  ]);
};

const ODD_VALUES = [...NUMBERS, '1', '2147483648', '4294967296', '1e-400', '""', 'null', '[]', '{}'];

const setNumber: Mutation = (bytes, dice) => {
  const text = bytes.toString('latin1');
  const numbers = [...text.matchAll(/-?\d+(?:\.\d+)?/g)];
  if (numbers.length === 0) return bytes;
  const { index, 0: found } = dice.pick(numbers);
  const other = dice.isLucky(0.3) ? String(Number(found) + dice.between(-2, 2)) : dice.pick(ODD_VALUES);
  return Buffer.from(text.slice(0, index) + other + text.slice(index + found.length), 'latin1');
};

const setWordOfText: Mutation = (bytes, dice) => {
  const text = bytes.toString('latin1');
  const words = [...text.matchAll(/"[^"\n]{1,40}"|\b(?:true|false|null)\b/g)];
  if (words.length === 0) return bytes;
  const { index, 0: found } = dice.pick(words);
  const other = dice.pick([dice.pick(words)[0], '""', '"__proto__"', 'null', 'true', '7', '{}', '[]', '"\\u0000"']);
  return Buffer.from(text.slice(0, index) + other + text.slice(index + found.length), 'latin1');
};

const removeLine: Mutation = (bytes, dice) => {
  const lines = bytes.toString('latin1').split('\n');
  lines.splice(dice.below(lines.length), 1, ...(dice.isLucky(0.5) ? [] : [dice.pick(lines), dice.pick(lines)]));
  return Buffer.from(lines.join('\n'), 'latin1');
};

const TEXT: readonly Mutation[] = [
  insertToken,
  insertToken,
  insertToken,
  setNumber,
  setNumber,
  setWordOfText,
  setWordOfText,
  removeLine,
  insertLongToken,
  nest,
  flipBit,
  setByte,
  truncate,
  removeBlock,
  repeatBlock,
  swapBlocks,
  splice,
];

const OF_KIND = { binary: BINARY, text: TEXT, both: [...BINARY, ...TEXT] } as const;
export type Kind = keyof typeof OF_KIND;

/** One of the `seeds`, damaged in one to four ways; the seeds stay as they are. */
export function mutate(seeds: readonly Buffer[], kind: Kind, dice: Dice): Buffer {
  let bytes = Buffer.from(dice.pick(seeds));
  for (let left = dice.pick([1, 1, 1, 2, 2, 4]); left > 0; left--)
    bytes = Buffer.from(dice.pick(OF_KIND[kind])(bytes, dice, seeds));
  return bytes;
}

// Texts to hold tokenizers against each other: what people wrote into the packages of this checkout, and random strings
// over many scripts. The same ones in the same order on every run of the same checkout, except at night.

import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';

const MAX_LINES_PER_FILE = 60;
const MAX_FILE_BYTES = 400_000;

/** What was read so far of a folder, whose list alone takes a second. */
interface Reading {
  readonly paths: Iterator<string>;
  readonly lines: Set<string>;
}

const readings = new Map<string, Reading>();

/** Distinct lines of 3 to 2,000 characters from Markdown, text and source files under `folder`, at most `limit`. */
export function realLines(folder: string, limit: number): readonly string[] {
  const { paths, lines } = readings.get(folder) ?? { paths: textFiles(folder).values(), lines: new Set<string>() };
  readings.set(folder, { paths, lines });
  while (lines.size < limit) {
    const { done, value: path } = paths.next();
    if (done === true) break;
    for (const line of linesOf(join(folder, path)).slice(0, MAX_LINES_PER_FILE)) lines.add(line);
  }
  return [...lines].slice(0, limit);
}

/** In the order of their paths, without what this checkout itself changes. */
function textFiles(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => /\.(md|txt|js|mjs|ts)$/.test(path) && !/^@shoal|(^|\/)\./.test(path))
    .sort();
}

function linesOf(path: string): readonly string[] {
  try {
    const bytes = readFileSync(path);
    return bytes.length > MAX_FILE_BYTES
      ? []
      : bytes
          .toString()
          .split('\n')
          .filter((line) => line.length >= 3 && line.length <= 2_000);
  } catch {
    return []; // a folder named like a file
  }
}

/** First and last code points; some twice, to be drawn more often. */
const POOLS: readonly (readonly [number, number])[] = [
  [0x20, 0x7e],
  [0x20, 0x7e],
  [0x61, 0x7a],
  [0x00, 0x2ff],
  [0x300, 0x36f],
  [0x370, 0x5ff],
  [0x600, 0x8ff],
  [0x900, 0xdff],
  [0xe00, 0x10ff],
  [0x1100, 0x11ff],
  [0x1200, 0x1fff],
  [0x2000, 0x206f],
  [0x2070, 0x2bff],
  [0x3000, 0x30ff],
  [0x3400, 0x4dff],
  [0x4e00, 0x4fff],
  [0xa000, 0xabff],
  [0xac00, 0xad00],
  [0xe000, 0xe010],
  [0xf900, 0xfaff],
  [0xfe00, 0xffff],
  [0x10000, 0x10fff],
  [0x11000, 0x11fff],
  [0x12000, 0x16fff],
  [0x1d100, 0x1d7ff],
  [0x1e000, 0x1efff],
  [0x1f300, 0x1faff],
  [0x20000, 0x2007f],
  [0x2b800, 0x2ba00],
  [0x2f800, 0x2fa1f],
  [0xe0000, 0xe01ef],
  [0x10fff0, 0x10ffff],
];
const INSERTS = [
  ' ',
  ' ',
  ' ',
  '[SEP]',
  '[CLS]',
  '[MASK',
  '[PAD]',
  '\u0301',
  '\u0323',
  '≠',
  'the',
  '##ing',
  '\t',
  '\n',
  '한',
  'Σ',
  'İ',
  '👩🏽‍🚀',
];

/** Strings of 1 to 60 characters. Surrogates may stand alone, as they may in a JavaScript string. */
export function randomStrings(count: number, seed: number): readonly string[] {
  let state = seed;
  const below = (limit: number): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state >>> 8) % limit;
  };
  return Array.from({ length: count }, () => {
    let text = '';
    for (let left = 1 + below(60); left > 0; left--) {
      const [from, to] = POOLS[below(POOLS.length)]!;
      text += String.fromCodePoint(from + below(to - from + 1));
      if (below(5) === 0) text += INSERTS[below(INSERTS.length)]!;
      if (below(400) === 0) text += String.fromCharCode(0xd800 + below(0x800));
    }
    return text;
  });
}

/** What tokenizers stumble over: blanks of every kind, marks and joiners, tokens spelled out, forms of one letter. */
const HOSTILE = [
  ['a', 'b ', 'x', 'the', 'ing', '123', ' ', '  ', '\t', '\n', '\r\n', '\r', '\u00a0', '\u3000', '\u2003', '\u0085'],
  ['\u2028', '▁', '▁▁', '\u0301', '\u0308', '\u0323', '\u0344', '\u0345', '\u200d', '\u200b', '\ufeff', '\u00ad'],
  ['\u0600', '\u06dd', '\u070f', '\u0915', '\u094d', '\u0958', '\u093f', '\u1112', '\u1161', '\u11ab', '가', '각'],
  ['\u{1f469}', '\u2122', '\u00a9', '\ufe0f', '\u{1f1e6}', '\u{1f1e7}', 'ﬁ', '½', 'ｱ', 'ﾞ', '①', '㍿', 'é', 'e\u0301'],
  ['Å', '\u212b', 'ſ', 'İ', 'ß', 'Ω', '\u2126', '\u1e9b\u0323', 'ا', 'ﷺ', '中', '文', '。', '\u{20000}', '\u{e0020}'],
  [
    '<s>',
    '</s>',
    '<mask>',
    ' <mask> ',
    '<pad>',
    '<unk>',
    '<',
    '>',
    '<mask',
    '`',
    '``',
    "''",
    "'s",
    "'LL",
    '[CLS]',
    '[MASK]',
  ],
  ['<|endoftext|>', '<bos>', '\0', '\u0001', '\u001f', '\u007f', '\ufffd', '\ud800', '\udc00'],
].flat();

/** Strings of 1 to 14 of these. */
export function hostileStrings(count: number, seed: number): readonly string[] {
  let state = seed;
  const below = (limit: number): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state >>> 8) % limit;
  };
  return Array.from({ length: count }, () =>
    Array.from({ length: 1 + below(14) }, () => HOSTILE[below(HOSTILE.length)]!).join(''),
  );
}

/** The days since 1970 at night, 0 by day: added to a seed it gives every night texts of its own. */
export const NIGHT = process.env['SHOAL_TEST_NIGHTLY'] === undefined ? 0 : Math.floor(Date.now() / 86_400_000);

/** Each code point beside letters, blanks, a mark and itself; of `step` of them one, another each night. */
export function everyCodePoint(step = 1): readonly string[] {
  const texts: string[] = [];
  for (let point = NIGHT % step; point < 0x110000; point += step) {
    if (point >= 0xd800 && point < 0xe000) continue;
    const char = String.fromCodePoint(point);
    texts.push(`${char}a b${char} ${char} x${char}y é${char}\u0301 ${char}${char}`);
  }
  return texts;
}

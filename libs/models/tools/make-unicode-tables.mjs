// Writes src/tokenizer/unicode-tables.ts by asking the official `tokenizers` package about every code point: what its
// Rust crates take for a word character, a mark, a compatibility form, and where they see the borders of grapheme
// clusters. Takes about two minutes.
//   node libs/models/tools/make-unicode-tables.mjs
import { createRequire } from 'node:module';
import { writeFileSync } from 'node:fs';
import { ranges, wrap } from './code-points.mjs';

const require = createRequire(import.meta.url);
const oracle = require('tokenizers');
const { version } = require('tokenizers/package.json');

const nfd = oracle.nfdNormalizer();
const nfc = oracle.nfcNormalizer();
const nfkd = oracle.nfkdNormalizer();
const accents = oracle.stripAccentsNormalizer();
const words = oracle.whitespacePreTokenizer();

/**
 * A charsmap in which every byte alone is a hit: a cluster of under 6 bytes becomes one "b", and of a longer one every
 * character does. So the length of what comes out tells where the clusters end.
 */
function everyByte() {
  const units = new Uint32Array(1024);
  units[0] = 256 << 10;
  for (let byte = 0; byte < 256; byte++) units[256 + byte] = (512 << 10) | (1 << 8) | byte;
  const size = Buffer.alloc(4);
  size.writeUInt32LE(units.byteLength);
  return Buffer.concat([size, Buffer.from(units.buffer), Buffer.from('b\0')]).toString('base64');
}
const clusters = oracle.Tokenizer.fromString(
  JSON.stringify({
    version: '1.0',
    added_tokens: [],
    normalizer: { type: 'Precompiled', precompiled_charsmap: everyByte() },
    model: { type: 'Unigram', unk_id: 0, vocab: [['<unk>', 0]] },
  }),
).getNormalizer();
const count = (text) => clusters.normalizeString(text).length;

const [MARK, JOINER, WOMAN, TRADE_MARK, KA, VIRAMA] = ['\u0301', '\u200d', '\u{1f469}', '\u2122', '\u0915', '\u094d'];
const extend = (char) => count(`a${char}`) === 1;

const questions = {
  WORD: (char) => words.preTokenizeString(`a${char}`).length === 1 && !/\s|\x85/.test(char),
  COMBINING: (char) => accents.normalizeString(`a${char}`) === 'a',
  COMPATIBLE: (char) => nfkd.normalizeString(char) !== char && nfd.normalizeString(char) === char,
  EXTENDS: extend,
  SPACING: (char) => extend(char) && count(WOMAN + char + JOINER + TRADE_MARK + MARK) !== 5,
  CONTROL: (char) =>
    !extend(char) && (Buffer.byteLength(char) < 4 ? count(char + MARK) === 2 : count(char + MARK + MARK) === 2),
  PREPENDED: (char) => count(`${char}a`) === 1,
  PICTOGRAPH: (char) => count(char + JOINER + TRADE_MARK + MARK) === 4,
  CONSONANT: (char) => count(char + VIRAMA + KA + MARK) === 4,
  LINKER: (char) => extend(char) && count(KA + char + KA + MARK) === 4,
  CONJOINED: (char) => extend(char) && count(KA + char + VIRAMA + KA + MARK) === 5,
};
const meanings = {
  WORD: '\\w of the regex crate, for added tokens that are single words',
  COMBINING: 'removed by StripAccents',
  COMPATIBLE: 'changed by NFKD and not by NFD',
  JOINING: 'starters that NFC joins to the character before them',
  EXTENDS: 'of the cluster of the character before it',
  SPACING: 'of those, the ones that break a sequence of pictographs',
  CONTROL: 'a cluster alone',
  PREPENDED: 'of the cluster of the character behind it',
  PICTOGRAPH: 'joined to another one by U+200D',
  CONSONANT: 'joined to another one by a linker',
  LINKER: 'joins consonants',
  CONJOINED: 'may stand between a consonant and its linker',
};

const sets = Object.fromEntries(Object.keys(meanings).map((name) => [name, []]));
const joining = new Set();
for (let point = 0; point < 0x110000; point++) {
  if (point >= 0xd800 && point < 0xe000) continue; // surrogates: no characters
  const char = String.fromCodePoint(point);
  for (const [name, ask] of Object.entries(questions)) if (ask(char)) sets[name].push(point);
  const parts = [...nfd.normalizeString(char)];
  if (parts.length > 1 && nfc.normalizeString(char) === char) joining.add(parts.at(-1).codePointAt(0));
}
const isReordered = (char) =>
  nfd.normalizeString(`${char}\u0334`) !== `${char}\u0334` || nfd.normalizeString(`\u0301${char}`) !== `\u0301${char}`;
sets.JOINING = [...joining].filter((point) => !isReordered(String.fromCodePoint(point))).sort((a, b) => a - b);

const body = Object.entries(sets)
  .map(([name, points]) => `  // ${meanings[name]}\n  ${name}: \`\n${wrap(ranges(points), '    ')}\`,`)
  .join('\n');
const head =
  `What the crates under tokenizers ${version} do with each code point. Written by tools/make-unicode-tables.mjs, ` +
  'which asked that package about every one; do not edit. Clusters of regional indicators and of 4-byte Hangul are not ' +
  'told apart here: nothing asks for them, because a charsmap looks only at clusters of under 6 bytes.';
writeFileSync(
  new URL('../src/tokenizer/unicode-tables.ts', import.meta.url),
  `${wrap(head.split(' '), '// ')}

/** Ranges of code points in hexadecimal, ascending. */
export const TABLE_RANGES = {
${body}
} as const;
`,
);
console.log(Object.fromEntries(Object.entries(sets).map(([name, points]) => [name, points.length])));

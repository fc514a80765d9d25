// Writes src/tokenizer/unicode-classes.ts by asking the official `tokenizers` package about every code point, one by
// one: its Rust tables are of several Unicode versions at once, and none of them is the version of the Node that runs
// this.
//   node libs/models/tools/make-unicode-classes.mjs
import { createRequire } from 'node:module';
import { writeFileSync } from 'node:fs';

const require = createRequire(import.meta.url);
const oracle = require('tokenizers');
const { version } = require('tokenizers/package.json');

const off = { cleanText: false, handleChineseChars: false, stripAccents: false, lowercase: false };
const clean = oracle.bertNormalizer({ ...off, cleanText: true });
const chinese = oracle.bertNormalizer({ ...off, handleChineseChars: true });
const strip = oracle.bertNormalizer({ ...off, stripAccents: true });
const lower = oracle.bertNormalizer({ ...off, lowercase: true });
const nfd = oracle.nfdNormalizer();
const words = oracle.bertPreTokenizer();

// Reordered before U+0334 (class 1) or after U+0301 (class 230): then its own combining class is not 0.
const isReordered = (char) =>
  nfd.normalizeString(`${char}\u0334`) !== `${char}\u0334` || nfd.normalizeString(`\u0301${char}`) !== `\u0301${char}`;

const questions = {
  DROPPED: (char) => clean.normalizeString(`a${char}b`) === 'ab',
  SPACE: (char) => words.preTokenizeString(`a${char}b`).length === 2,
  PUNCTUATION: (char) => words.preTokenizeString(`a${char}b`).length === 3,
  CHINESE: (char) => chinese.normalizeString(char) !== char,
  DECOMPOSED: (char) => nfd.normalizeString(char) !== char || isReordered(char),
  MARK: (char) => nfd.normalizeString(char) === char && strip.normalizeString(`a${char}b`) === 'ab',
};

// What the same questions answer when put to this Node's own tables.
const nodes = {
  DROPPED: (char) => /[\0\ufffd]|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}]/u.test(char),
  SPACE: (char) => /\p{White_Space}/u.test(char),
  PUNCTUATION: (char) => /[\p{P}$+<=>^`|~]/u.test(char),
  CHINESE: undefined,
  DECOMPOSED: undefined,
  MARK: (char) => /\p{Mn}/u.test(char) && char.normalize('NFD') === char,
};

const sets = Object.fromEntries(Object.keys(questions).map((name) => [name, []]));
const differing = Object.fromEntries(Object.keys(questions).map((name) => [name, 0]));
const lowerCaseDiffers = [];
const decompositionDiffers = [];
for (let point = 0; point < 0x110000; point++) {
  if (point >= 0xd800 && point < 0xe000) continue; // surrogates: no characters, toWellFormed() replaced them
  const char = String.fromCodePoint(point);
  for (const [name, ask] of Object.entries(questions)) {
    const answer = ask(char);
    if (answer) sets[name].push(point);
    if (nodes[name] !== undefined && nodes[name](char) !== answer) differing[name] += 1;
  }
  if (lower.normalizeString(char) !== char.toLowerCase()) lowerCaseDiffers.push(point);
  if (nfd.normalizeString(char) !== char.normalize('NFD')) decompositionDiffers.push(point);
}
const wrong = decompositionDiffers.filter((point) => sets.DECOMPOSED.includes(point));
if (lowerCaseDiffers.length > 0 || wrong.length > 0)
  throw new Error(
    `not expressible by these classes: ${[...lowerCaseDiffers, ...wrong].map((p) => p.toString(16)).join(' ')}`,
  );

function ranges(points) {
  const found = [];
  for (const point of points) {
    const last = found.at(-1);
    if (last !== undefined && last[1] === point - 1) last[1] = point;
    else found.push([point, point]);
  }
  return found.map(([from, to]) => (from === to ? from.toString(16) : `${from.toString(16)}-${to.toString(16)}`));
}

const COLUMNS = 120;

/** Lines of words, each behind `indent` and no longer than the formatter's. */
function wrap(pieces, indent) {
  const lines = [];
  for (const word of pieces) {
    const last = lines.at(-1);
    if (last === undefined || last.length + 1 + word.length > COLUMNS) lines.push(`${indent}${word}`);
    else lines[lines.length - 1] = `${last} ${word}`;
  }
  return lines.join('\n');
}

const meanings = {
  DROPPED: 'removed by clean_text',
  SPACE: 'ends a word',
  PUNCTUATION: 'a word of its own',
  CHINESE: 'a word of its own by handle_chinese_chars; the block that begins at 2b920 is a slip of the original, kept',
  DECOMPOSED: 'changed by NFD, or moved by it among its neighbours',
  MARK: 'removed by strip_accents after NFD',
};
const notes = Object.entries(differing)
  .filter(([name]) => nodes[name] !== undefined)
  .map(([name, count]) => `${name} ${count}`)
  .join(', ');
const body = Object.entries(sets)
  .map(([name, points]) => `  // ${meanings[name]}\n  ${name}: \`\n${wrap(ranges(points), '    ')}\`,`)
  .join('\n');
const hexadecimal = decompositionDiffers.map((point) => point.toString(16)).join(' ');
const head =
  `What BERT's normalizer does with each code point, as tokenizers ${version} (the Rust original) does it. ` +
  'Written by tools/make-unicode-classes.mjs, which asked that package about every code point; do not edit. ' +
  `The answers of Node ${process.versions.node} (Unicode ${process.versions.unicode}) differ at this many code ` +
  `points: ${notes}; ${decompositionDiffers.length} have an NFD there and none here (${hexadecimal}). Lower case ` +
  'agrees everywhere. Whole classes instead of a list of exceptions: a newer Node would need another list.';
writeFileSync(
  new URL('../src/tokenizer/unicode-classes.ts', import.meta.url),
  `${wrap(head.split(' '), '// ')}

/** Ranges of code points in hexadecimal, ascending. */
export const CLASS_RANGES = {
${body}
} as const;
`,
);
console.log(`differing from this Node: ${notes}, NFD ${decompositionDiffers.length}`);

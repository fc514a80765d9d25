// Writes src/tokenizer/unicode-classes.ts (what BERT's normalizer asks) and text-classes.ts (what the regexes of BPE and
// NFC ask) by asking the official `tokenizers` package about every code point, one by one: its tables are of several
// Unicode versions at once, and none of them is the version of the Node that runs this.
//   node libs/models/tools/make-unicode-classes.mjs
import { createRequire } from 'node:module';
import { writeFileSync } from 'node:fs';
import { ranges, wrap } from './code-points.mjs';

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

/** A pre-tokenizer that drops what the regex engine of the package (Oniguruma) finds. */
const dropping = (regex) =>
  oracle.Tokenizer.fromString(
    JSON.stringify({
      pre_tokenizer: { type: 'Split', pattern: { Regex: regex }, behavior: 'Removed', invert: false },
      model: { type: 'BPE', vocab: {}, merges: [] },
    }),
  ).getPreTokenizer();

const letters = dropping('\\p{L}');
const numbers = dropping('\\p{N}');
const blanks = dropping('\\s');
const digits = oracle.digitsPreTokenizer(true);
const nfc = oracle.nfcNormalizer();

/** Parts of the canonical decompositions of all code points, and those of them that are not the first part of one. */
const parts = new Set();
const laterParts = new Set();

const questions = {
  DROPPED: (char) => clean.normalizeString(`a${char}b`) === 'ab',
  SPACE: (char) => words.preTokenizeString(`a${char}b`).length === 2,
  PUNCTUATION: (char) => words.preTokenizeString(`a${char}b`).length === 3,
  CHINESE: (char) => chinese.normalizeString(char) !== char,
  DECOMPOSED: (char) => nfd.normalizeString(char) !== char || isReordered(char),
  MARK: (char) => nfd.normalizeString(char) === char && strip.normalizeString(`a${char}b`) === 'ab',
};

const textQuestions = {
  LETTER: (char) => letters.preTokenizeString(char).length === 0,
  NUMBER: (char) => numbers.preTokenizeString(char).length === 0,
  WHITE_SPACE: (char) => blanks.preTokenizeString(char).length === 0,
  DIGIT: (char) => digits.preTokenizeString(`a${char}`).length === 2,
  COMPOSING: (char) => questions.DECOMPOSED(char) || parts.has(char),
  FOLLOWING: (char) => nfc.normalizeString(char) !== char || isReordered(char) || laterParts.has(char),
};

// What the same questions answer when put to this Node's own tables.
const nodes = {
  LETTER: (char) => /\p{L}/u.test(char),
  NUMBER: (char) => /\p{N}/u.test(char),
  WHITE_SPACE: (char) => /\p{White_Space}/u.test(char),
  DIGIT: (char) => /\p{N}/u.test(char),
  COMPOSING: undefined,
  FOLLOWING: undefined,
  DROPPED: (char) => /[\0\ufffd]|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}]/u.test(char),
  SPACE: (char) => /\p{White_Space}/u.test(char),
  PUNCTUATION: (char) => /[\p{P}$+<=>^`|~]/u.test(char),
  CHINESE: undefined,
  DECOMPOSED: undefined,
  MARK: (char) => /\p{Mn}/u.test(char) && char.normalize('NFD') === char,
};

const lowerCaseDiffers = [];
const decompositionDiffers = [];
for (const char of everyChar()) {
  const point = char.codePointAt(0);
  if (lower.normalizeString(char) !== char.toLowerCase()) lowerCaseDiffers.push(point);
  const decomposed = nfd.normalizeString(char);
  if (decomposed !== char.normalize('NFD')) decompositionDiffers.push(point);
  if (decomposed === char) continue;
  for (const [at, part] of [...decomposed].entries()) {
    parts.add(part);
    if (at > 0) laterParts.add(part);
  }
}
const bert = answersTo(questions);
const text = answersTo(textQuestions);
const { sets } = bert;

/** Surrogates are no characters: toWellFormed() replaced them. */
function* everyChar() {
  for (let point = 0; point < 0x110000; point++)
    if (point < 0xd800 || point > 0xdfff) yield String.fromCodePoint(point);
}

/** The code points to which the answer is yes, and how many are answered otherwise by this Node, by question. */
function answersTo(asked) {
  const found = Object.fromEntries(Object.keys(asked).map((name) => [name, []]));
  const differing = Object.fromEntries(Object.keys(asked).map((name) => [name, 0]));
  for (const char of everyChar()) {
    for (const [name, ask] of Object.entries(asked)) {
      const answer = ask(char);
      if (answer) found[name].push(char.codePointAt(0));
      if (nodes[name] !== undefined && nodes[name](char) !== answer) differing[name] += 1;
    }
  }
  const notes = Object.entries(differing)
    .filter(([name]) => nodes[name] !== undefined)
    .map(([name, count]) => `${name} ${count}`)
    .join(', ');
  return { sets: found, notes };
}

const wrong = decompositionDiffers.filter((point) => sets.DECOMPOSED.includes(point));
if (lowerCaseDiffers.length > 0 || wrong.length > 0)
  throw new Error(
    `not expressible by these classes: ${[...lowerCaseDiffers, ...wrong].map((p) => p.toString(16)).join(' ')}`,
  );

const meanings = {
  DROPPED: 'removed by clean_text',
  SPACE: 'ends a word',
  PUNCTUATION: 'a word of its own',
  CHINESE: 'a word of its own by handle_chinese_chars; the block that begins at 2b920 is a slip of the original, kept',
  DECOMPOSED: 'changed by NFD, or moved by it among its neighbours',
  MARK: 'removed by strip_accents after NFD',
};
Object.assign(meanings, {
  LETTER: '\\p{L} of a Split or of ByteLevel',
  NUMBER: '\\p{N} of a Split or of ByteLevel',
  WHITE_SPACE: '\\s of a Split or of ByteLevel',
  DIGIT: 'a number to the pre-tokenizer Digits, whose table is a newer one',
  COMPOSING: 'decomposed or moved by a canonical normalization, or a part of such a decomposition',
  FOLLOWING: 'of these, what NFC may change or may join with what stands before it',
});

/** The source of a table of ranges. */
function table(about, exported, pointsByClass) {
  const body = Object.entries(pointsByClass)
    .map(([name, points]) => `  // ${meanings[name]}\n  ${name}: \`\n${wrap(ranges(points), '    ')}\`,`)
    .join('\n');
  return `${wrap(about.split(' '), '// ')}

/** Ranges of code points in hexadecimal, ascending. */
export const ${exported} = {
${body}
} as const;
`;
}

const write = (file, source) => writeFileSync(new URL(`../src/tokenizer/${file}`, import.meta.url), source);
const asked = 'tools/make-unicode-classes.mjs, which asked that package about every code point; do not edit.';
const node = `Node ${process.versions.node} (Unicode ${process.versions.unicode})`;
const hexadecimal = decompositionDiffers.map((point) => point.toString(16)).join(' ');
write(
  'unicode-classes.ts',
  table(
    `What BERT's normalizer does with each code point, as tokenizers ${version} (the Rust original) does it. ` +
      `Written by ${asked} The answers of ${node} differ at this many code ` +
      `points: ${bert.notes}; ${decompositionDiffers.length} have an NFD there and none here (${hexadecimal}). Lower case ` +
      'agrees everywhere. Whole classes instead of a list of exceptions: a newer Node would need another list.',
    'CLASS_RANGES',
    bert.sets,
  ),
);
write(
  'text-classes.ts',
  table(
    `What the regexes of byte-level BPE and NFC see in each code point, as tokenizers ${version} sees it. Written by ` +
      `${asked} The answers of ${node} differ at this many code points: ${text.notes}.`,
    'TEXT_CLASS_RANGES',
    text.sets,
  ),
);
console.log(`differing from this Node: ${bert.notes}, NFD ${decompositionDiffers.length}; ${text.notes}`);

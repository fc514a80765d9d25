// The character classes against the official package, for all 1,112,064 code points there are: by day those of the
// planes in use, and every 31st of the others, which are ideographs, private or nobody's yet.

import { describe, expect, test } from 'vitest';
import { seededRandom } from '@shoal/core/base';
import { Golden, hashOf, versionOf } from '../testing/golden.ts';
import { referenceWords } from '../testing/reference-tokenizer.ts';
import { BertWords, ROLE } from './bert-words.ts';

const words = new BertWords({ cleanText: true, handleChineseChars: true, stripAccents: true, lowercase: true });

function* codePoints(): Generator<string> {
  for (let point = 0; point < 0x110000; point++)
    if (point < 0xd800 || point > 0xdfff) yield String.fromCodePoint(point);
}

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
/** The first two planes, and in the fifteenth the tags and selectors. */
const isInUse = (point: number): boolean => point < 0x20000 || (point >= 0xe0000 && point < 0xe1000);

/** All of them by night, 4,096 at a time. */
function* blocks(): Generator<readonly string[]> {
  let block: string[] = [];
  for (const char of codePoints()) {
    const point = char.codePointAt(0)!;
    if (!isNightly && !isInUse(point) && point % 31 !== 0) continue;
    block.push(char);
    if (block.length === 4096) {
      yield block;
      block = [];
    }
  }
  if (block.length > 0) yield block;
}

describe('words of a text', () => {
  // Between letters, alone, among marks of two combining classes, at the end of a Hangul syllable, doubled. A block's
  // answers are compared by their hash, and one by one where that differs.
  test('every code point does in its surroundings what it does in the official package', async () => {
    const golden = new Golden<string>('words', versionOf('tokenizers'));
    const differing: string[] = [];
    for (const block of blocks()) {
      const texts = block.map(
        (char) => `a${char}B ${char} e${char}\u0301x\u0323${char}\u0334 \u1100${char}\u11a8 ${char}${char}`,
      );
      const found = texts.map((text) => words.split(text).join(' '));
      const theirs = await golden.get(hashOf(...texts), () =>
        hashOf(...texts.map((text) => referenceWords(text).join(' '))),
      );
      if (hashOf(...found) === theirs) continue;
      for (const [at, text] of texts.entries())
        if (found[at] !== referenceWords(text).join(' ')) differing.push(block[at]!.codePointAt(0)!.toString(16));
      expect(differing, 'a block differs, so a code point of it does').not.toEqual([]);
    }
    golden.save();
    expect(differing).toEqual([]);
  });

  test('long runs of what decomposes and of marks are normalized as the official package does', () => {
    const moved = [...codePoints()].filter((char) => char.normalize('NFD') !== char || /\p{M}/u.test(char));
    const rare = ['\u302e', '\u{16ff0}', '\u{1d165}', '\u{1d16d}', '\u{1d160}', '\u0f73', '\u0f81', '\u0344', '\u034f'];
    const random = seededRandom(11);
    for (let i = 0; i < 400; i++) {
      const of = i % 2 === 0 ? moved : rare;
      const run = Array.from({ length: 40 + (i % 200) }, () => of[Math.floor(random() * of.length)]!).join('');
      const text = `a${run}b`;
      expect(words.split(text).join(' ')).toBe(referenceWords(text).join(' '));
    }
  });

  test.each([
    ['marks of two classes in turn', '\u0301\u0323'],
    ['what decomposes into such marks', '\u0f73'],
    ['marks that stay, of two classes in turn', '\u302e\u{1d165}'],
  ])('a million of %s take a moment, not the hours that moving each behind the others takes', (_, marks) => {
    const [word = ''] = words.split(`A${marks.repeat(1_000_000)}`);
    expect([word[0], word.length]).toEqual(['a', /\p{Mn}/u.test(marks) ? 1 : 1 + 3_000_000]);
  });

  test('a text may be cut at SPACE and ALONE characters before it is normalized', () => {
    const roles = words.roles();
    const differing: string[] = [];
    for (const char of codePoints()) {
      const role = roles[char.codePointAt(0)!]!;
      if (role !== ROLE.SPACE && role !== ROLE.ALONE) continue;
      for (const [before, after] of [
        ['a', 'b'],
        ['e\u0301', '\u0323\u0301x'],
        ['\u1100', '\u1161'],
        [char, char],
      ] as const) {
        const cut = [before, role === ROLE.ALONE ? char : '', after].flatMap((part) => words.split(part));
        if (cut.join(' ') !== words.split(before + char + after).join(' '))
          differing.push(char.codePointAt(0)!.toString(16));
      }
    }
    expect(differing).toEqual([]);
  });
});

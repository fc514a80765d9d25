// The character classes against the official package, for all 1,112,064 code points there are.

import { describe, expect, test } from 'vitest';
import { referenceWords } from '../testing/reference-tokenizer.ts';
import { BertWords, ROLE } from './bert-words.ts';

const words = new BertWords({ cleanText: true, handleChineseChars: true, stripAccents: true, lowercase: true });

function* codePoints(): Generator<string> {
  for (let point = 0; point < 0x110000; point++)
    if (point < 0xd800 || point > 0xdfff) yield String.fromCodePoint(point);
}

describe('words of a text', () => {
  // Between letters, alone, among marks of two combining classes, at the end of a Hangul syllable, doubled.
  test('every code point does in its surroundings what it does in the official package', () => {
    const differing: string[] = [];
    for (const char of codePoints()) {
      const text = `a${char}B ${char} e${char}\u0301x\u0323${char}\u0334 \u1100${char}\u11a8 ${char}${char}`;
      if (words.split(text).join(' ') !== referenceWords(text).join(' '))
        differing.push(char.codePointAt(0)!.toString(16));
    }
    expect(differing).toEqual([]);
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

// Normal forms against the official package, and against themselves where texts are long.

import tokenizers from 'tokenizers';
import { describe, expect, test } from 'vitest';
import { hostileStrings, randomStrings } from '../testing/texts.ts';
import { normalForm } from './normal-forms.ts';

const FORMS = [
  ['NFC', tokenizers.nfcNormalizer()],
  ['NFD', tokenizers.nfdNormalizer()],
  ['NFKC', tokenizers.nfkcNormalizer()],
  ['NFKD', tokenizers.nfkdNormalizer()],
] as const;

describe.each(FORMS)('%s', (form, theirs) => {
  test('of hostile and random strings is that of the official package', () => {
    const many = '\u0301\u0323\u0345\u0334\u0591\u05b0'.repeat(40);
    const texts = [...hostileStrings(4_000, 41), ...randomStrings(4_000, 43)].map((text) => text.toWellFormed());
    const all = [...texts, ...texts.slice(0, 200).map((text) => `${text}${many}${text}`), `e${many}\u0b57${many}`];
    expect(all.filter((text) => normalForm(text, form) !== theirs.normalizeString(text)).slice(0, 3)).toEqual([]);
  });

  test('of a hundred thousand marks in turns ends, and is what the marks in order give', () => {
    const count = 60_000;
    const mixed = normalForm(`q${'\u0301\u0323'.repeat(count)}x`, form);
    expect(mixed === normalForm(`q${'\u0323'.repeat(count)}${'\u0301'.repeat(count)}x`, form)).toBe(true);
    expect(mixed.length).toBe(2 * count + 2);
  });
});

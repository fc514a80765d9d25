// No character that a reader sees is lost: what the parser's own renderer makes of random Markdown is the second opinion.

import * as fc from 'fast-check';
import { micromark } from 'micromark';
import { gfm, gfmHtml } from 'micromark-extension-gfm';
import { describe, expect, test } from 'vitest';
import { ReadingNotes } from '@shoal/worker/files/reading-notes';
import { weightOf } from './cut-text.ts';
import { allPassages, embeddedText } from './passages.ts';

const RUNS = process.env['SHOAL_TEST_NIGHTLY'] === '1' ? 5_000 : 200;

/** What embedding sees: each heading where it is first said, then texts. */
function seenBy(markdown: string): string {
  return allPassages(markdown, new ReadingNotes())
    .map((passage) => embeddedText(passage))
    .join('\n');
}

/** The text of the HTML that micromark writes, with tags shown as text and images by their alternative texts. */
function rendered(markdown: string): string {
  return micromark(markdown, { extensions: [gfm()], htmlExtensions: [gfmHtml({ label: ' ', backLabel: () => '' })] })
    .replaceAll(/<sup><a [^>]*>[^<]*<\/a><\/sup>/g, '') // labels of footnotes
    .replaceAll(/<img [^>]*alt="([^"]*)"[^>]*>/g, '$1')
    .replaceAll(/<[^>]*>/g, '')
    .replaceAll('&lt;', '<')
    .replaceAll('&gt;', '>')
    .replaceAll('&quot;', '"')
    .replaceAll('&amp;', '&');
}

/** The first visible character of `text` that `seen` does not have in this order. */
function firstLost(text: string, seen: string): string | undefined {
  let at = 0;
  for (const character of text.replaceAll(/[\s\p{Cf}]/gu, '')) {
    at = seen.indexOf(character, at);
    if (at === -1) return character;
    at += character.length;
  }
  return undefined;
}

/** Words that stand once in a document, so that one that is lost is missed. */
const word = fc.stringMatching(/^[a-z]{5,9}$/);
const inline = fc.letrec<{ one: string; many: string }>((tie) => ({
  one: fc.oneof(
    { weight: 4, arbitrary: word },
    fc.constantFrom(
      '\\*',
      '&lt;',
      '&amp;copy;',
      '<3',
      'a < b',
      'List<Integer>',
      '$a<b$',
      '  \n',
      '\n',
      '![](x.png)',
      '魚を食べる。',
    ),
    fc.tuple(fc.constantFrom('*', '**', '_', '`', '~~'), tie('many')).map(([mark, text]) => `${mark}${text}${mark}`),
    tie('many').map((text) => `[${text}](https://example.org/x "t")`),
    word.map((text) => `![${text}](x.png)`),
    word.map((text) => `<https://example.org/${text}>`),
  ),
  many: fc.array(tie('one'), { minLength: 1, maxLength: 5 }).map((parts) => parts.join(' ')),
})).many;
const block = fc.letrec<{ one: string; many: string }>((tie) => ({
  one: fc.oneof(
    { weight: 3, arbitrary: inline },
    fc.tuple(fc.integer({ min: 1, max: 6 }), inline).map(([level, text]) => `${'#'.repeat(level)} ${text}`),
    inline.map((text) => `${text.replaceAll('\n', ' ')}\n---`),
    inline.map((text) => `    ${text}`),
    inline.map((text) => `~~~js\n${text}\n~~~`),
    fc
      .tuple(inline, inline)
      .map(([a, b]) => `| ${a.replaceAll(/\s/g, ' ')} | b \\| c |\n| --- | :-: |\n| ${b.replaceAll(/\s/g, ' ')} | |`),
    tie('many').map((text) => text.replaceAll(/^/gm, '> ')),
    fc
      .tuple(fc.constantFrom('- ', '* ', '1. ', '- [x] '), tie('many'))
      .map(([mark, text]) => mark + text.replaceAll('\n', `\n${' '.repeat(mark.length)}`)),
    fc.constantFrom('---', '***', '[ref]: https://example.org'),
  ),
  many: fc.array(tie('one'), { minLength: 1, maxLength: 4 }).map((parts) => parts.join('\n\n')),
})).many;

// 20,000 documents take minutes of a core
describe('passages of random Markdown', { timeout: 900_000 }, () => {
  test('have every character that a renderer shows, in order', () => {
    fc.assert(
      fc.property(block, fc.constantFrom('\n', '\r\n', '\r'), (markdown, lineEnd) => {
        const text = markdown.replaceAll('\n', lineEnd);
        expect(firstLost(rendered(text), seenBy(text))).toBeUndefined();
      }),
      { numRuns: RUNS },
    );
  });

  test('have every character of words that are written once', () => {
    fc.assert(
      fc.property(fc.array(block, { minLength: 1, maxLength: 8 }), (blocks) => {
        let count = 0;
        const markdown = blocks
          .join('\n\n')
          .replaceAll(/(?<![a-z/.])[a-z]{5,9}(?![a-z/.:])/g, () => `word${(count++).toString(16)}x`);
        const seen = seenBy(markdown);
        const wanted = rendered(markdown).match(/word[0-9a-f]+x/g) ?? [];
        expect(wanted.filter((one) => !seen.includes(one))).toEqual([]);
      }),
      { numRuns: RUNS / 4 },
    );
  });

  test('of any characters at all have them, and are short enough for a model of 256 tokens', () => {
    const document = fc.oneof(
      fc.string({ unit: 'binary', maxLength: 2_000 }),
      fc.string({
        unit: fc.constantFrom('魚', 'ก', 'ั', '👩', '\u200D', '\u0301', 'ß', '\n', ' ', '。', '한', '\t', 'ab'),
        maxLength: 3_000,
      }),
      fc.string({
        unit: fc.constantFrom(
          '*',
          '_',
          '`',
          '[',
          ']',
          '(',
          ')',
          '<',
          '>',
          '!',
          '#',
          '-',
          '\n',
          ' ',
          '|',
          '~',
          '&',
          'a',
        ),
        maxLength: 300,
      }),
    );
    fc.assert(
      fc.property(document, (text) => {
        // a NUL is refused before, a lone surrogate is no UTF-8, and HTML has a test of its own
        const markdown = text.toWellFormed().replaceAll('\0', '').replaceAll('<', '\\<');
        const passages = allPassages(markdown, new ReadingNotes());
        expect(firstLost(rendered(markdown), seenBy(markdown))).toBeUndefined();
        expect(Math.max(0, ...passages.map((passage) => weightOf(embeddedText(passage))))).toBeLessThanOrEqual(140);
      }),
      { numRuns: RUNS / 2 },
    );
  });
});

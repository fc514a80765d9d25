// Markdown that was made to break parsers ends as passages, with every word in them. How long it takes is measured by the
// fuzzer, under its clock of 5 s (tools/fuzz); here only that it ends, and by what work it is bounded.

import { describe, expect, test } from 'vitest';
import { ReadingNotes } from '@shoal/worker/files/reading-notes';
import { HARD_MARKDOWN } from '../testing/hard-markdown.ts';
import { parseMarkdown } from './parse-markdown.ts';
import { allPassages, embeddedText } from './passages.ts';

const LENGTH = process.env['SHOAL_TEST_NIGHTLY'] === '1' ? 100_000 : 1_000;

test.each(Object.entries(HARD_MARKDOWN))('%s: a document ends as passages', (_, make) => {
  const passages = allPassages(`${make(LENGTH)}\n\nwhat stands behind it\n`, new ReadingNotes());
  const shown = passages.map((passage) => embeddedText(passage)).join('\n');
  expect(shown).toMatch(/what stands behind it/);
});

/** Of each piece that was parsed. */
const linesOf = (document: string): number[] => {
  const lines: number[] = [];
  for (const piece of parseMarkdown(document))
    if (piece.kind === 'tree')
      lines.push(piece.nodes.at(-1)!.position!.end.line - piece.nodes[0]!.position!.start.line + 1);
  return lines;
};

describe('what is parsed at once', () => {
  test.each(['headings with a line under them', 'rules that are lists', 'empty items', 'headings'])(
    'is no more than 1,000 lines of %s',
    (name) => {
      const lines = linesOf(HARD_MARKDOWN[name]!(9_000));
      expect(lines.length).toBeGreaterThan(1);
      expect(Math.max(...lines)).toBeLessThanOrEqual(1_000);
    },
  );

  test('of a list are its items, which go on with their numbers', () => {
    const items = Array.from({ length: 1_200 }, (_, at) => `7. item ${at}\n   goes on\n`).join('');
    expect(linesOf(items).length).toBeGreaterThan(1);
    const shown = allPassages(items, new ReadingNotes())
      .flatMap(({ text }) => text.split('\n'))
      .filter((line) => line !== '');
    expect(shown).toEqual(Array.from({ length: 1_200 }, (_, at) => `${7 + at}. item ${at} goes on`));
  });

  test('leaves links to what a document defines anywhere', () => {
    const far = `${'A line with [a link][Far  Away], [another] and [none].\n\n'.repeat(900)}[far away]: x\n[ANOTHER]: y\n`;
    const shown = allPassages(far, new ReadingNotes()).map(({ text }) => text);
    expect(shown.join('\n')).not.toContain('[a link]');
    expect(shown.join('\n').match(/A line with a link, another and \[none\]\./g)?.length).toBe(900);
  });
});

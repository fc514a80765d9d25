import { describe, expect, test } from 'vitest';
import { answeringPassages, embeddedText } from './passages.ts';

const sentence = 'A lease that is not renewed runs out, and the queue gives the job to somebody else. ';
const textsOf = (markdown: string) => answeringPassages(markdown).map((passage) => passage.text);

describe('passages', () => {
  test('carry the headings above them, in every notation', () => {
    const passages = answeringPassages(
      `Intro without any heading above it.\n\n# Guide\n\n## Lease ` +
        `##\n${sentence}\n\nRenewal\n-------\n${sentence}\n<h2 align="center">Other</h2>\n\n${sentence}\n# ` +
        `Second\n${sentence}`,
    );
    expect(passages.map((passage) => passage.headings)).toEqual([
      [],
      ['Guide', 'Lease'],
      ['Guide', 'Renewal'],
      ['Guide', 'Other'],
      ['Second'],
    ]);
    expect(embeddedText(passages[1]!)).toBe(`Guide › Lease: ${sentence.trim()}`);
  });

  test('join short paragraphs and never cross a heading', () => {
    expect(textsOf(`# A\n\n${sentence}\n\n${sentence}\n\n# B\n\n${sentence}`)).toEqual([
      `${sentence.trim()}\n${sentence.trim()}`,
      sentence.trim(),
    ]);
  });

  test('of a long paragraph end with sentences and have 60 to 95 words', () => {
    const passages = textsOf(sentence.repeat(30));
    expect(passages.length).toBeGreaterThan(5);
    expect(passages.every((text) => text.endsWith('.') && text.split(/\s+/).length <= 95)).toBe(true);
    expect(passages.join(' ')).toBe(sentence.repeat(30).trim());
  });

  test('of text without sentences or spaces are bounded as well', () => {
    expect(textsOf('word '.repeat(1_000)).every((text) => text.split(/\s+/).length <= 98)).toBe(true);
    expect(Math.max(...textsOf('x'.repeat(50_000)).map((text) => text.length))).toBeLessThan(1_000);
  });

  test('show what a reader sees: no badges, addresses, comments, front matter or HTML', () => {
    const markdown =
      '---\ntitle: x\n---\n<!-- hidden\nnote -->\n![build](https://example.org/b.svg) Read [the ' +
      '**guide**](https://example.org) and <b>then</b> the [reference][1].\n\n[1]: https://example.org/ref\n';
    expect(textsOf(markdown)).toEqual(['Read the guide and then the reference.']);
  });

  test('join the lines of a paragraph, and keep those of a list', () => {
    expect(textsOf('A lease that is\nnot renewed\nruns out:\n- first item of\n  the list\n- second item')).toEqual([
      'A lease that is not renewed runs out:\n- first item of the list\n- second item',
    ]);
  });

  test('keep the cells of a table and drop its rules', () => {
    expect(textsOf('| setting | meaning |\n| --- | :-: |\n| leaseMs | how long a claim lasts |')).toEqual([
      'setting | meaning\nleaseMs | how long a claim lasts',
    ]);
  });

  test('keep the beginning of code, in which nothing is Markdown', () => {
    const code = [
      '```sh',
      '# not a heading',
      ...Array.from({ length: 20 }, (_, i) => `npm run build-${i}`),
      '```',
    ].join('\n');
    const [passage, ...more] = answeringPassages(`# Build\n\nRun this to build every package:\n\n${code}`);
    expect(more).toEqual([]);
    expect(passage).toEqual({
      headings: ['Build'],
      text:
        `Run this to build every package:\n# not a ` +
        `heading\n${Array.from({ length: 7 }, (_, i) => `npm run build-${i}`).join('\n')}`,
    });
  });

  test('of a fence that never ends, inside a list, are none too many', () => {
    expect(textsOf('- first do this and that, please\n\n    ```js\n    const answer = 42;\n')).toEqual([
      '- first do this and that, please\nconst answer = 42;',
    ]);
  });

  test('that say next to nothing are left out', () => {
    expect(
      answeringPassages(
        '# Title\n\nMIT\n\n---\n\n## License\n\nThis package is distributed under the terms of some licence.\n',
      ),
    ).toEqual([]);
  });
});

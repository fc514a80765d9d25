import { describe, expect, test } from 'vitest';
import { ReadingNotes } from '@shoal/worker/files/reading-notes';
import { frontMatterEnd } from './front-matter.ts';
import { visibleBlocks } from './visible-blocks.ts';

function read(markdown: string) {
  const notes = new ReadingNotes();
  const texts = visibleBlocks(markdown, { notes, hasImages: true }).map(({ text }) => text);
  return { texts, counts: notes.counts };
}

const textsOf = (markdown: string) => read(markdown).texts;

describe('visible text of Markdown', () => {
  test.each([
    ['Use Map<String, List<Integer>> here.', 'Use Map<String, List<Integer>> here.'],
    ['a `List<String>` there', 'a List<String> there'],
    ['if n <max, all is well.\nLater -> done.', 'if n <max, all is well. Later -> done.'],
    ['say <your name>, then <Object> and <T>', 'say <your name>, then <Object> and <T>'],
    ['\\*not\\* &lt;b&gt; &copy; a\\_b', '*not* <b> © a_b'],
    ['H<sub>2</sub>O, <b>then</b> <br>x', 'H2O, then\nx'],
    ['math $a<b$ and $x_1*y*z$', 'math $a<b$ and $x_1yz$'],
    ['![a picture](x.png) [text](y) <https://example.org/a>', 'a picture text https://example.org/a'],
    ['[no such reference][x]', '[no such reference][x]'],
    ['hard  \nbreak\\\nhere', 'hard\nbreak\nhere'],
    ['~~gone~~ https://example.org/*a*', 'gone https://example.org/*a*'],
    ['see <script>alert(1)</script>this', 'see this'],
    ['see <script>alert(1)', 'see alert(1)'],
  ])('of %j is %j', (markdown, text) => {
    expect(textsOf(markdown)).toEqual([text]);
  });

  test('is cut into blocks: items, rows, code, quotations, headings of both kinds', () => {
    expect(
      textsOf(
        'Set\next\n===\n\n- [x] done\n- one\n  1. two\n\n> quote\n\n| a | b \\| c |\n|-|-|\n| `x \\| y` | |\n\n    indented *code*\n',
      ),
    ).toEqual(['Set ext', '- [x] done', '- one', '1. two', 'quote', 'a | b | c', 'x | y', 'indented *code*']);
  });

  test('in HTML is what stands between tags, with references decoded', () => {
    expect(
      textsOf(
        '<details><summary>More &amp; more</summary>\n\nInside *it*\n\n</details>\n\n<div align=center><h2>H &#50;</h2>' +
          '<img src=x alt="A &quot;picture&quot;">x<table><tr><td>1</td><td>2</td></tr></table>if a < b</div>',
      ),
    ).toEqual(['More & more', 'Inside it', 'H 2', 'A "picture"x\n1 2\nif a < b']);
  });

  test('is text behind a comment, a script or a declaration that is never closed', () => {
    for (const open of ['<!-- ', '<script>', '<![CDATA[', '<? '])
      expect(textsOf(`<div>\n${open}the rest`).join('\n')).toContain('the rest');
  });

  test('has a count of everything that is left out', () => {
    expect(
      read(
        '---\ntitle: x\n---\n<!-- one --> a <!-- two -->\n\n<style>p {}</style>\n\n![](x.png) <img src=y> [a](b "title")[^1]\n\n' +
          '[^1]: note\n\n[r]: https://example.org "title"\n',
      ),
    ).toEqual({
      texts: ['a', 'a', 'note'],
      counts: {
        frontMatter: 1,
        htmlComments: 2,
        scripts: 1,
        imagesWithoutText: 2,
        definitions: 1,
        linkTitles: 2,
        footnoteLabels: 2,
      },
    });
  });

  test('of what no person nests or marks so is text with its marks, and counted', () => {
    for (const markdown of [
      '> '.repeat(3_000),
      '- '.repeat(3_000),
      '[^1]: '.repeat(3_000),
      '*a_ '.repeat(3_000),
      '['.repeat(30_000),
    ]) {
      const { texts, counts } = read(`${markdown}end`);
      expect(texts.join('\n')).toContain('end');
      expect(texts.join('').replaceAll(/\s/g, '').length).toBe(`${markdown}end`.replaceAll(/\s/g, '').length);
      expect(counts).toEqual({ plainParts: 1 });
    }
  });

  test('of a long document is that of its parts, links to other parts included', () => {
    const paragraph = 'A sentence of prose with a [link][far] and *emphasis*.';
    const { texts, counts } = read(
      `${`${paragraph}\n\n`.repeat(2_600)}    code behind\n\n[far]: https://example.org\n`,
    );
    expect(texts.length).toBe(2_601);
    expect(new Set(texts)).toEqual(new Set(['A sentence of prose with a link and emphasis.', 'code behind']));
    expect(counts).toEqual({ definitions: 1 });
  }, 30_000);
});

describe('front matter', () => {
  test.each([
    '---\ntitle: x\n---\n',
    '---\r\ntitle: x\r\ntags:\r\n  - a\r\n\r\nmore: |\r\n  text\r\n---\r\n',
    '---\na: 1\n...\n',
    '+++\ntitle = "x"\ntags = [\n  "a",\n]\n[params]\nb = """\nmore\n"""\n+++\n',
  ])('is %j', (matter) => {
    expect(frontMatterEnd(`${matter}text`)).toBe(matter.length);
  });

  test.each([
    '---\n\nThe introduction says something important.\n\n---\n\nMore.',
    '---\nThe introduction says something.\n---\n',
    '---\n- a\n- list\n---\n',
    '---\na: [\n---\n',
    '---\n---\n',
    '---\n# only a comment\n---\n',
    '---\na: 1\n',
    ' ---\na: 1\n---\n',
    '----\na: 1\n----\n',
    '+++\na list of sums\n+++\n',
    'x\n---\na: 1\n---\n',
  ])('is not %j', (text) => {
    expect(frontMatterEnd(text)).toBe(0);
  });
});

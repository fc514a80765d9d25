import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import {
  anchorsOf,
  checkDecisions,
  checkDocs,
  checkLengths,
  checkPages,
  checkPointers,
  checkSwitches,
  pagesOf,
} from './docs-check.ts';

test('every link, anchor and path of the pages leads somewhere, and every page is what it promises', () => {
  const root = join(import.meta.dirname, '..');
  expect(pagesOf(root)).toEqual(expect.arrayContaining(['README.md', 'ARCHITECTURE.md', 'docs/index.md']));
  expect(checkDocs(root)).toEqual([]);
});

test('a link to a page that is gone is found, with its line', () => {
  const folder = folderWith({
    'README.md': 'Fine: [here](docs/here.md).\nNot: [gone](docs/gone.md).',
    'docs/here.md': '',
  });
  expect(checkPages(folder, ['README.md'])).toEqual([
    'README.md:2: the link to docs/gone.md leads nowhere: there is no docs/gone.md',
  ]);
});

test('a link that is broken over two lines is followed like any other', () => {
  const folder = folderWith({ 'a.md': 'See [what\nis gone](b.md).\n\nAnd `code](c.md)\nhere`.' });
  expect(checkPages(folder, ['a.md'])).toEqual(['a.md:2: the link to b.md leads nowhere: there is no b.md']);
});

test('links are followed from the folder of their page, and must stay inside the repository', () => {
  const folder = folderWith({ 'docs/a.md': '[up](../README.md) [away](../../etc)\n\n[b]: c.md', 'README.md': '' });
  expect(checkPages(folder, ['docs/a.md'])).toEqual([
    'docs/a.md:1: the link to ../../etc leads nowhere: it leaves the repository',
    'docs/a.md:3: the link to c.md leads nowhere: there is no docs/c.md',
  ]);
});

test('an anchor that no heading has is found, in the same page and in another', () => {
  const folder = folderWith({
    'a.md': '# One\n[there](#one) [not](#two)\n[over](b.md#a-b) [not](b.md#b-a)',
    'b.md': '## `A` b?\n```\n# b a\n```\n',
  });
  expect(checkPages(folder, ['a.md'])).toEqual([
    'a.md:2: the link to #two leads nowhere: a.md has no #two',
    'a.md:3: the link to b.md#b-a leads nowhere: b.md has no #b-a',
  ]);
});

test('an anchor of a line is an anchor of a file that has so many', () => {
  const folder = folderWith({ 'a.md': '[there](b.ts#L2) [not](b.ts#L3)', 'b.ts': 'one\ntwo' });
  expect(checkPages(folder, ['a.md'])).toEqual(['a.md:1: the link to b.ts#L3 leads nowhere: b.ts has no #L3']);
});

test('a path in code marks that is gone is found; patterns and what stands in a block are not looked at', () => {
  const folder = folderWith({
    'a.md': '`libs/here.ts:12` `sh tools/gone.sh now` `libs/*/src` `docs/<name>.md`\n```\ncat libs/gone.ts\n```\n',
    'libs/here.ts': '',
  });
  expect(checkPages(folder, ['a.md'])).toEqual(['a.md:1: there is no tools/gone.sh']);
});

test('anchors are those of GitHub: signs left out, a number where a heading comes again', () => {
  expect([...anchorsOf('# Nothing large, through a script\n## `x` & [y](z.md)\n## Same\n### Same')]).toEqual([
    'nothing-large-through-a-script',
    'x--y',
    'same',
    'same-1',
  ]);
});

test('a map that grew, a release that is too long and a line that is too wide are found', () => {
  const release = ['## 0.1.0', ...Array.from({ length: 81 }, () => '- x'), 'y'.repeat(141)].join('\n');
  expect(checkLengths('word '.repeat(2_201), `# Changelog\n\n## Unreleased\n\n${release}\n`)).toEqual([
    'ARCHITECTURE.md has 2201 words, 2200 at most',
    'CHANGELOG.md: 0.1.0 has 82 lines, 80 at most',
    expect.stringMatching(/^CHANGELOG.md: 0.1.0: a line has 141 columns/),
  ]);
});

test('a decision that lacks a field, or that is not listed, is found', () => {
  const page = '# Decisions\n\n## A b\n- **why:** x\n- **instead of:** y\n- **replaced by:** holds\n';
  expect(checkDecisions('a.md', page, '[A b](a.md#a-b)')).toEqual(['a.md: "A b" does not say **measured**']);
  expect(checkDecisions('a.md', page, '')).toContain('a.md: "A b" is not in the list');
});

test('a variable that a source reads and no page names is found, and one that a page has and no source', () => {
  const sources = [
    "process.env['SHOAL_A'] ?? process.env.SHOAL_B",
    'std::getenv("SHOAL_C")',
    'echo "${SHOAL_D:-}"',
    'function f({ SHOAL_E: value }) {}',
  ].map((content) => ({ path: 'a', content }));
  const found = checkSwitches(sources, '| `SHOAL_CD` | `SHOAL_B` |', '| `SHOAL_A` |');
  expect(found.map((line) => line.split(',', 1)[0])).toEqual([
    'SHOAL_C is read',
    'SHOAL_D is read',
    'SHOAL_E is read',
    'SHOAL_CD stands in docs/switches.md',
  ]);
});

test('a comment that points to a page or a heading that is gone is found', () => {
  const folder = folderWith({ 'docs/a.md': '# Here\n' });
  const content = '// See docs/a.md.\n// Why: docs/a.md#here\n// Why: docs/a.md#there, docs/b.md\n';
  expect(checkPointers(folder, [{ path: 'x.ts', content }])).toEqual([
    'x.ts:3: docs/a.md has no #there',
    'x.ts:3: there is no docs/b.md',
  ]);
});

function folderWith(files: Readonly<Record<string, string>>): string {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-docs-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), content);
  }
  return folder;
}

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { ResultRow } from '../bench/rig/results.ts';
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
import { checkFigures, figuresIn, readTable } from './docs-figures.ts';

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

test('a row of a table with more cells than its head is found, where a "|" stands in code marks', () => {
  const rows = ['| a | b |', '| --- | --- |', '| `x\\|y` | 1 |', '| `x|y` | 1 |', '', '| one |', '| --- |', '| 1 |'];
  const found = ['page.md:4: 3 cells below a head of 2: write a "|" inside of one as \\|'];
  expect(checkPages(folderWith({ 'page.md': rows.join('\n') }), ['page.md'])).toEqual(found);
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
  const release = ['## 0.1.0', ...Array.from({ length: 91 }, () => '- x'), 'y'.repeat(141)].join('\n');
  expect(checkLengths('word '.repeat(2_201), `# Changelog\n\n## Unreleased\n\n${release}\n`)).toEqual([
    'ARCHITECTURE.md has 2201 words, 2200 at most',
    'CHANGELOG.md: 0.1.0 has 92 lines, 90 at most',
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

const MEASURED = new Map([
  [
    'gpu/a',
    [
      rowOf('four GPUs', { texts_per_s: 537_600, ratio_to_one_gpu: 3.02, first_ms: 46, last_ms: 80, command_mb: 302 }),
      rowOf('an older one', { texts_per_s: 1 }),
    ],
  ],
]);

test('a measured figure without a line in the table is found, and one with a line and its row is not', () => {
  const text = 'It carries\n538 k texts/s, 3.02 times what one gives. A first run takes 46 to 80 ms, and holds 0.3 GB.';
  expect(figuresOf(text, [])).toHaveLength(4);
  const table = ['538 k texts/s|texts_per_s', '3.02 times|ratio_to_one_gpu', '46 to 80 ms|first_ms'];
  expect(figuresOf(text, [...table, '46 to 80 ms|last_ms', '0.3 GB|command_mb'])).toEqual([]);
  expect(figuresOf(text, [...table, '0.3 GB|command_mb'])).toEqual([
    'docs/figures.md: "46 to 80 ms" of docs/a.md: one of its numbers has no line',
  ]);
});

test('a figure that is not what its row says is found, and so is a row or a figure of it that is gone', () => {
  const about = 'docs/figures.md: "540 k texts/s" of docs/a.md';
  expect(figuresOf('540 k texts/s', ['540 k texts/s|texts_per_s'])).toEqual([]);
  expect(figuresOf('530 k texts/s', ['530 k texts/s|texts_per_s'])).toEqual([
    'docs/figures.md: "530 k texts/s" of docs/a.md: its row says texts_per_s = 537600',
  ]);
  expect(figuresOf('540 k texts/s', ['540 k texts/s|rows_per_s'])).toEqual([
    `${about}: no row has gpu/a, 2026-11-26, four GPUs, rows_per_s`,
  ]);
  expect(figuresOf('1,540 k texts/s', ['540 k texts/s|texts_per_s'])).toContain(`${about} is not on that page`);
  expect(figuresOf('Nothing.', ['540 k texts/s|texts_per_s'])).toEqual([`${about} is not on that page`]);
});

test('figures are numbers with a unit of measurement; limits, defaults and code are none', () => {
  const measured =
    'At 11.5 Mtok/s, 12,000 short texts a second, 2 × the rate, 15 % less, least cosine to fp32 0.99998, 4.6 ms (p50).';
  expect(figuresIn(measured)).toHaveLength(6);
  const limits =
    'Up to 256 texts, 64 KiB, 80 % of `maxmemory`, 60 s, rows × 384, cosine 0.9999 or more, `5 texts/s`, tries 3 times.';
  expect(figuresIn(limits)).toEqual([]);
});

/** What is wrong with a page of this text and a table of these lines, each "words|figure". */
function figuresOf(text: string, lines: readonly string[]): string[] {
  const table = lines.map((line) => {
    const [written, figure] = line.split('|');
    return `| docs/a.md | ${written} | gpu/a | 2026-11-26 | four GPUs | ${figure} |`;
  });
  return checkFigures([{ page: 'docs/a.md', text }], readTable(table.join('\n')), MEASURED);
}

function rowOf(of: string, figures: ResultRow['figures']): ResultRow {
  return { date: '2026-11-26', commit: null, machine: null, command: null, case: of, figures, bar: null, held: null };
}

function folderWith(files: Readonly<Record<string, string>>): string {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-docs-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), content);
  }
  return folder;
}

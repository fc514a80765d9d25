import { mkdirSync, mkdtempSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { parsePart, partId, partJobData } from '@shoal/contract';
import { checkInputs } from '../input/files.ts';
import { filesIn, groupRanges, planParts, refuseOwnObjects, type PlanTerms } from './plan-parts.ts';

const PARQUET = join(import.meta.dirname, '../../fixtures/parquet/codec-zstd.parquet');
const NO_ROWS = join(import.meta.dirname, '../../fixtures/parquet/no-rows.parquet');
const folder = mkdtempSync(join(tmpdir(), 'shoal-plan-'));
afterAll(() => rmSync(folder, { recursive: true }));
const TERMS: PlanTerms = {
  place: { name: '/data/out', output: { kind: 'folder', folder: '/data/out' } },
  partRows: 2,
  textField: undefined,
  idField: undefined,
  onError: 'fail',
  dtype: 'f32',
  vectorField: undefined,
  withText: false,
  model: { name: 'm@1', truncate: 'end' },
  isTrial: false,
};

function file(name: string, content: string): string {
  const path = join(folder, name);
  writeFileSync(path, content);
  return path;
}

async function plan(paths: readonly string[], terms: Partial<PlanTerms> = {}) {
  return planParts(await checkInputs(paths, undefined), { ...TERMS, ...terms });
}

test('files of lines become parts that a worker takes, in the order of the files', async () => {
  const paths = [
    file('a.jsonl', '{"text":"1","id":7}\n{"text":"2","id":8}\n\n{"text":"3","id":9}'),
    file('b.txt', 'x\n'),
  ];
  const { parts, rows, run } = await plan(paths);
  expect(rows).toBe(5);
  expect(parts.map(({ number, of, source, format, range }) => [number, of, source, format, range])).toEqual([
    [
      0,
      3,
      expect.objectContaining({ path: paths[0] }),
      'jsonl',
      { kind: 'bytes', from: 0, to: 40, firstLine: 1, lines: 2 },
    ],
    [
      1,
      3,
      expect.objectContaining({ path: paths[0] }),
      'jsonl',
      { kind: 'bytes', from: 40, to: 60, firstLine: 3, lines: 2 },
    ],
    [
      2,
      3,
      expect.objectContaining({ path: paths[1] }),
      'text',
      { kind: 'bytes', from: 0, to: 2, firstLine: 1, lines: 1 },
    ],
  ]);
  for (const part of parts) {
    const data: unknown = JSON.parse(JSON.stringify(partJobData(part)));
    expect(parsePart(partId(part), 'part', data).part).toEqual(part);
    expect(part).toMatchObject({ run, output: { hasIds: true, folder: '/data/out' } });
  }
});

test('row groups of Parquet go together up to the size of a part, and their columns go along', async () => {
  const { parts, rows } = await plan([PARQUET], { partRows: 45 });
  expect(rows).toBe(60);
  expect(parts.every(({ output }) => output.carries === true && !output.hasIds)).toBe(true);
  expect(parts.reduce((sum, { range }) => sum + (range.kind === 'groups' ? range.rows : 0), 0)).toBe(60);
  for (const part of parts) expect(() => parsePart(partId(part), 'part', partJobData(part))).not.toThrow();
});

test('row groups are not cut, and one without rows makes no part', () => {
  const groups = [0, 5, 5, 0, 30, 5, 0].map((rows) => ({ rows }));
  expect(groupRanges('f', groups, 10)).toEqual([
    { kind: 'groups', from: 1, to: 4, firstRow: 0, rows: 10 },
    { kind: 'groups', from: 4, to: 5, firstRow: 10, rows: 30 },
    { kind: 'groups', from: 5, to: 7, firstRow: 40, rows: 5 },
  ]);
  expect(() => groupRanges('f', [{ rows: 20_000_000 }], 10)).toThrow('row group 1 of f has 20,000,000 rows');
});

test('the same command asks for the same run, another file, folder or option for another', async () => {
  const path = file('same.txt', 'a\nb\nc\n');
  const { run } = await plan([path]);
  expect((await plan([path])).run).toBe(run);
  const others: Partial<PlanTerms>[] = [
    { place: { name: '/data/other', output: { kind: 'folder', folder: '/data/other' } } },
    { partRows: 3 },
    { dtype: 'f16' },
    { onError: 'skip' },
    { isTrial: true },
    { model: { name: 'm@2', truncate: 'end' } },
  ];
  const runs = await Promise.all(others.map(async (terms) => (await plan([path], terms)).run));
  utimesSync(path, 1, 1);
  expect(new Set([run, ...runs, (await plan([path])).run]).size).toBe(others.length + 2);
});

test.each([
  ['nothing in it', ['empty.txt', ''], /empty\.txt has no rows/],
  [
    'a form that is not cut',
    ['t.csv', 'text\na\n'],
    /t\.csv is of csv; Parquet, JSONL and plain text are cut\n.*-o FILE/s,
  ],
])('%s is refused by name', async (_what, [name, content], message) => {
  await expect(plan([file(name!, content!)])).rejects.toThrow(message);
});

test('a file given twice, Parquet beside lines, and a wrong column are refused', async () => {
  const path = file('twice.txt', 'a\n');
  await expect(plan([path, path])).rejects.toThrow('is given twice');
  await expect(plan([path, PARQUET])).rejects.toThrow('some of the inputs are no Parquet files');
  await expect(plan([PARQUET], { textField: 'nowhere' })).rejects.toThrow('has no column "nowhere"');
});

test('a folder stands for the files in it that can be cut', async () => {
  const inner = join(folder, 'inner');
  const { signal } = new AbortController();
  mkdirSync(inner);
  await expect(filesIn([inner], signal)).rejects.toThrow('has no file that can be cut');
  for (const name of ['b.jsonl', 'a.txt', '.hidden.txt', 'notes.md']) writeFileSync(join(inner, name), '');
  expect(await filesIn(['x.md', inner], signal)).toEqual(['x.md', join(inner, 'a.txt'), join(inner, 'b.jsonl')]);
});

test('what a command writes is never what it reads, by whatever name the folder is given', async () => {
  const read = join(folder, 'read');
  mkdirSync(read);
  symlinkSync(read, join(folder, 'link'));
  await expect(refuseOwnObjects([read], [], `${folder}/link/`)).rejects.toThrow('would take its objects for sources');
  await expect(refuseOwnObjects(['s3://b/in/'], [], 's3://b/in/')).rejects.toThrow(
    'would take its objects for sources',
  );
  for (const [own, output] of [
    [join(folder, 'link', 'part-00007.parquet'), `${read}/`],
    ['s3://b/out/part-00000.parquet', 's3://b/out/'],
  ] as const)
    await expect(refuseOwnObjects([own], [own], output)).rejects.toThrow(
      `${own} is named as an object of a run in ${output}`,
    );
  await refuseOwnObjects([read], [join(read, 'part-00000.parquet')], `${read}/out/`);
  const others = [join(read, 'part-1.parquet'), join(folder, 'part-00000.parquet')];
  await refuseOwnObjects(others, others, `${read}/`);
  await refuseOwnObjects(['s3://b/in/'], ['s3://b/in/part-00000.parquet'], 's3://b/in/out/');
});

test('Parquet files without rows are no damaged ones', async () => {
  await expect(plan([NO_ROWS])).rejects.toThrow('no-rows.parquet has no rows');
});

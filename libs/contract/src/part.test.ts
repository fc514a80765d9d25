// Parts as data: what is right is read back, whatever is wrong is named, and names and digests depend on what is asked
// for alone.

import { expect, test } from 'vitest';
import { isShoalError } from './errors.ts';
import { isWithin, placesOf } from './part-places.ts';
import {
  parsePart,
  partCheckpoint,
  partFingerprint,
  partId,
  partJobData,
  partName,
  partRows,
  partsQueue,
  partTemporary,
  runId,
  type Part,
} from './part.ts';
import {
  decodePartResult,
  encodePartResult,
  encodeRunEntry,
  manifestName,
  manifestOf,
  type PartResult,
} from './part-result.ts';
import { openResult } from './result-format.ts';

const OUTPUT = {
  kind: 'folder',
  folder: '/data/out',
  stem: 'docs',
  format: 'parquet',
  dtype: 'f16',
  hasIds: true,
} as const;
const PART: Part = {
  run: '0123456789abcdef',
  number: 2,
  of: 3,
  source: { kind: 'file', path: '/data/in/docs.jsonl', bytes: 1_000, modifiedMs: 1_790_000_000_123.5 },
  format: 'jsonl',
  range: { kind: 'bytes', from: 600, to: 1_000, firstLine: 61, lines: 40 },
  onError: 'skip',
  output: OUTPUT,
  model: { name: 'minilm@53aa51172d14', truncate: 'end' },
};
const RESULT: PartResult = {
  name: 'docs-00002.parquet',
  written: 'docs-00002.parquet.t-1',
  rows: 39,
  dims: 384,
  bytes: 30_000,
  sha256: 'ab'.repeat(32),
  truncated: 1,
  tokens: 512,
  refused: { rows: 1, first: [{ line: 70, problem: 'docs.jsonl, line 70: not valid JSON' }] },
};

function problemOf(work: () => unknown): string | undefined {
  try {
    return void work();
  } catch (error) {
    return isShoalError(error) ? `${error.code}: ${error.message}` : String(error);
  }
}
const parsed = (part: Part, jobId = partId(part)) => parsePart(jobId, 'part', partJobData(part));

test('a part is read back with its terms: bulk, kept for a day', () => {
  expect(parsePart(partId(PART), 'part', { ...partJobData(PART), tenant: 'acme' })).toMatchObject({
    jobId: 'part-0123456789abcdef-00002',
    part: PART,
    rows: 40,
    class: 'bulk',
    tenant: 'acme',
    resultTtlMs: 86_400_000,
    fingerprint: partFingerprint(PART),
  });
});

test('names are golden: of the queue, the object, the one that is being written and the checkpoint', () => {
  expect(partsQueue('org/Name@1')).toBe('parts-org--name');
  expect([partName(PART), partTemporary(PART, 'a1:7'), partCheckpoint(PART), manifestName(OUTPUT)]).toEqual([
    'docs-00002.parquet',
    'docs-00002.parquet.a1-7',
    'docs-00002.parquet.checkpoint',
    'docs.manifest.json',
  ]);
  expect(partFingerprint(PART)).toBe('71b6dc1061ceab01');
});

test('digests depend on no order of keys, and on every value', () => {
  const turned = Object.fromEntries(Object.entries(PART).toReversed()) as unknown as Part;
  expect(partFingerprint(turned)).toBe(partFingerprint(PART));
  const run = { sources: [PART.source], output: OUTPUT, options: { model: 'm@1', rows: 65_536 } };
  expect(runId(run)).toMatch(/^[0-9a-f]{16}$/);
  expect(runId({ ...run, options: { ...run.options, rows: 65_537 } })).not.toBe(runId(run));
});

test.each<[string, Partial<Part>]>([
  ['must be less than part.of', { number: 3 }],
  ['a Parquet file is cut into row groups', { format: 'parquet' }],
  ['it ends at 5, before it begins at 6', { range: { kind: 'bytes', from: 6, to: 5, firstLine: 1, lines: 0 } }],
  ['byte 1001 of a file of 1000', { range: { kind: 'bytes', from: 0, to: 1_001, firstLine: 1, lines: 1 } }],
  ['columns go along from Parquet alone', { output: { ...OUTPUT, carries: true } }],
  ['part.source.path: must be an absolute path', { source: { ...PART.source, path: '/data/../etc/x' } as never }],
  ['part.output.folder: must be an absolute path', { output: { ...OUTPUT, folder: 'out' } }],
  ['part.output.stem: must be 1 to 200', { output: { ...OUTPUT, stem: '../x' } }],
  ['unknown field "rows" in part', { rows: 7 } as never],
])('refused with the reason: %s', (problem, change) => {
  expect(problemOf(() => parsed({ ...PART, ...change } as Part))).toContain(problem);
});

test('an id or a fingerprint of another part, another name and a later version are refused', () => {
  expect(problemOf(() => parsed(PART, 'part-0123456789abcdef-00001'))).toContain(
    'its id must be part-0123456789abcdef-00002',
  );
  expect(
    problemOf(() => parsePart(partId(PART), 'part', { ...partJobData(PART), fingerprint: 'f'.repeat(16) })),
  ).toContain('the digest of its part');
  expect(problemOf(() => parsePart(partId(PART), 'embed', partJobData(PART)))).toContain('jobs named "part"');
  expect(problemOf(() => parsePart(partId(PART), 'part', { ...partJobData(PART), v: 3 }))).toContain(
    'JOB_VERSION_UNKNOWN',
  );
});

test('a range of row groups counts its rows', () => {
  const range = { kind: 'groups', from: 1, to: 3, firstRow: 100, rows: 200 } as const;
  const part: Part = { ...PART, format: 'parquet', range, output: { ...OUTPUT, carries: true } };
  expect([partRows(part), parsed(part).rows]).toEqual([200, 200]);
});

test('the pointer of a part is read back, damaged ones are refused, and no reader of vectors takes it for vectors', () => {
  const bytes = encodePartResult(RESULT, { fingerprint: partFingerprint(PART), dtype: 'f16' });
  expect(decodePartResult(bytes)).toEqual(RESULT);
  const damaged = Buffer.from(bytes);
  damaged[40]! ^= 1;
  expect(problemOf(() => decodePartResult(damaged))).toContain('RESULT_CORRUPT');
  expect(problemOf(() => decodePartResult(bytes.subarray(0, 20)))).toContain('RESULT_CORRUPT');
  expect(problemOf(() => openResult(bytes))).toContain('RESULT_CORRUPT');
});

test('the manifest has every part in order, whoever writes it, and is refused while one is missing', () => {
  const entries = Object.fromEntries(
    [2, 0, 1].map((number) => [
      number,
      encodeRunEntry(PART, { ...RESULT, name: partName({ number, output: OUTPUT }) }),
    ]),
  );
  const manifest = JSON.parse(manifestOf(PART, entries));
  expect(manifest).toMatchObject({
    v: 1,
    run: PART.run,
    model: PART.model,
    parts: 3,
    rows: 117,
    refused: 3,
  });
  expect(manifest.list.map(({ name }: { name: string }) => name)).toEqual([
    'docs-00000.parquet',
    'docs-00001.parquet',
    'docs-00002.parquet',
  ]);
  expect(problemOf(() => manifestOf(PART, { 0: entries[0]! }))).toContain('has no part 1');
});

test('a place lies in a folder, or behind a prefix, by whole names', () => {
  const folders = ['/data', 's3://bucket/a/'];
  const inside = ['/data', '/data/', '/data/x/y.jsonl', 's3://bucket/a', 's3://bucket/a/b.parquet'];
  const outside = ['/database/x', '/dat', '/', 's3://bucket/ab', 's3://bucket', 's3://other/a/b', 'data/x'];
  expect(inside.map((place) => isWithin(place, folders))).toEqual(inside.map(() => true));
  expect(outside.map((place) => isWithin(place, folders))).toEqual(outside.map(() => false));
  expect([isWithin('/anything', ['/']), isWithin('/data', [])]).toEqual([true, false]);
  const { source, output } = placesOf({
    source: { kind: 's3', bucket: 'b', key: 'k/x.txt', etag: 'e', bytes: 1 },
    output: { ...OUTPUT, kind: 's3', bucket: 'b', prefix: 'out' },
  });
  expect([source, output]).toEqual(['s3://b/k/x.txt', 's3://b/out']);
});

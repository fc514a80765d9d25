import { describe, expect, test } from 'vitest';
import { encodePointer, encodeResult } from '@shoal/contract';
import { judge, toFound, type Again, type Found } from './job-verdict.ts';

const OURS = '0000000000000001';
const THEIRS = '0000000000000002';

function found({
  job,
  isFinished = true,
  failedReason,
  result,
  isTaken = false,
}: {
  job?: string | undefined;
  isFinished?: boolean;
  failedReason?: string;
  result?: string;
  isTaken?: boolean;
} = {}): Found {
  const head =
    result === undefined
      ? Buffer.alloc(0)
      : encodeResult({ dtype: 'f32', rows: 1, dims: 1, fingerprint: result, isTruncated: false }, new Uint8Array(4));
  if (isTaken) head.writeUInt8(1, 6);
  const data = job === undefined ? null : job === '' ? '{"v":1}' : JSON.stringify({ v: 1, fingerprint: job });
  return toFound(
    [data, data !== null && isFinished ? '1700000000000' : null, failedReason ?? null],
    head.subarray(0, 32),
  );
}

function verdict(what: Found, again: Again = 'when-used-up'): string {
  return judge('j', OURS, what, again).kind;
}

describe('the table above judge', () => {
  test('a free id is added, unless its result is there already', () => {
    expect(verdict(found())).toBe('add');
    expect(verdict(found({ result: OURS }))).toBe('ready');
    expect(verdict(found({ result: OURS, isTaken: true }))).toBe('add');
    expect(verdict(found({ result: THEIRS, isTaken: true }))).toBe('add');
    expect(verdict(found({ result: THEIRS }))).toBe('conflict');
    expect(verdict(found({ result: THEIRS }), 'always')).toBe('conflict');
    expect(verdict(found({ result: OURS }), 'always')).toBe('add');
  });

  test('a job under way is known or a conflict, whatever is asked', () => {
    for (const again of ['when-used-up', 'always', 'never'] as const) {
      expect(verdict(found({ job: OURS, isFinished: false }), again)).toBe('known');
      expect(verdict(found({ job: THEIRS, isFinished: false }), again)).toBe('conflict');
      expect(verdict(found({ job: '', isFinished: false }), again)).toBe('known');
    }
  });

  test('a finished job is ready while its result is unread, and replaced when it is used up', () => {
    expect(verdict(found({ job: OURS, result: OURS }))).toBe('ready');
    expect(verdict(found({ job: OURS, result: OURS }), 'never')).toBe('ready');
    expect(verdict(found({ job: OURS, result: OURS }), 'always')).toBe('replace');
    expect(verdict(found({ job: OURS, result: OURS, isTaken: true }))).toBe('replace');
    expect(verdict(found({ job: OURS }))).toBe('replace');
    expect(verdict(found({ job: OURS, failedReason: 'OUT_OF_VRAM: x' }))).toBe('replace');
  });

  test('with again "never" a used-up job is reported with the reason of its failure', () => {
    expect(judge('j', OURS, found({ job: OURS, failedReason: 'OUT_OF_VRAM: x' }), 'never')).toEqual({
      kind: 'finished',
      failedReason: 'OUT_OF_VRAM: x',
    });
    expect(judge('j', OURS, found({ job: OURS, result: OURS, isTaken: true }), 'never')).toEqual({
      kind: 'finished',
      failedReason: undefined,
    });
  });

  test(
    'a finished job of another request is a conflict until somebody insists, and then only when its result was ' +
      'taken or is gone',
    () => {
      expect(verdict(found({ job: THEIRS }))).toBe('conflict');
      expect(verdict(found({ job: THEIRS, result: THEIRS, isTaken: true }))).toBe('conflict');
      expect(verdict(found({ job: THEIRS }), 'always')).toBe('replace');
      expect(verdict(found({ job: THEIRS, result: THEIRS, isTaken: true }), 'always')).toBe('replace');
      expect(verdict(found({ job: THEIRS, result: THEIRS }), 'always')).toBe('conflict');
    },
  );

  test('a result on a payload server is ready for who reads it there, and used up for others', () => {
    const result = encodeResult(
      { dtype: 'f32', rows: 1, dims: 1, fingerprint: OURS, isTruncated: false },
      new Uint8Array(4),
    );
    const head = encodePointer(result, { store: 'a:1', key: 'k' }).subarray(0, 32);
    const [finished, forgotten] = [found({ job: OURS }), found()].map((one) => ({
      ...one,
      result: toFound([null, null, null], head).result,
    })) as [Found, Found];
    const kindOf = (what: Found, again: Again, readsPointers: boolean): string =>
      judge('j', OURS, what, again, readsPointers).kind;
    for (const what of [finished, forgotten]) {
      expect(kindOf(what, 'when-used-up', true)).toBe('ready');
      expect(kindOf(what, 'when-used-up', false)).toBe('replace');
      expect(kindOf(what, 'never', false)).toBe('ready');
      expect(judge('j', THEIRS, what, 'when-used-up').kind).toBe('conflict');
    }
  });

  test('of a plain job without a fingerprint the result tells whose it is', () => {
    expect(verdict(found({ job: '', result: OURS }))).toBe('ready');
    expect(verdict(found({ job: '', result: THEIRS }))).toBe('conflict');
    expect(verdict(found({ job: '', result: THEIRS, isTaken: true }))).toBe('conflict');
    expect(verdict(found({ job: '' }))).toBe('replace');
  });

  test('a conflict names both fingerprints', () => {
    expect(judge('j', OURS, found({ job: THEIRS }), 'never')).toMatchObject({
      kind: 'conflict',
      error: { code: 'JOB_ID_CONFLICT', fields: { found: THEIRS, asked: OURS } },
    });
  });

  test('data that does not parse counts as a plain job: the worker reports what is wrong with it', () => {
    expect(verdict({ data: '{broken', isFinished: false, failedReason: undefined, result: undefined })).toBe('known');
  });
});

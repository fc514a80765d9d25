// Similarity jobs as producers meet them: what each option defaults to, and every refusal by its code and a word on
// what was wrong. Also the two binary forms: what goes in comes out, and nothing that was cut or changed does.

import { crc32 } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { isShoalError } from './errors.ts';
import { decodeRankings, encodeRankings, encodeResult, openResult } from './result-format.ts';
import { decodeComparands, encodeComparands, type Comparands } from './vectors-format.ts';
import { parseSimilarityJob } from './similarity-job.ts';

const base64 = (...values: readonly number[]): string =>
  Buffer.from(Float32Array.from(values).buffer).toString('base64');
const ONE = { vectors: base64(1, 2), dims: 2 };
const TOPK = { v: 1, collection: 'docs@3', queries: ONE, k: 10 };

function refusalOf(name: string, data: unknown, jobId = 'a'): string {
  return refused(() => parseSimilarityJob(jobId, name, data));
}

function refused(work: () => unknown): string {
  try {
    work();
  } catch (error) {
    if (isShoalError(error)) return `${error.code}: ${error.message}`;
    throw error;
  }
  return 'accepted';
}

describe('what is accepted', () => {
  test('the smallest job of each kind, with every default', () => {
    const terms = {
      jobId: 'a',
      rows: 1,
      fingerprint: undefined,
      class: 'interactive',
      tenant: 'default',
      deadlineMs: undefined,
      reply: undefined,
      resultTtlMs: 86_400_000,
    };
    const queries = { form: 'inline', matrix: { values: Float32Array.of(1, 2), rows: 1, dims: 2 } };
    expect(parseSimilarityJob('a', 'topk', TOPK)).toEqual({
      ...terms,
      request: { kind: 'topk', collection: 'docs@3', metric: 'cosine', k: 10 },
      input: { form: 'vectors', queries, against: undefined, candidates: undefined },
    });
    expect(parseSimilarityJob('a', 'cosine', { v: 1, queries: ONE, against: ONE })).toEqual({
      ...terms,
      request: { kind: 'cosine', collection: undefined, metric: 'cosine' },
      input: { form: 'vectors', queries, against: queries, candidates: undefined },
    });
    expect(parseSimilarityJob('a', 'rescore', { ...TOPK, candidates: [[3, 1]] })).toEqual({
      ...terms,
      request: { kind: 'rescore', collection: 'docs@3', metric: 'cosine', k: 10 },
      input: { form: 'vectors', queries, against: undefined, candidates: [BigUint64Array.of(3n, 1n)] },
    });
    expect(parseSimilarityJob('a', 'spread', { v: 1, graph: 'links', seeds: [[7, [8, 0.5]]], k: 5 })).toEqual({
      ...terms,
      request: { kind: 'spread', graph: 'links', steps: 3, decay: 0.5, threshold: 0, k: 5 },
      input: { form: 'seeds', seeds: [[7, [8, 0.5]]] },
    });
  });

  test('vectors in the input key, and many queries are bulk', () => {
    const keyed = { ...TOPK, queries: { key: { rows: 9, dims: 384 } } };
    expect(parseSimilarityJob('a', 'topk', keyed)).toMatchObject({
      rows: 9,
      class: 'bulk',
      input: { queries: { form: 'key', rows: 9, dims: 384 } },
    });
    expect(parseSimilarityJob('a', 'rescore', { ...keyed, candidates: 'key' })).toMatchObject({
      input: { candidates: 'key' },
    });
  });
});

describe('what is refused', () => {
  test.each([
    ['search', /JOB_INVALID.*"topk"/, TOPK],
    ['topk', /JOB_VERSION_UNKNOWN/, { ...TOPK, v: 3 }],
    ['topk', /unknown field "meta" \("meta": it needs "v": 2\)/, { ...TOPK, meta: {} }],
    ['topk', /JOB_INVALID.*metrik/, { ...TOPK, metrik: 'dot' }],
    ['topk', /JOB_INVALID.*k: must be at least 1/, { ...TOPK, k: 0 }],
    ['topk', /JOB_INVALID.*k: must be at least 1/, { ...TOPK, k: -3 }],
    ['topk', /JOB_INVALID.*k/, { ...TOPK, k: 1.5 }],
    ['topk', /JOB_INVALID.*name@version/, { ...TOPK, collection: 'docs@' }],
    ['topk', /JOB_INVALID.*name@version/, { ...TOPK, collection: '../x@1' }],
    ['topk', /JOB_INVALID.*metric/, { ...TOPK, metric: 'hamming' }],
    ['topk', /DIMENSIONS_MISMATCH.*12 bytes/, { ...TOPK, queries: { vectors: base64(1, 2, 3), dims: 2 } }],
    ['topk', /DIMENSIONS_MISMATCH.*0 bytes/, { ...TOPK, queries: { vectors: '', dims: 2 } }],
    ['topk', /JOB_INVALID/, { ...TOPK, queries: { vectors: 'not base64!', dims: 2 } }],
    [
      'topk',
      /VECTOR_INVALID.*row 0 .*NaN at dimension 1/,
      { ...TOPK, queries: { vectors: base64(1, Number.NaN), dims: 2 } },
    ],
    ['topk', /VECTOR_INVALID.*Infinity/, { ...TOPK, queries: { vectors: base64(1, Infinity), dims: 2 } }],
    ['topk', /VECTOR_INVALID/, { ...TOPK, queries: { vectors: base64(1, 1e20), dims: 2 } }],
    ['topk', /JOB_INVALID.*257 queries/, { ...TOPK, queries: { vectors: base64(...new Float32Array(514)), dims: 2 } }],
    ['topk', /JOB_INVALID.*input key/, { ...TOPK, queries: { vectors: 'A'.repeat(262_148), dims: 1 } }],
    ['topk', /TEXTS_NOT_EMBEDDED/, { ...TOPK, queries: { texts: ['hello'] } }],
    ['topk', /RESULT_TOO_LARGE.*smaller k/, { ...TOPK, queries: { key: { rows: 256, dims: 2 } }, k: 100_000 }],
    ['cosine', /JOB_INVALID.*one of the two/, { v: 1, queries: ONE }],
    ['cosine', /JOB_INVALID.*one of the two/, { v: 1, queries: ONE, against: ONE, collection: 'docs@1' }],
    [
      'cosine',
      /DIMENSIONS_MISMATCH.*2 dimensions.*3/,
      { v: 1, queries: ONE, against: { vectors: base64(1, 2, 3), dims: 3 } },
    ],
    ['cosine', /JOB_INVALID.*both/, { v: 1, queries: ONE, against: { key: { rows: 1, dims: 2 } } }],
    ['rescore', /JOB_INVALID.*1 queries and 2 lists/, { ...TOPK, candidates: [[1], [2]] }],
    ['rescore', /JOB_INVALID.*candidates/, { ...TOPK, candidates: [[-1]] }],
    ['rescore', /JOB_INVALID.*both go together/, { ...TOPK, candidates: 'key' }],
    ['spread', /JOB_INVALID.*seeds/, { v: 1, graph: 'links', seeds: [[]], k: 1 }],
    ['spread', /JOB_INVALID.*seeds/, { v: 1, graph: 'links', seeds: [[[1, 0]]], k: 1 }],
    ['spread', /JOB_INVALID.*decay/, { v: 1, graph: 'links', seeds: [[1]], k: 1, decay: 1.5 }],
    ['spread', /JOB_INVALID.*steps/, { v: 1, graph: 'links', seeds: [[1]], k: 1, steps: 65 }],
  ] as const)('%s: %s', (name, expected, data) => expect(refusalOf(name, data)).toMatch(expected));

  test('an id that the queue could not carry, and data that is no object', () => {
    expect(refusalOf('topk', TOPK, 'a:b')).toMatch(/JOB_INVALID.*a:b/);
    expect(refusalOf('topk', TOPK, '17')).toBe('accepted');
    const keyed = { ...TOPK, queries: { key: { rows: 1, dims: 2 } } };
    expect(refusalOf('topk', keyed, '17')).toMatch(/JOB_INVALID.*an id that BullMQ made/);
    expect(refusalOf('topk', [TOPK])).toMatch(/JOB_INVALID.*not an object/);
  });
});

describe('SHQ1', () => {
  const compared: Comparands = {
    queries: { values: Float32Array.of(1, 2, 3, 4), rows: 2, dims: 2 },
    against: { values: Float32Array.of(5, 6), rows: 1, dims: 2 },
    candidates: [BigUint64Array.of(9n, 2n ** 40n), new BigUint64Array()],
  };
  const expected = { queries: 2, against: 1, dims: 2, hasCandidates: true };

  test('what goes in comes out', () => {
    expect(decodeComparands(encodeComparands(compared), expected)).toEqual(compared);
    const { queries } = compared;
    expect(
      decodeComparands(encodeComparands({ queries }), { queries: 2, against: 0, dims: 2, hasCandidates: false }),
    ).toEqual({ queries, against: undefined, candidates: undefined });
  });

  test('bytes that were cut anywhere or changed anywhere are refused', () => {
    const bytes = encodeComparands(compared);
    for (let length = 0; length < bytes.length; length++)
      expect(refused(() => decodeComparands(bytes.subarray(0, length), expected))).toMatch(/^INPUT_CORRUPT/);
    for (const at of bytes.keys()) {
      const changed = Buffer.from(bytes);
      changed[at]! ^= 4;
      expect(refused(() => decodeComparands(changed, expected))).toMatch(/^INPUT_CORRUPT/);
    }
  });

  test('an input that is not what its job says is refused', () => {
    const bytes = encodeComparands(compared);
    for (const other of [
      { ...expected, queries: 3 },
      { ...expected, dims: 3 },
      { ...expected, hasCandidates: false },
    ])
      expect(refused(() => decodeComparands(bytes, other))).toMatch(/^INPUT_CORRUPT/);
  });
});

describe('rankings', () => {
  const rankings = [
    { ids: BigUint64Array.of(7n, 2n ** 50n), scores: Float32Array.of(0.5, 0.25) },
    { ids: new BigUint64Array(), scores: new Float32Array() },
    { ids: BigUint64Array.of(1n), scores: Float32Array.of(-1) },
  ];

  test('a result carries them, and one that was cut is no result', () => {
    const result = encodeResult(
      { dtype: 'ranking', rows: 3, dims: 2, fingerprint: '0123456789abcdef', isTruncated: false },
      encodeRankings(rankings),
    );
    const { header, body } = openResult(result);
    expect(decodeRankings(header, body)).toEqual(rankings);
    for (let length = 32; length < result.length; length++)
      expect(refused(() => openResult(result.subarray(0, length)))).toMatch(/^RESULT_CORRUPT/);
  });

  test('carry the names of rows where they were asked for', () => {
    const named = [
      { ...rankings[0]!, names: ['ü', ''] },
      { ...rankings[1]!, names: [] },
      { ...rankings[2]!, names: ['three'] },
    ];
    const result = encodeResult(
      { dtype: 'ranking', rows: 3, dims: 2, fingerprint: '0123456789abcdef', isTruncated: false },
      encodeRankings(named),
    );
    const { header, body } = openResult(result);
    expect(decodeRankings(header, body)).toEqual(named);
    const long = Buffer.from(result);
    long.writeUInt32LE(7_000, long.length - 20); // the bytes of the first name
    expect(refused(() => openResult(long))).toMatch(/^RESULT_CORRUPT/);
    for (const at of [result.length - 1, result.length - 8]) {
      const other = Buffer.from(result); // no zero behind the names, or no UTF-8 in them, under a right checksum
      other.writeUInt8(0x80, at);
      other.writeUInt32LE(crc32(other.subarray(32)), 16);
      expect(refused(() => openResult(other))).toMatch(/^RESULT_CORRUPT/);
    }
    for (let length = 32; length < result.length; length++)
      expect(refused(() => openResult(result.subarray(0, length)))).toMatch(/^RESULT_CORRUPT/);
  });

  test('are read wherever a body lies, and lie in memory of their own', () => {
    const body = encodeRankings(rankings);
    for (const shift of [0, 1, 2, 4]) {
      const room = Buffer.alloc(body.length + 8);
      const shifted = room.subarray(shift, shift + body.length);
      body.copy(shifted);
      const found = decodeRankings({ rows: 3 }, shifted);
      room.fill(0xff);
      expect(found).toEqual(rankings);
    }
  });
});

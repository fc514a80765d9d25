// The public format of rerank jobs as producers meet it: what each option defaults to, and every refusal with a word on
// what was wrong.

import { describe, expect, test } from 'vitest';
import { isShoalError } from './errors.ts';
import { fingerprintOf, rerankFingerprint } from './fingerprint.ts';
import { parseJob } from './embed-job.ts';
import { MAX_INLINE_BYTES } from './job-terms.ts';
import { rerankQueue } from './keys.ts';
import { encodeQueryTexts } from './pairs-format.ts';
import { parseRerankJob } from './rerank-job.ts';

const HASH = '0123456789abcdef';
const INLINE = { v: 2, query: 'q', texts: ['one', ''] };
const KEYED = { v: 2, input: { form: 'texts', rows: 3 } };

function refusalOf(data: unknown, jobId = 'a', name = 'rerank'): { readonly code: string; readonly message: string } {
  try {
    parseRerankJob(jobId, name, data);
  } catch (error) {
    if (isShoalError(error)) return { code: error.code, message: error.message };
    throw error;
  }
  return { code: 'accepted', message: '' };
}

describe('what is accepted', () => {
  test('the smallest job, with every default', () => {
    expect(parseRerankJob('a', 'rerank', INLINE)).toEqual({
      jobId: 'a',
      input: { form: 'inline', query: 'q', texts: ['one', ''] },
      rows: 2,
      fingerprint: undefined,
      class: 'interactive',
      tenant: 'default',
      deadlineMs: undefined,
      reply: undefined,
      resultTtlMs: 86_400_000,
      truncate: 'end',
    });
  });

  test('inputs with a key, as texts and as token ids', () => {
    expect(parseRerankJob('a', 'rerank', KEYED)).toMatchObject({ input: { form: 'texts', rows: 3 }, rows: 3 });
    const tokens = { form: 'tokens', rows: 1_024, tokens: 10_000, tokenizer: HASH };
    const job = parseRerankJob('a', 'rerank', { v: 2, input: tokens, truncate: 'error', fingerprint: HASH });
    expect(job).toMatchObject({ input: tokens, rows: 1_024, class: 'bulk', truncate: 'error', fingerprint: HASH });
  });

  test('exactly 1,024 texts, an empty query, and exactly as many bytes as may travel in a job', () => {
    const texts = Array.from({ length: 1_024 }, () => 'x');
    expect(parseRerankJob('a', 'rerank', { v: 2, query: '', texts }).rows).toBe(1_024);
    expect(refusalOf({ v: 2, query: 'ü', texts: ['x'.repeat(MAX_INLINE_BYTES - 2)] }).code).toBe('accepted');
  });
});

describe('what is refused as JOB_INVALID', () => {
  test.each<readonly [why: string, data: unknown, said: RegExp]>([
    ['no texts', { ...INLINE, texts: [] }, /texts: /],
    ['1,025 texts', { ...INLINE, texts: Array.from({ length: 1_025 }, () => 'x') }, /texts: .*1024/],
    ['texts without a query', { v: 2, texts: ['one'] }, /query: must be a string, found nothing/],
    ['a query without texts', { v: 2, query: 'q' }, /texts: must be a list of strings/],
    ['a query that is a list', { ...INLINE, query: ['q'] }, /query: must be a string, found a list of 1/],
    ['nothing to weigh', { v: 2 }, /it has no "query", a string, and no "texts", a list of 1 to 256$/],
    ['nothing to weigh, and more', { v: 2, top: 3 }, /no "texts", a list of 1 to 256; unknown field "top"/],
    ['texts and input', { ...KEYED, texts: ['one'] }, /both "texts" and "input"/],
    ['query and input', { ...KEYED, query: 'q' }, /both "query" and "input"/],
    [
      'too many bytes',
      { v: 2, query: 'qq', texts: ['x'.repeat(MAX_INLINE_BYTES - 1)] },
      /262145 bytes, above 262144|262145 bytes/,
    ],
    ['a prompt', { ...INLINE, prompt: 'query' }, /unknown field "prompt"/],
    ['a form of vectors', { ...INLINE, output: { dtype: 'f16' } }, /unknown field "output"/],
    [
      'documents',
      { v: 2, query: 'q', documents: ['one'] },
      /unknown field "documents" \("documents": the field is called "texts"/,
    ],
    ['version 1', { ...INLINE, v: 1 }, /"v", the version of the format, must be 2, found 1/],
    ['no object', 'q', /write for example \{ "v": 2, "query": .*"texts": /],
  ])('%s', (_, data, said) => {
    const { code, message } = refusalOf(data);
    expect(code).toBe('JOB_INVALID');
    expect(message).toMatch(said);
  });

  test('a job of another name, and an input key under an id that BullMQ made', () => {
    expect(refusalOf(INLINE, 'a', 'embed').message).toMatch(/named "embed"; this queue takes jobs named "rerank"/);
    expect(refusalOf(KEYED, '7').message).toMatch(/an id that BullMQ made/);
  });

  test('of an embedding queue', () => {
    expect(() => parseJob('a', 'rerank', INLINE)).toThrow(/this queue takes jobs named "embed"/);
  });
});

test('a newer version waits for a newer worker', () => {
  expect(refusalOf({ ...INLINE, v: 3 })).toEqual({
    code: 'JOB_VERSION_UNKNOWN',
    message: 'job "a" has version 3; this worker knows versions up to 2',
  });
});

test('the queue has its own beginning', () => {
  expect(rerankQueue('BAAI/bge-reranker-v2-m3')).toBe('rerank-baai--bge-reranker-v2-m3');
});

test('fingerprints: a golden value by hashlib of Python, and every fact counts', () => {
  const facts = { model: 'bge-reranker@8c2f9a417d03', truncate: 'end' } as const;
  const input = encodeQueryTexts('Hi', ['', '€']);
  expect(rerankFingerprint(facts, input)).toBe('fb64edeaae26bb8b');
  const variants = [
    rerankFingerprint(facts, input),
    rerankFingerprint({ ...facts, model: 'bge-reranker@000000000000' }, input),
    rerankFingerprint({ ...facts, truncate: 'error' }, input),
    rerankFingerprint(facts, encodeQueryTexts('Hi', ['€', ''])),
    rerankFingerprint(facts, encodeQueryTexts('', ['Hi', '€'])),
    fingerprintOf({ ...facts, prompt: undefined, output: { dtype: 'f32', dimensions: undefined } }, input),
  ];
  expect(new Set(variants).size).toBe(variants.length);
});

// The public job format as producers meet it: what each option defaults to, and every refusal with a word on what was
// wrong.

import { describe, expect, test } from 'vitest';
import { isShoalError } from './errors.ts';
import { MAX_INLINE_BYTES } from './job-terms.ts';
import { parseJob } from './embed-job.ts';

const HASH = '0123456789abcdef';
const KEYED = { v: 1, input: { form: 'texts', rows: 3 } };

function refusalOf(data: unknown, jobId = 'a', name = 'embed'): { readonly code: string; readonly message: string } {
  try {
    parseJob(jobId, name, data);
  } catch (error) {
    if (isShoalError(error)) return { code: error.code, message: error.message };
    throw error;
  }
  return { code: 'accepted', message: '' };
}

const xs = (length: number): string[] => Array.from({ length }, () => 'x');
const withMeta = (letters: number) => ({ v: 2, texts: ['a'], meta: { a: 'é'.repeat(letters) } });

describe('what is accepted', () => {
  test('the smallest job, with every default', () => {
    expect(parseJob('a', 'embed', { v: 1, texts: ['one', ''] })).toEqual({
      jobId: 'a',
      input: { form: 'inline', texts: ['one', ''] },
      rows: 2,
      fingerprint: undefined,
      class: 'interactive',
      tenant: 'default',
      deadlineMs: undefined,
      reply: undefined,
      resultTtlMs: 86_400_000,
      truncate: 'end',
      prompt: undefined,
      output: { dtype: 'f32', dimensions: undefined },
    });
  });

  test('an input on a payload server, and readers of such servers, with version 2 and a fingerprint', () => {
    const data = { v: 2, fingerprint: HASH, payloads: HASH, input: { form: 'texts', rows: 3, store: '10.0.0.5:6379' } };
    expect(parseJob('a', 'embed', data)).toMatchObject({
      payloads: HASH,
      input: { form: 'texts', rows: 3, store: '10.0.0.5:6379' },
    });
    const { fingerprint: _, ...unsigned } = data;
    expect(refusalOf(unsigned)).toMatchObject({ code: 'JOB_INVALID', message: expect.stringContaining('fingerprint') });
    expect(refusalOf({ ...data, v: 1 }).code).toBe('JOB_INVALID');
    expect(refusalOf({ ...data, payloads: 'all' }).code).toBe('JOB_INVALID');
    expect(refusalOf({ ...data, input: { ...data.input, store: '' } }).code).toBe('JOB_INVALID');
  });

  test('few rows are interactive and many are bulk, unless the job says so', () => {
    expect([classOf(8), classOf(9), classOf(8, { class: 'bulk' }), classOf(9, { class: 'interactive' })]).toEqual([
      'interactive',
      'bulk',
      'bulk',
      'interactive',
    ]);
  });

  test('every option', () => {
    const data = {
      v: 1,
      texts: ['one'],
      fingerprint: HASH,
      class: 'interactive',
      tenant: 't',
      deadline: 1_800_000_000_000,
      reply: '{shoal}:reply:me_1-2',
      resultTtlMs: 5_000,
      truncate: 'error',
      prompt: 'passage',
      output: { dtype: 'binary', dimensions: 128 },
    };
    expect(parseJob('a', 'embed', data)).toEqual({
      jobId: 'a',
      input: { form: 'inline', texts: ['one'] },
      rows: 1,
      fingerprint: HASH,
      class: 'interactive',
      tenant: 't',
      deadlineMs: 1_800_000_000_000,
      reply: '{shoal}:reply:me_1-2',
      resultTtlMs: 5_000,
      truncate: 'error',
      prompt: 'passage',
      output: { dtype: 'binary', dimensions: 128 },
    });
  });

  test('version 2, with fields of its producer and its vectors in the return value', () => {
    const meta = { userId: 5, tags: ['a', null] };
    expect(parseJob('a', 'embed', { v: 2, texts: ['one'], meta, returnVectors: true })).toMatchObject({
      meta,
      returnsVectors: true,
    });
    expect(parseJob('a', 'embed', { v: 2, texts: ['one'], returnVectors: false })).not.toHaveProperty('returnsVectors');
  });

  test('fields of its producer up to 2,048 bytes as JSON', () => {
    expect(refusalOf(withMeta(1_020)).code).toBe('accepted');
    expect(refusalOf(withMeta(1_021)).message).toContain('meta: must have at most 2048 bytes as JSON, found 2050');
  });

  test('version 2, with a prompt of any name, and all that version 1 has', () => {
    for (const prompt of ['retrieval.query', 'none', 'query'])
      expect(parseJob('a', 'embed', { v: 2, texts: ['one'], prompt, tenant: 't' })).toMatchObject({
        prompt,
        tenant: 't',
      });
    expect(parseJob('a', 'embed', { ...KEYED, v: 2 })).toMatchObject({ rows: 3, prompt: undefined });
    for (const normalize of [true, false])
      expect(parseJob('a', 'embed', { ...KEYED, v: 2, output: { normalize } }).output).toEqual({
        dtype: 'f32',
        dimensions: undefined,
        normalize,
      });
    expect(refusalOf({ v: 1, texts: ['one'], prompt: 'none' }).message).toMatch(
      /prompt: must be one of "query", "passage"/,
    );
    expect(refusalOf({ v: 2, texts: ['one'], prompt: '' }).message).toMatch(/prompt: must have at least 1 characters/);
    expect(refusalOf({ v: 2, texts: ['one'], other: 1 }).message).toMatch(/unknown field "other"/);
    expect(refusalOf({ v: 2, prompt: 7 }).message).toMatch(/it has no "texts".*prompt: must be a string, found 7/);
  });

  test('inputs with a key, as texts and as token ids', () => {
    expect(parseJob('a', 'embed', KEYED)).toMatchObject({ input: { form: 'texts', rows: 3 }, rows: 3 });
    const tokens = { form: 'tokens', rows: 256, tokens: 10_000, tokenizer: HASH };
    expect(parseJob('a', 'embed', { v: 1, input: tokens })).toMatchObject({ input: tokens, rows: 256 });
  });

  test('a result waits five minutes for a producer that listens, a day for one that comes back', () => {
    expect(parseJob('a', 'embed', { ...KEYED, reply: '{shoal}:reply:x' }).resultTtlMs).toBe(300_000);
    expect(parseJob('a', 'embed', KEYED).resultTtlMs).toBe(86_400_000);
    expect(parseJob('a', 'embed', { ...KEYED, reply: '{shoal}:reply:x', resultTtlMs: 7_000 }).resultTtlMs).toBe(7_000);
  });

  test('exactly 256 texts, 1,024 with version 2, and exactly as many inline bytes as may travel in a job', () => {
    expect(parseJob('a', 'embed', { v: 1, texts: xs(256) }).rows).toBe(256);
    for (const rows of [257, 1_023, 1_024]) {
      expect(parseJob('a', 'embed', { v: 2, texts: xs(rows) })).toMatchObject({ rows, class: 'bulk' });
      for (const input of [
        { form: 'texts', rows },
        { form: 'tokens', rows, tokens: 9_000, tokenizer: HASH },
      ])
        expect(parseJob('a', 'embed', { v: 2, input })).toMatchObject({ rows, input });
    }
    expect(refusalOf({ v: 1, texts: ['ü'.repeat(MAX_INLINE_BYTES / 2)] }).code).toBe('accepted');
  });
});

describe('what is refused as JOB_INVALID', () => {
  test.each<readonly [why: string, data: unknown, said: RegExp]>([
    ['no texts', { v: 1, texts: [] }, /texts: /],
    [
      '257 texts',
      { v: 1, texts: xs(257) },
      /texts: must have at most 256 entries, found 257, and more only with "v": 2/,
    ],
    ['1,024 texts with version 1', { v: 1, texts: xs(1_024) }, /texts: .* found 1024, and more only with "v": 2/],
    ['1,025 texts', { v: 2, texts: xs(1_025) }, /texts: must have at most 1024 entries, found 1025$/],
    ['a text that is not a string', { v: 1, texts: ['one', 2] }, /texts\.1: .*string/],
    [
      'texts that are not a list',
      { v: 1, texts: 'one' },
      /texts: must be a list of strings, such as \["hello"\], found "one"/,
    ],
    ['neither texts nor input', { v: 1 }, /it has no "texts", a list of 1 to 256 strings$/],
    ['texts and input', { ...KEYED, texts: ['one'] }, /both "texts" and "input"/],
    [
      'too many bytes inline',
      { v: 1, texts: ['x'.repeat(MAX_INLINE_BYTES), 'y'] },
      /262145 bytes, above the 262144 .*input key/,
    ],
    ['an unknown field', { ...KEYED, prioritty: 1 }, /unknown field "prioritty"/],
    [
      'an unknown field of the input',
      { v: 1, input: { ...KEYED.input, tokens: 3 } },
      /unknown field "tokens" in input/,
    ],
    ['an unknown field of the output', { ...KEYED, output: { type: 'f32' } }, /unknown field "type" in output/],
    ['an unknown form', { v: 1, input: { form: 'image', rows: 1 } }, /input\.form: /],
    ['0 rows', { v: 1, input: { form: 'texts', rows: 0 } }, /input\.rows: /],
    ['257 rows', { v: 1, input: { form: 'texts', rows: 257 } }, /input\.rows: must be at most 256, .*only with "v": 2/],
    ['1,025 rows', { v: 2, input: { form: 'texts', rows: 1_025 } }, /input\.rows: must be at most 1024, found 1025$/],
    ['rows that are not a whole number', { v: 1, input: { form: 'texts', rows: 1.5 } }, /input\.rows: /],
    [
      'token ids without their tokenizer',
      { v: 1, input: { form: 'tokens', rows: 1, tokens: 3 } },
      /input\.tokenizer: /,
    ],
    [
      'token ids without their number',
      { v: 1, input: { form: 'tokens', rows: 1, tokenizer: HASH } },
      /input\.tokens: /,
    ],
    [
      'a fingerprint in upper case',
      { ...KEYED, fingerprint: 'ABCDEF0123456789' },
      /fingerprint: must be 16 lower-case hex digits/,
    ],
    ['an unknown class', { ...KEYED, class: 'urgent' }, /class: /],
    ['an empty tenant', { ...KEYED, tenant: '' }, /tenant: /],
    ['a deadline as text', { ...KEYED, deadline: '2026-11-21' }, /deadline: /],
    ['a reply channel outside a hash tag', { ...KEYED, reply: 'reply:me' }, /reply: must look like/],
    ['a reply channel with more in it', { ...KEYED, reply: '{shoal}:reply:me\n' }, /reply: must look like/],
    ['a result that lives less than a second', { ...KEYED, resultTtlMs: 999 }, /resultTtlMs: /],
    ['another dtype', { ...KEYED, output: { dtype: 'f64' } }, /output\.dtype: /],
    [
      'what came with version 2',
      { ...KEYED, output: { normalize: true } },
      /unknown field "normalize" in output \("normalize" needs "v": 2\)/,
    ],
    [
      'a prompt by a name that came with version 2',
      { ...KEYED, prompt: 'clustering' },
      /prompt: must be one of "query", "passage", found "clustering"; other names that the model has need "v": 2/,
    ],
    ['a wish that is no boolean', { ...KEYED, v: 2, output: { normalize: 1 } }, /output\.normalize: /],
    ['no dimensions', { ...KEYED, output: { dimensions: 0 } }, /output\.dimensions: /],
    ['no version', { texts: ['one'] }, /"v", the version of the format, must be 1, found nothing/],
    ['a version as text', { ...KEYED, v: '1' }, /"v", the version of the format, must be 1, found "1"/],
    ['version 0', { ...KEYED, v: 0 }, /"v", the version of the format, must be 1, found 0/],
    ['version 1.5', { ...KEYED, v: 1.5 }, /"v", the version of the format, must be 1, found 1.5/],
    ['a list', [], /its data is not an object, found an empty list; write for example/],
    ['nothing', null, /its data is not an object, found null/],
    ['a number', 5, /its data is not an object, found 5/],
    ['text', 'embed this', /its data is not an object, found "embed this"/],
  ])('%s', (_, data, said) => {
    expect(refusalOf(data)).toEqual({ code: 'JOB_INVALID', message: expect.stringMatching(said) });
  });

  test('every problem is told in one message', () => {
    const { message } = refusalOf({
      v: 1,
      texts: [1],
      colour: 'red',
      class: 'urgent',
      output: { dtype: 'f64', size: 3 },
    });
    for (const said of ['"a"', 'texts.0: ', '"colour"', 'class: ', 'output.dtype: ', '"size" in output'])
      expect(message).toContain(said);
  });

  test.each(['', 'a:b', 'repeat:nightly', 'metrics:completed:data', '-3'])('the job id "%s"', (jobId) => {
    expect(refusalOf(KEYED, jobId)).toEqual({
      code: 'JOB_INVALID',
      message: expect.stringContaining(`jobId "${jobId}" cannot be used`),
    });
  });

  test('another job name', () => {
    expect(refusalOf(KEYED, 'a', 'embedd')).toEqual({
      code: 'JOB_INVALID',
      message: expect.stringMatching(/named "embedd".*named "embed"/),
    });
  });

  test('a refusal is short, however large what it refuses', () => {
    const large = 'x'.repeat(100_000);
    const cases: readonly unknown[] = [
      { ...KEYED, v: large },
      { v: 1, texts: Array.from({ length: 256 }, () => 0) },
      { ...KEYED, [large]: 1 },
      { ...KEYED, class: large },
      Object.fromEntries(Array.from({ length: 5_000 }, (_, i) => [`field${i}`, 1]).concat([['v', 1]])),
    ];
    for (const data of cases) {
      const { code, message } = refusalOf(data);
      expect(code).toBe('JOB_INVALID');
      expect(message.length).toBeLessThanOrEqual(2_100);
    }
  });
});

describe('what a BullMQ shop types first is refused with its cure', () => {
  test.each<readonly [data: unknown, said: readonly (string | RegExp)[]]>([
    [{ v: 1, text: 'a' }, ['it has no "texts"', '"text": the field is called "texts": a list of strings']],
    [{ v: 1, texts: [] }, ['texts: must have at least 1 entry, found none']],
    [{ v: 1, texts: 'hello' }, ['texts: must be a list of strings, such as ["hello"], found "hello"']],
    [{ v: 1, texts: [['a']] }, ['texts.0: must be a string, found a list of 1']],
    [{ v: 1, texts: [null] }, ['texts.0: must be a string, found null']],
    [{ v: 1, texts: { 0: 'a' } }, ['texts: must be a list of strings', 'found an object']],
    [{ v: 1, input: ['a'] }, ['texts themselves go into "texts"', 'found a list of 1']],
    [{ v: 1, input: 'a' }, ['texts themselves go into "texts"']],
    [
      { v: 1, texts: ['a'], userId: 5 },
      ['unknown field "userId"', 'fields of your own go into "meta"', '{ "v": 2, "meta": { "userId": … } }'],
    ],
    [{ v: 1, texts: ['a'], meta: { userId: 5 } }, ['unknown field "meta" ("meta": it needs "v": 2)']],
    [{ v: 1, texts: ['a'], meta: {}, returnVectors: true }, ['"meta", "returnVectors" ("meta": it needs']],
    [{ v: 2, texts: ['a'], meta: 'user-5' }, ['meta: must be an object, found "user-5"']],
    [{ v: 2, texts: Array(9).fill('a'), returnVectors: true }, ['has 9 texts', 'up to 8 texts', 'result key']],
    [{ v: 2, input: { form: 'texts', rows: 1 }, returnVectors: true }, ['"returnVectors": it goes with "texts"']],
    [{ v: 1, texts: ['a'], model: 'minilm' }, ['unknown field "model"', 'the queue says which model']],
    [{ v: 1, texts: ['a'], dimensions: 8 }, ['"output": { "dimensions"']],
    [{ v: 1, texts: ['a'], deadline: 'soon' }, ['deadline: must be a number, found "soon"']],
    [{ v: 1, texts: ['a'], class: 'urgent' }, ['class: must be one of "interactive", "bulk", found "urgent"']],
    [{ v: 1, input: { form: 'image' } }, ['input.form: must be one of "texts", "tokens", found "image"']],
    [{ v: 1, input: {} }, ['input.form: must be one of "texts", "tokens", found nothing']],
    [{ v: 1, texts: ['a'], output: 'f16' }, ['output: must be an object, found "f16"']],
    [{ texts: ['a'] }, ['field "v", the version of the format, must be 1, found nothing']],
  ])('%j', (data, said) => {
    const { code, message } = refusalOf(data);
    expect(code).toBe('JOB_INVALID');
    for (const part of said) expect(message).toContain(part);
    expect(message).not.toMatch(/Invalid|expected|received|>=|<=/);
  });
});

describe('ids that BullMQ made', () => {
  test.each(['1', '1263', 'repeat:nightly:1732600000000', 'repeat:a:b:1'])('%s is accepted with its texts', (jobId) => {
    expect(parseJob(jobId, 'embed', { v: 1, texts: ['a'] })).toMatchObject({ jobId, rows: 1 });
  });

  test('an input under a key is refused, because nobody knew the name of the key', () => {
    for (const jobId of ['17', 'repeat:nightly:1732600000000'])
      expect(refusalOf(KEYED, jobId)).toEqual({
        code: 'JOB_INVALID',
        message: expect.stringMatching(/an id that BullMQ made; choose a jobId/),
      });
  });

  test('a scheduler whose name makes an id longer than any other may be is told so', () => {
    expect(refusalOf({ v: 1, texts: ['a'] }, `repeat:${'x'.repeat(250)}:17`)).toEqual({
      code: 'JOB_INVALID',
      message: expect.stringContaining('it has 260 characters'),
    });
  });
});

test('a higher version is for a newer worker, whatever else is in the job', () => {
  expect(refusalOf({ v: 3 })).toEqual({
    code: 'JOB_VERSION_UNKNOWN',
    message: expect.stringMatching(/version 3; this worker knows versions up to 2/),
  });
  expect(refusalOf({ v: 3, anything: true, texts: 'new' }).code).toBe('JOB_VERSION_UNKNOWN');
});

function classOf(rows: number, more: object = {}): string {
  return parseJob('a', 'embed', { v: 1, input: { form: 'texts', rows }, ...more }).class;
}

// Bodies of POST /v1/embeddings: what is taken, and for everything else the field and the reason.

import { describe, expect, test } from 'vitest';
import { MAX_INPUTS, parseEmbeddingsRequest, type ServedModel } from './embeddings-request.ts';
import { Problem } from './problem.ts';
import { FOREIGN_IDS } from './testing/foreign-ids.ts';

const model: ServedModel = {
  name: 'minilm',
  revision: 'abc123',
  dims: 384,
  vocabularySize: 30_522,
  rowEnds: { first: 101, last: 102 },
  tokenRows: 'whole',
  truncate: 'error',
  prompts: { query: 'query: ', passage: '' },
  isNormalized: true,
};

function refusal(body: unknown): object {
  try {
    return { taken: parseEmbeddingsRequest(body, model) };
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const { status, type, code, param } = error.facts;
    return { status, type, code, param, message: error.message };
  }
}

const lengthAsked = (isNormalized: boolean, normalize: unknown): boolean =>
  parseEmbeddingsRequest({ model: 'minilm', input: 'a', normalize }, { ...model, isNormalized }).normalize;

describe('taken', () => {
  const defaults = { encoding: 'float', dimensions: undefined, truncate: 'error', prompt: undefined, normalize: false };

  test.each([
    ['one text', 'a', { kind: 'texts', texts: ['a'] }],
    ['several texts', ['a', ' '], { kind: 'texts', texts: ['a', ' '] }],
    ['token ids of one text', [101, 0, 30_521, 102], { kind: 'tokens', rows: [[101, 0, 30_521, 102]] }],
    ['token ids of nothing', [101, 102], { kind: 'tokens', rows: [[101, 102]] }],
    [
      'token ids of several texts',
      [
        [101, 5, 102],
        [101, 102, 7, 102],
      ],
      {
        kind: 'tokens',
        rows: [
          [101, 5, 102],
          [101, 102, 7, 102],
        ],
      },
    ],
    [
      'as many texts as there may be',
      Array.from({ length: MAX_INPUTS }, () => 'a'),
      { kind: 'texts', texts: { length: MAX_INPUTS } },
    ],
  ])('%s', (_, input, expected) => {
    expect(parseEmbeddingsRequest({ model: 'minilm', input }, model)).toMatchObject({ ...defaults, input: expected });
  });

  test('every option, and the model with its revision', () => {
    const body = {
      model: 'minilm@abc123',
      input: 'a',
      encoding_format: 'base64',
      dimensions: 384,
      user: 'u',
      truncate: 'end',
      prompt: 'query',
      input_type: 'search_query',
    };
    expect(parseEmbeddingsRequest(body, model)).toEqual({
      input: { kind: 'texts', texts: ['a'] },
      encoding: 'base64',
      dimensions: 384,
      truncate: 'end',
      prompt: 'query',
      normalize: false,
      user: 'u',
    });
  });

  test('prompts by the names that the model has, before what people call its sides, and none at all', () => {
    const named: ServedModel = { ...model, prompts: { search_query: 's: ', document: 'd: ', 's2p.query': 'x: ' } };
    const ask = (prompt: string): string | undefined =>
      parseEmbeddingsRequest({ model: 'minilm', input: 'a', prompt }, named).prompt;
    expect(['search_query', 'passage', 'document', 's2p.query', 'none'].map(ask)).toEqual([
      'search_query',
      'passage',
      'document',
      's2p.query',
      'none',
    ]);
    expect(() => ask('clustering')).toThrow(/must be "search_query" or "document" or "s2p\.query" or .*"none", found/);
  });

  test('length 1 of a model that gives each vector its own, and nothing more of one that normalizes', () => {
    expect([true, false, undefined].map((asked) => lengthAsked(false, asked))).toEqual([true, false, false]);
    expect([true, undefined].map((asked) => lengthAsked(true, asked))).toEqual([false, false]);
    expect(() => lengthAsked(true, false)).toThrow(/the vectors of minilm have length 1 and cannot be had otherwise/);
    expect(() => lengthAsked(false, 'yes')).toThrow(/"normalize" must be true or false/);
  });

  test.each([
    ['query', 'query'],
    ['passage', 'passage'],
    ['document', 'passage'],
    ['search_query', 'query'],
    ['search_document', 'passage'],
  ])('"%s" is the prompt for a %s, by both names of the field', (asked, prompt) => {
    for (const field of ['prompt', 'input_type'])
      expect(parseEmbeddingsRequest({ model: 'minilm', input: 'a', [field]: asked }, model)).toMatchObject({ prompt });
  });

  test('the server’s truncate, but where the request says otherwise', () => {
    const cutting: ServedModel = { ...model, truncate: 'end' };
    expect(parseEmbeddingsRequest({ model: 'minilm', input: 'a' }, cutting)).toMatchObject({ truncate: 'end' });
    expect(parseEmbeddingsRequest({ model: 'minilm', input: 'a', truncate: 'error' }, cutting)).toMatchObject({
      truncate: 'error',
    });
  });

  test('null for what was left out', () => {
    expect(
      parseEmbeddingsRequest(
        { model: 'minilm', input: 'a', encoding_format: null, dimensions: null, user: null, truncate: null },
        model,
      ),
    ).toMatchObject(defaults);
  });
});

describe('refused, with the field and a code', () => {
  const ok = { model: 'minilm', input: 'a' };

  test.each([
    ['no object', null, 'invalid_type', null],
    ['an array', [], 'invalid_type', null],
    ['a text', 'a', 'invalid_type', null],
    ['nothing', undefined, 'invalid_type', null],
    ['an unknown field', { ...ok, inputs: 'a' }, 'unknown_parameter', 'inputs'],
    ['no model', { input: 'a' }, 'missing_required_parameter', 'model'],
    ['a model that is no string', { input: 'a', model: 7 }, 'invalid_type', 'model'],
    ['no input', { model: 'minilm' }, 'missing_required_parameter', 'input'],
    ['an object as input', { ...ok, input: {} }, 'invalid_type', 'input'],
    ['a number as input', { ...ok, input: 7 }, 'invalid_type', 'input'],
    ['true as input', { ...ok, input: true }, 'invalid_type', 'input'],
    ['an empty text', { ...ok, input: '' }, 'empty_string', 'input'],
    ['no texts', { ...ok, input: [] }, 'empty_array', 'input'],
    ['an empty text among others', { ...ok, input: ['a', ''] }, 'empty_string', 'input[1]'],
    ['half of a surrogate pair', { ...ok, input: 'fish \ud83d' }, 'invalid_value', 'input'],
    ['half of one among texts', { ...ok, input: ['\u{1f41f}', '\udc1f fish'] }, 'invalid_value', 'input[1]'],
    ['half of one as user', { ...ok, user: '\ud83d' }, 'invalid_value', 'user'],
    ['a number among texts', { ...ok, input: ['a', 1] }, 'invalid_type', 'input[1]'],
    ['null among texts', { ...ok, input: ['a', null] }, 'invalid_type', 'input[1]'],
    ['null as first text', { ...ok, input: [null] }, 'invalid_type', 'input[0]'],
    [
      'too many texts',
      { ...ok, input: Array.from({ length: MAX_INPUTS + 1 }, () => 'a') },
      'array_above_max_length',
      'input',
    ],
    [
      'too many token rows',
      { ...ok, input: Array.from({ length: MAX_INPUTS + 1 }, () => [1]) },
      'array_above_max_length',
      'input',
    ],
    ['an empty row', { ...ok, input: [[101, 102], []] }, 'empty_array', 'input[1]'],
    ['a text among rows', { ...ok, input: [[101, 102], 'a'] }, 'invalid_type', 'input[1]'],
    ['a text among ids', { ...ok, input: [1, 'a'] }, 'invalid_type', 'input[1]'],
    ['half an id', { ...ok, input: [1, 1.5] }, 'invalid_type', 'input[1]'],
    ['an id outside the vocabulary', { ...ok, input: [1, 30_522] }, 'invalid_token', 'input[1]'],
    [
      'an id outside the vocabulary in a row',
      {
        ...ok,
        input: [
          [101, 102],
          [2, 100_000],
        ],
      },
      'invalid_token',
      'input[1][1]',
    ],
    ['a negative id', { ...ok, input: [-1] }, 'invalid_token', 'input[0]'],
    ['an unknown encoding', { ...ok, encoding_format: 'hex' }, 'invalid_value', 'encoding_format'],
    ['an encoding that is no string', { ...ok, encoding_format: 1 }, 'invalid_value', 'encoding_format'],
    ['no dimensions', { ...ok, dimensions: 0 }, 'integer_below_min_value', 'dimensions'],
    ['more dimensions than there are', { ...ok, dimensions: 385 }, 'integer_above_max_value', 'dimensions'],
    ['half a dimension', { ...ok, dimensions: 1.5 }, 'invalid_type', 'dimensions'],
    ['dimensions as text', { ...ok, dimensions: '8' }, 'invalid_type', 'dimensions'],
    ['a user that is no string', { ...ok, user: 7 }, 'invalid_type', 'user'],
    ['an unknown prompt', { ...ok, prompt: 'clustering' }, 'invalid_value', 'prompt'],
    ['an unknown input type', { ...ok, input_type: 'classification' }, 'invalid_value', 'input_type'],
    ['two prompts', { ...ok, prompt: 'query', input_type: 'document' }, 'invalid_value', 'input_type'],
    ['a prompt for token ids', { ...ok, input: [101, 7, 102], input_type: 'query' }, 'invalid_value', 'input_type'],
    ['an unknown way to truncate', { ...ok, truncate: 'start' }, 'invalid_value', 'truncate'],
    [
      'a field of the prototype',
      JSON.parse('{"model":"minilm","input":"a","constructor":1}'),
      'unknown_parameter',
      'constructor',
    ],
  ])('%s', (_, body, code, param) => {
    expect(refusal(body)).toMatchObject({ status: 400, type: 'invalid_request_error', code, param });
  });

  test.each(Object.entries(FOREIGN_IDS))('every row of %s, with what to do about it', (_, rows) => {
    for (const row of rows) {
      for (const input of [row, [row], [[101, 7, 102], row]])
        expect(refusal({ ...ok, input })).toMatchObject({ status: 400, code: 'invalid_token' });
    }
    const short = rows.filter((row) => row.every((id) => id < model.vocabularySize));
    expect(short.length).toBeGreaterThan(20);
    for (const row of short)
      expect(refusal({ ...ok, input: [[101, 7, 102], row] })).toMatchObject({
        param: 'input[1]',
        message: expect.stringMatching(/own tokenizer.*check_embedding_ctx_length=False/),
      });
  });

  test.each([
    ['one end token at the beginning', [101, 7]],
    ['one at the end', [7, 102]],
    ['one alone', [101]],
    ['the other alone', [102]],
    ['both the wrong way round', [102, 7, 101]],
    ['both in the middle', [7, 101, 102, 7]],
    ['the beginning and end of another model', [1, 15_043, 3_186, 2]],
  ])('ids with %s', (_, input) => {
    expect(refusal({ ...ok, input })).toMatchObject({ status: 400, code: 'invalid_token', param: 'input' });
  });

  test.each(['prompt', 'input_type'])('%s where the model has no prompts, by its name', (field) => {
    const plain: ServedModel = { ...model, prompts: { query: '', passage: '' } };
    expect(() => parseEmbeddingsRequest({ ...ok, [field]: 'query' }, plain)).toThrow(
      new RegExp(`minilm has no prompts.*leave "${field}" out`),
    );
  });

  test('a server that takes bare ids takes them as they are', () => {
    const bare = parseEmbeddingsRequest({ ...ok, input: [[7], [101, 7]] }, { ...model, tokenRows: 'bare' });
    expect(bare.input).toEqual({ kind: 'tokens', rows: [[7], [101, 7]] });
  });

  test('another model: 404, with the name of the one that is here', () => {
    expect(refusal({ ...ok, model: 'text-embedding-3-small' })).toMatchObject({
      status: 404,
      code: 'model_not_found',
      param: 'model',
      message: expect.stringContaining('"minilm"'),
    });
    expect(refusal({ ...ok, model: 'minilm@other' })).toMatchObject({ status: 404 });
  });

  test('a name of the hub is that of the store; of another one both are told', () => {
    const pulled = { ...model, name: 'intfloat--e5-small' };
    for (const name of ['intfloat/e5-small', 'IntFloat/E5-small', 'intfloat--e5-small', 'intfloat--e5-small@abc123'])
      expect(parseEmbeddingsRequest({ ...ok, model: name }, pulled)).toMatchObject({ input: { kind: 'texts' } });
    expect(refusal({ ...ok, model: 'BAAI/bge-m3' })).toMatchObject({
      status: 404,
      message:
        'there is no model "BAAI/bge-m3" ("baai--bge-m3" in the store) here; this server has "minilm" ' +
        '(also as "minilm@abc123")',
    });
    // a revision of the hub is none of the weights
    expect(() => parseEmbeddingsRequest({ ...ok, model: 'intfloat/e5-small@abc123' }, pulled)).toThrow(
      /no model "intfloat\/e5-small@abc123" here/,
    );
  });

  test('what a caller sent is repeated in part only', () => {
    const long = 'x'.repeat(100_000);
    for (const body of [
      { ...ok, model: long },
      { ...ok, [long]: 1 },
      { ...ok, encoding_format: long },
    ])
      expect(JSON.stringify(refusal(body)).length).toBeLessThan(600);
  });
});

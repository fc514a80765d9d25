import { describe, expect, test } from 'vitest';
import { LineProblem, endedLine, outputLine, parseLine, problemLine } from './batch-lines.ts';
import { MAX_LINE_BYTES, linesOf, type TextLine } from './jsonl.ts';
import { invalid } from '../problem.ts';
import { gathered } from '../testing/gathered.ts';

async function* pieces(bytes: Buffer, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function lines(
  bytes: Buffer | string,
  size = 1_000,
  from?: { line: number; offset: number },
): Promise<TextLine[]> {
  return gathered(linesOf(pieces(Buffer.from(bytes), size), from));
}

describe('lines of a file', () => {
  test.each([1, 2, 3, 7, 1_000])('are the same in pieces of %i bytes, and where each ends', async (size) => {
    expect(await lines('{"a":1}\n\n  \r\n{"ä":2}\r\n{"c":3}', size)).toEqual([
      { number: 1, text: '{"a":1}', endOffset: 8 },
      { number: 4, text: '{"ä":2}\r', endOffset: 23 },
      { number: 5, text: '{"c":3}', endOffset: 30 },
    ]);
  });

  test('go on at the end of any of them', async () => {
    const file = Buffer.from('{"a":1}\n{"b":2}\n\n{"c":3}\n');
    const all = await lines(file, 4);
    for (const { number, endOffset } of all) {
      const rest = await lines(file.subarray(endOffset), 4, { line: number, offset: endOffset });
      expect(rest).toEqual(all.filter((line) => line.number > number));
    }
  });

  test('one that is too long or no UTF-8 is named, and the next is read', async () => {
    const long = Buffer.alloc(MAX_LINE_BYTES + 1, 'x');
    const file = Buffer.concat([long, Buffer.from('\n'), Buffer.from([0x22, 0xff, 0x22, 0x0a]), Buffer.from('{}')]);
    const found = await lines(file, 1 << 20);
    expect(found).toEqual([
      { number: 1, text: undefined, problem: expect.stringContaining('longer than'), endOffset: long.length + 1 },
      { number: 2, text: undefined, problem: 'the line is not UTF-8', endOffset: long.length + 5 },
      { number: 3, text: '{}', endOffset: file.length },
    ]);
  });

  test('a mark of the order of bytes is passed over at the beginning alone', async () => {
    expect((await lines('\uFEFF{}\n\uFEFF{}')).map(({ text }) => text)).toEqual(['{}', '\uFEFF{}']);
  });
});

const GOOD = { custom_id: 'a', method: 'POST', url: '/v1/embeddings', body: { model: 'm', input: 'x' } };
const read = (text: string): unknown => parseLine({ number: 7, text, endOffset: 0 }, '/v1/embeddings');

describe('a line of a batch', () => {
  test('is read', () => {
    expect(read(JSON.stringify(GOOD))).toEqual({ number: 7, customId: 'a', body: GOOD.body });
  });

  test.each([
    ['no JSON', '{"custom_id": "a"', 'invalid_json_line', null],
    ['an array', '[1]', 'invalid_json_line', null],
    ['no custom_id', { ...GOOD, custom_id: undefined }, 'missing_required_parameter', 'custom_id'],
    ['a number as custom_id', { ...GOOD, custom_id: 5 }, 'invalid_value', 'custom_id'],
    ['an empty custom_id', { ...GOOD, custom_id: '' }, 'invalid_value', 'custom_id'],
    ['a long custom_id', { ...GOOD, custom_id: 'x'.repeat(513) }, 'invalid_value', 'custom_id'],
    ['GET', { ...GOOD, method: 'GET' }, 'invalid_method', 'method'],
    ['another endpoint', { ...GOOD, url: '/v1/rerank' }, 'invalid_url', 'url'],
    ['no body', { ...GOOD, body: undefined }, 'invalid_type', 'body'],
    ['a text as body', { ...GOOD, body: 'x' }, 'invalid_type', 'body'],
    ['an unknown field', { ...GOOD, user: 'x' }, 'unknown_parameter', 'user'],
  ])('with %s is refused by code and field', (_, line, code, param) => {
    const text = typeof line === 'string' ? line : JSON.stringify(line);
    let problem: unknown;
    try {
      read(text);
    } catch (error) {
      problem = error;
    }
    expect(problem).toBeInstanceOf(LineProblem);
    const { error } = problem as LineProblem;
    expect(error).toMatchObject({ code, param, line: 7 });
    expect(error.message).toMatch(/^line 7: /);
  });
});

test('lines of the output and error files have OpenAI’s fields, and the same ids whoever writes them', () => {
  const line = { number: 3, customId: 'c', body: {} };
  const [answered, again] = [outputLine('batch_1', line, { data: [] }), outputLine('batch_1', line, { data: [] })];
  expect(answered).toBe(again);
  expect(JSON.parse(answered)).toEqual({
    id: expect.stringMatching(/^batch_req_[0-9a-f]{32}$/),
    custom_id: 'c',
    response: { status_code: 200, request_id: expect.stringMatching(/^req_/), body: { data: [] } },
    error: null,
  });
  const problem = invalid('empty_string', 'input', 'the text is empty');
  expect(JSON.parse(problemLine('batch_1', line, problem))).toMatchObject({
    response: { status_code: 400, body: { error: { code: 'empty_string', param: 'input' } } },
    error: null,
  });
  expect(JSON.parse(endedLine('batch_1', line, 'expired'))).toMatchObject({
    response: null,
    error: { code: 'batch_expired' },
  });
});

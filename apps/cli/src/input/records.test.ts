import { describe, expect, test } from 'vitest';
import { ReadingNotes, isEmptyText } from '@shoal/worker/files/reading-notes';
import type { RecordOptions, TextFormat } from '@shoal/worker/files/record';
import { readRecords } from './records.ts';

async function* once(bytes: Buffer): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += 3) yield bytes.subarray(at, at + 3);
}

/** As Array.fromAsync, which Node 22 has and TypeScript's es2024 has not. */
async function all<Value>(values: AsyncIterable<Value>): Promise<Value[]> {
  const found: Value[] = [];
  for await (const value of values) found.push(value);
  return found;
}

async function* long(): AsyncGenerator<Buffer> {
  yield Buffer.alloc(20_000_000, 'word ');
}

async function recordsOf(content: string | Buffer, options: Partial<RecordOptions> = {}) {
  const defaults: RecordOptions = {
    format: 'text',
    name: 'a.txt',
    firstIndex: 0,
    textField: 'text',
    idField: undefined,
  };
  return all(readRecords(once(Buffer.from(content)), { ...defaults, ...options }));
}

const jsonl = (content: string, options: Partial<RecordOptions> = {}) =>
  recordsOf(content, { format: 'jsonl', name: 'a.jsonl', ...options });

describe('records of plain text', () => {
  test('are its lines; an empty line is an empty text', async () => {
    expect(await recordsOf('one\n\nthree\r\n')).toEqual([
      { index: 0, id: undefined, text: 'one', file: 'a.txt', line: 1 },
      { index: 1, id: undefined, text: '', file: 'a.txt', line: 2 },
      { index: 2, id: undefined, text: 'three', file: 'a.txt', line: 3 },
    ]);
  });

  test('begin after a byte order mark', async () => {
    expect(await recordsOf('\uFEFFone\n\uFEFFtwo')).toMatchObject([{ text: 'one' }, { text: '\uFEFFtwo' }]);
    expect(await recordsOf('\uFEFF')).toEqual([]);
    expect(await recordsOf('\uFEFF\n')).toMatchObject([{ text: '' }]);
  });

  test('with characters across chunk borders are whole', async () => {
    expect(await recordsOf('grüße 🐟🐟 魚')).toMatchObject([{ text: 'grüße 🐟🐟 魚' }]);
  });

  test.each([
    ['a stray continuation byte', [0x6f, 0x6b, 0x0a, 0x61, 0x80, 0x62], 4, '80'],
    ['a truncated sequence at the end', [0x61, 0xe2, 0x82], 1, 'e2'],
    ['a real U+FFFD before the bad byte', [0xef, 0xbf, 0xbd, 0x61, 0xff], 4, 'ff'],
    ['a byte order mark before the bad byte', [0xef, 0xbb, 0xbf, 0x61, 0xff], 4, 'ff'],
    ['a surrogate in UTF-8', [0x61, 0xed, 0xa0, 0x80], 1, 'ed'],
  ])('with invalid UTF-8 are refused by file, line and byte: %s', async (_, bytes, at, value) => {
    const records = await recordsOf(Buffer.from(bytes));
    expect(records.at(-1)).toMatchObject({
      problem: expect.stringMatching(new RegExp(`^a\\.txt, line \\d: not valid UTF-8 at byte ${at} \\(0x${value}\\)`)),
    });
  });

  test('are cut after a MiB of characters, far behind what any model reads', async () => {
    const [record] = await all(
      readRecords(long(), {
        format: 'text',
        name: 'a.txt',
        firstIndex: 0,
        textField: 'text',
        idField: undefined,
      }),
    );
    expect(record).toMatchObject({ text: 'word '.repeat(209_716).slice(0, 1024 * 1024) });
  });

  test('above the longest line are refused by file and line', async () => {
    expect(await recordsOf(`ok\n${'x'.repeat(3_000)}\nok`, { maxLineBytes: 2048 })).toMatchObject([
      { text: 'ok' },
      { index: 1, problem: expect.stringContaining('a.txt, line 2: the line is longer than') },
      { index: 2, text: 'ok' },
    ]);
  });
});

describe('what reading counts', () => {
  test.each<[string, string, TextFormat, object]>([
    ['CR beside LF', 'a\rb\nc\r', 'text', { loneCarriageReturns: 2 }],
    ['CR alone', 'a\rb\r', 'text', {}],
    ['blank lines of JSONL', '\n{"text":"x"}\n  \n', 'jsonl', { blankLines: 2 }],
    ['blank lines of CSV', 'text\n\nx\n', 'csv', { blankLines: 1 }],
    ['a text of more than a MiB', `${'x'.repeat(1024 * 1024 - 1)}🐟`, 'text', { clippedTexts: 1 }],
  ])('of %s', async (_, content, format, counts) => {
    const notes = new ReadingNotes();
    const records = await recordsOf(content, { format, notes });
    expect(notes.counts).toEqual(counts);
    expect(records.every((record) => 'text' in record && record.text.isWellFormed())).toBe(true);
  });

  test('is told in a line for each kind', () => {
    const notes = new ReadingNotes();
    notes.add('emptyTexts', 1_200);
    notes.add('frontMatter');
    expect(notes.lines).toEqual([
      '1,200 texts are empty; all empty texts have one and the same vector',
      '1 front matter left out',
    ]);
  });

  test('as empty is white space of any kind, and nothing that can be seen', () => {
    for (const text of ['', ' \t\r\n', '\u3000\u00A0', '\u200B\uFEFF']) expect(isEmptyText(text)).toBe(true);
    for (const text of ['.', '魚', '👍', '\u0301']) expect(isEmptyText(text)).toBe(false);
  });
});

describe('a NUL', () => {
  test.each<TextFormat>(['text', 'jsonl', 'csv', 'markdown'])('is refused with its place in %s', async (format) => {
    const content = format === 'jsonl' ? '{"text":"a\0b"}\n' : 'text\na\0b\n';
    expect((await recordsOf(content, { format })).at(-1)).toMatchObject({
      problem: expect.stringContaining(`a NUL at byte ${content.indexOf('\0')}`),
    });
  });
});

describe('records of JSONL', () => {
  test('keep ids of both kinds, and do without', async () => {
    expect(await jsonl('{"id":"a","text":"x"}\n{"id":7,"text":"y"}\n{"text":"z"}')).toMatchObject([
      { index: 0, id: 'a', text: 'x' },
      { index: 1, id: 7, text: 'y' },
      { index: 2, id: undefined, text: 'z' },
    ]);
  });

  test('take other field names', async () => {
    expect(await jsonl('{"key":"a","body":"x","id":{}}', { textField: 'body', idField: 'key' })).toMatchObject([
      { index: 0, id: 'a', text: 'x' },
    ]);
  });

  test('skip blank lines', async () => {
    expect(await jsonl('\n{"text":"x"}\n  \n')).toMatchObject([{ index: 0, id: undefined, text: 'x', line: 2 }]);
  });

  test.each([
    ['{"text":', 'line 1: not valid JSON'],
    ['["x"]', 'line 1: expected a JSON object, found an array'],
    ['{"body":"x"}', 'line 1: the object has no field "text" (it has "body"); name the field with --text-field'],
    ['{"text":5}', 'line 1: field "text" is a number, not a string'],
    ['{"text":null}', 'line 1: field "text" is null, not a string'],
    ['{"text":"x","id":[1]}', 'line 1: field "id" is an array; an id is a string or a number'],
    ['{"text":"x","id":12345678901234567890}', 'line 1: field "id" is a number too large to be kept exactly'],
    ['{"text":"fish \\ud83d"}', 'line 1: field "text" has half of a surrogate pair'],
    ['{"text":"x","id":"\\udc1f"}', 'line 1: field "id" has half of a surrogate pair'],
    ['{"__proto__":{"text":"x"}}', 'line 1: the object has no field "text"'],
  ])('that are wrong say how: %s', async (line, problem) => {
    expect(await jsonl(line)).toMatchObject([{ index: 0, problem: expect.stringContaining(`a.jsonl, ${problem}`) }]);
  });

  test('keep whole surrogate pairs', async () => {
    expect(await jsonl('{"id":"\\ud83d\\udc1f","text":"\\ud83d\\udc1f"}')).toMatchObject([{ id: '🐟', text: '🐟' }]);
  });

  test('without the id field that was asked for are refused', async () => {
    expect(await jsonl('{"text":"x"}', { idField: 'key' })).toMatchObject([
      { problem: expect.stringContaining('no field "key" (--id-field)') },
    ]);
  });
});

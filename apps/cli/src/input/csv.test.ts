import { describe, expect, test } from 'vitest';
import { readCsv, type CsvOptions } from './csv.ts';

async function* chunksOf(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function rowsOf(
  content: string | Buffer,
  { size = 7, ...options }: Partial<CsvOptions> & { size?: number } = {},
) {
  const found: unknown[] = [];
  for await (const row of readCsv(chunksOf(Buffer.from(content), size), { delimiter: ',', ...options }))
    found.push('fields' in row ? [row.line, ...row.fields] : row);
  return found;
}

describe('rows of CSV', () => {
  test.each([1, 2, 3, 5, 1_000])('are the same whatever the size of the chunks (%i bytes)', async (size) => {
    expect(await rowsOf('a,"b ""c"" ü",d\r\n1,"two\r\nlines",3\n,,\n', { size })).toEqual([
      [1, 'a', 'b "c" ü', 'd'],
      [2, '1', 'two\r\nlines', '3'],
      [4, '', '', ''],
    ]);
  });

  test('keep what stands in quotes as it is: delimiters, quotes, line ends, spaces', async () => {
    expect(await rowsOf('"a,b","""","",\n"x\n\n\ny"," z "')).toEqual([
      [1, 'a,b', '"', '', ''],
      [2, 'x\n\n\ny', ' z '],
    ]);
  });

  test('end with a carriage return alone, which stays as it is in quotes', async () => {
    expect(await rowsOf('a,b\r1,"x\ry"\r')).toEqual([
      [1, 'a', 'b'],
      [2, '1', 'x\ry'],
    ]);
  });

  test('begin after a byte order mark, also before a quote', async () => {
    expect(await rowsOf('\uFEFF"a",b')).toEqual([[1, 'a', 'b']]);
  });

  test('are divided by what is asked for', async () => {
    expect(await rowsOf('a;b,c\n"d;e";f', { delimiter: ';' })).toEqual([
      [1, 'a', 'b,c'],
      [2, 'd;e', 'f'],
    ]);
    expect(await rowsOf('a\tb c\n', { delimiter: '\t' })).toEqual([[1, 'a', 'b c']]);
  });

  test('that are blank are none; a quoted empty field is one', async () => {
    expect(await rowsOf('\na\n\n\r\n""\n')).toEqual([
      [2, 'a'],
      [5, ''],
    ]);
    expect(await rowsOf('')).toEqual([]);
    expect(await rowsOf('\uFEFF\n')).toEqual([]);
  });

  test('take a quote inside a field that does not begin with one as it is', async () => {
    expect(await rowsOf('5" disk,x\n')).toEqual([[1, '5" disk', 'x']]);
  });

  test('with a quote that is never closed are named by their first line, and where it was opened', async () => {
    expect(await rowsOf('a,b\n1,"x\n2,y\n')).toEqual([
      [1, 'a', 'b'],
      { line: 2, problem: expect.stringMatching(/^the quote that opens field 2 is never closed/) },
    ]);
    expect(await rowsOf('"two\nlines","open')).toEqual([
      { line: 1, problem: expect.stringContaining('the quote that opens field 2 on line 2 is never closed') },
    ]);
  });

  test('that go on behind a closing quote are wrong, and the rows behind them are not', async () => {
    expect(await rowsOf('"a"b,c\nd,e\n')).toEqual([
      { line: 1, problem: expect.stringContaining('field 1 goes on behind its closing quote ("b,c")') },
      [2, 'd', 'e'],
    ]);
  });

  test('with bytes that are no UTF-8 are named by the byte in the file; the quotes in them count', async () => {
    expect(await rowsOf(Buffer.from('ok,"a\n\xff b\nc"\nd,e', 'latin1'))).toEqual([
      { line: 1, problem: expect.stringContaining('not valid UTF-8 at byte 6 (0xff)') },
      [4, 'd', 'e'],
    ]);
  });

  test('above the limit are dropped while they are read', async () => {
    expect(await rowsOf(`a,"${'x\n'.repeat(60)}",b\nc,d\n${'y'.repeat(200)}\ne,f\n`, { maxLineBytes: 64 })).toEqual([
      { line: 1, problem: expect.stringContaining('the row is longer than') },
      [62, 'c', 'd'],
      { line: 63, problem: expect.stringContaining('the row is longer than') },
      [64, 'e', 'f'],
    ]);
  });

  test('of random fields are read as they were written', async () => {
    const parts = ['', 'a', ',', '"', '\n', '\r\n', ' ', 'ü', '🐟', ';'];
    const pick = (seed: number): string => parts[seed % parts.length]!;
    const table = Array.from({ length: 500 }, (_, row) =>
      Array.from({ length: 3 }, (_unused, column) => pick(row * 7 + column) + pick(row * 3 + column * 5) + pick(row)),
    );
    const written = table
      .map((fields) => `${fields.map((field) => `"${field.replaceAll('"', '""')}"`).join(',')}\r\n`)
      .join('');
    expect((await rowsOf(written, { size: 13 })).map((row) => (row as unknown[]).slice(1))).toEqual(table);
  });
});

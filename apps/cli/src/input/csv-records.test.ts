import { describe, expect, test } from 'vitest';
import type { RecordOptions } from '@shoal/worker/files/record';
import { readRecords } from './records.ts';

async function* once(content: string): AsyncGenerator<Buffer> {
  yield Buffer.from(content);
}

async function recordsOf(content: string, options: Partial<RecordOptions> = {}) {
  const found = [];
  for await (const record of readRecords(once(content), {
    format: 'csv',
    name: 'a.csv',
    firstIndex: 0,
    textField: undefined,
    idField: undefined,
    ...options,
  }))
    found.push(record);
  return found;
}

describe('records of CSV', () => {
  test('have the text and id of their header, and the line on which they begin', async () => {
    expect(await recordsOf('id,lang,text\n7,en,"one\ntwo"\n,de,drei\n')).toEqual([
      { index: 0, id: '7', text: 'one\ntwo', file: 'a.csv', line: 2 },
      { index: 1, id: undefined, text: 'drei', file: 'a.csv', line: 4 },
    ]);
  });

  test('take other fields, by name or by number', async () => {
    const content = 'key, body ,1\na,x,p\n';
    expect(await recordsOf(content, { textField: 'body', idField: 'key' })).toMatchObject([{ id: 'a', text: 'x' }]);
    // a name goes before a number
    expect(await recordsOf(content, { textField: '2', idField: '1' })).toMatchObject([{ id: 'p', text: 'x' }]);
  });

  test('without a header have numbers; one field alone needs none', async () => {
    expect(await recordsOf('a,x\nb,y\n', { hasHeader: false, textField: '2', idField: '1' })).toMatchObject([
      { index: 0, id: 'a', text: 'x' },
      { index: 1, id: 'b', text: 'y' },
    ]);
    expect(await recordsOf('x\ny\n', { hasHeader: false })).toMatchObject([
      { id: undefined, text: 'x' },
      { text: 'y' },
    ]);
  });

  test('of a .tsv are divided by tabs unless told', async () => {
    expect(await recordsOf('id\ttext\n1\tx, y\n', { name: 'a.TSV' })).toMatchObject([{ id: '1', text: 'x, y' }]);
    expect(await recordsOf('text;n\nx\ty;1\n', { name: 'a.tsv', delimiter: ';' })).toMatchObject([{ text: 'x\ty' }]);
  });

  test('with another number of fields, or without the id that was asked for, are bad; neighbours are not', async () => {
    expect(await recordsOf('id,text\n1,x,y\n2\n,z\n3,good\n', { idField: 'id' })).toMatchObject([
      {
        index: 0,
        problem: expect.stringMatching(/^a\.csv, line 2: the row has 3 fields and the first row 2; .* needs quotes/),
      },
      { index: 1, problem: expect.stringContaining('a.csv, line 3: the row has 1 field and the first row 2') },
      { index: 2, problem: 'a.csv, line 4: the field of the id is empty (--id-field)' },
      { index: 3, id: '3', text: 'good', file: 'a.csv', line: 5 },
    ]);
  });

  test.each<[string, string, Partial<RecordOptions>]>([
    [
      'a,b\n',
      'line 1: the header has no field "text" (it has "a", "b"); name the field with --text-field, or say --no-header',
      {},
    ],
    ['a;b\n', `its fields look divided by ";": --delimiter ';'`, {}],
    ['a\tb\n', 'its fields look divided by tabs: --delimiter tab', {}],
    ['text\n', 'line 1: the header has no field "key" (it has "text"), which --id-field asks for', { idField: 'key' }],
    [
      'text,x,text\n',
      'line 1: the header has 2 fields "text"; give the number of one of them with --text-field: 1 or 3',
      {},
    ],
    [
      'a,b\n',
      'line 1: a row has 2 fields and no header names them; give the number of the text with --text-field',
      { hasHeader: false },
    ],
    [
      'a,b\n',
      'line 1: --text-field is "body"; without a header it is a number from 1 to 2',
      { hasHeader: false, textField: 'body' },
    ],
    [
      'a,b\n',
      'line 1: --id-field is "3"; without a header it is a number from 1 to 2',
      { hasHeader: false, textField: '1', idField: '3' },
    ],
    ['"text\n', 'line 1: the quote that opens field 1 is never closed', {}],
  ])('of a file in which they cannot be found: %j, %s', async (content, message, options) => {
    await expect(recordsOf(content, options)).rejects.toMatchObject({
      code: 'INPUT_INVALID',
      message: expect.stringContaining(message),
    });
  });

  test('of a header alone are none', async () => {
    expect(await recordsOf('id,text\n')).toEqual([]);
    expect(await recordsOf('')).toEqual([]);
  });
});

import { array, assert, asyncProperty, constantFrom, integer, jsonValue } from 'fast-check';
import { describe, expect, test } from 'vitest';
import { readArray } from '@shoal/worker/files/json-array';
import { readRecords } from './records.ts';

async function* chunksOf(text: string, size: number): AsyncGenerator<Buffer> {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function recordsOf(text: string, more: object = {}) {
  const options = {
    format: 'json',
    name: 'a.json',
    firstIndex: 0,
    textField: undefined,
    idField: undefined,
    ...more,
  } as const;
  const found = [];
  for await (const record of readRecords(chunksOf(text, 5), options)) found.push(record);
  return found;
}

describe('an array of JSON', () => {
  test('has the elements that JSON.parse has, however it is spaced and wherever it is cut', async () => {
    await assert(
      asyncProperty(
        array(jsonValue()),
        integer({ min: 1, max: 9 }),
        constantFrom(undefined, 1, '\t'),
        async (values, size, space) => {
          const found: unknown[] = [];
          for await (const elements of readArray(chunksOf(` ${JSON.stringify(values, undefined, space)}\n`, size)))
            found.push(...elements.map(({ bytes }) => JSON.parse(String(bytes))));
          expect(found).toEqual(JSON.parse(JSON.stringify(values)));
        },
      ),
      { numRuns: 60 },
    );
  });

  test('is of objects or of strings, each a record with its place', async () => {
    expect(await recordsOf('\uFEFF[{"id": 7, "text": "one"}, "two", 3]')).toEqual([
      { index: 0, id: 7, text: 'one', file: 'a.json', line: 1, unit: 'element' },
      { index: 1, id: undefined, text: 'two', file: 'a.json', line: 2, unit: 'element' },
      expect.objectContaining({ problem: 'a.json, element 3: expected an object or a string, found a number' }),
    ]);
    expect(await recordsOf('[]')).toEqual([]);
  });

  test.each([
    ['{"text": "one"}', 'it is no array; .json is one array of objects or of strings'],
    ['', 'the file is empty'],
    ['[{"text": "one"}, {"te', 'the array is never closed: the file ends in element 2, and seems to be cut'],
    ['["one"] ["two"]', 'something stands behind the end of the array, at byte 8'],
  ])('is refused where it is none: %s', async (text, message) => {
    await expect(recordsOf(text)).rejects.toThrow(message);
  });

  test('names an element that is wrong, and goes on behind it', async () => {
    const found = await recordsOf('["one", , {"text": }, "a" "b", "two",]');
    expect(found.map((record) => ('text' in record ? record.text : record.problem.slice(0, 25)))).toEqual([
      'one',
      'a.json, element 2: not va',
      'a.json, element 3: not va',
      'a.json, element 4: not va',
      'two',
      'a.json, element 6: not va',
    ]);
  });

  test('an element above the limit is dropped while it is read', async () => {
    const found = await recordsOf(`["${'x'.repeat(100)}", "y"]`, { maxLineBytes: 64 });
    expect(found).toEqual([
      expect.objectContaining({ problem: expect.stringContaining('the element is longer than') }),
      expect.objectContaining({ text: 'y' }),
    ]);
  });
});

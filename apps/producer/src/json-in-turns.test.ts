// JSON in turns is JSON as JSON.parse has it, wherever it is cut; what is no JSON, or no request of ours, is refused.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { loopTurn } from '@shoal/core/base';
import { parseInTurns } from './json-in-turns.ts';
import { Problem } from './problem.ts';

const RUNS = process.env['SHOAL_TEST_NIGHTLY'] === undefined ? 300 : 4_000;

async function outcome(text: string, piece: number): Promise<unknown> {
  try {
    return await parseInTurns(Buffer.from(text), loopTurn, { slice: 3 + piece, piece });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return error.facts.code;
  }
}

function whole(text: string): unknown {
  try {
    return JSON.parse(Buffer.from(text).toString()); // half a surrogate pair is none in UTF-8
  } catch {
    return 'invalid_json';
  }
}

const leaf = fc.oneof(
  fc.constantFrom<unknown>(null, true, -0, 1.5e-7, '', '"\\', '漢"é', '\u{1f600}', '\ud800', ']},{[', 'a,b'),
  fc.integer(),
  fc.string({ unit: 'binary', maxLength: 5 }),
);
const document = fc.oneof(leaf, fc.record({ text: leaf, more: leaf }, { requiredKeys: [] }));
const lists = fc.oneof(
  leaf,
  fc.array(leaf),
  fc.array(document),
  fc.array(fc.array(leaf)),
  fc.array(fc.array(fc.array(leaf))),
);
const name = fc.oneof(fc.constantFrom('input', 'model', '0', 'constructor', 'a"b', ''), fc.string({ maxLength: 3 }));
const bodies = fc
  .tuple(fc.array(fc.tuple(name, lists), { maxLength: 5 }), fc.constantFrom(undefined, 1))
  .map(([fields, indent]) => {
    const text = fields.map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value, null, indent)}`);
    return `{${text.join(indent === undefined ? ',' : ' ,\n')}}`;
  });

async function isSame(text: string, piece: number): Promise<void> {
  expect(await outcome(text, piece)).toEqual(whole(text));
}

/** Objects within and lists too deep are refused by name, which JSON.parse knows nothing of. */
const REFUSED_BY_NAME = /\{.*\{|\[.*\[.*\[.*\[|^\s*\[/s;

async function agrees(text: string, at: number, put: string, cut: number, piece: number): Promise<void> {
  const place = at % (text.length + 1);
  const changed = text.slice(0, place) + put + text.slice(place + cut);
  const found = await outcome(changed, piece);
  const isByName = found === 'invalid_type' && REFUSED_BY_NAME.test(changed);
  expect(isByName ? whole(changed) : found).toEqual(whole(changed));
}

describe('a body', () => {
  test('is what JSON.parse makes of it, the same field twice among them', async () => {
    await fc.assert(fc.asyncProperty(bodies, fc.integer({ min: 1, max: 9 }), isSame), { numRuns: RUNS });
  }, 600_000);

  test('in which something is missing or too much is refused where JSON.parse refuses it', async () => {
    const junk = fc.constantFrom('', ',', '[', ']', '{', '}', ':', '"', '\\', '1', ' ', ',,', '],[', '[,', ',]', '0,');
    await fc.assert(
      fc.asyncProperty(bodies, fc.nat(), junk, fc.integer({ min: 0, max: 2 }), fc.integer({ min: 1, max: 9 }), agrees),
      { numRuns: 2 * RUNS },
    );
  }, 600_000);

  test.each([
    ['an object within', '{"input":{"b":1}}', 'invalid_type'],
    ['an object in lists in lists', '{"input":[[{"b":1}]]}', 'invalid_type'],
    ['an object in an object of a list', '{"documents":["a",{"b":{"c":1}}]}', 'invalid_type'],
    ['a list in an object of a list', '{"documents":["a",{"b":[1]}]}', 'invalid_type'],
    [
      'an object of a hundred fields in a list',
      `{"documents":["a",{${Array.from({ length: 100 }, (_, i) => `"a${i}":1`).join()}}]}`,
      'unknown_parameter',
    ],
    ['lists that are too deep', '{"input":[[[[1]]]]}', 'invalid_type'],
    ['a list instead', '[1,2]', 'invalid_type'],
    ['hundreds of fields', `{${Array.from({ length: 100 }, (_, i) => `"a${i}":1`).join()}}`, 'unknown_parameter'],
    ['a poisoned prototype', '{"input":"a","\\u005f_proto__":[1,2,3]}', 'invalid_json'],
  ])('with %s is refused', async (_, text, code) => {
    expect(await outcome(text, 1)).toBe(code);
  });

  test('of 4 MiB is read in so many turns of the event loop that others come between', async () => {
    const rows = Array.from({ length: 2_048 }, (_, row) => Array.from({ length: 400 }, (__, id) => 1_000 + row + id));
    const text = JSON.stringify({ input: rows, model: 'minilm' });
    let turns = 0;
    const end = new AbortController();
    const others = (async () => {
      for (; !end.signal.aborted; turns += 1) await loopTurn();
    })();
    const parsed = await parseInTurns(Buffer.from(text), loopTurn);
    end.abort();
    await others;
    expect(parsed).toEqual({ input: rows, model: 'minilm' });
    expect(turns).toBeGreaterThan(text.length / 65_536 / 2);
  });
});

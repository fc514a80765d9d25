// How an input is cut while its lines are checked: whole lines, as many a part as are asked for, blank ones with those
// behind them, and stretches left out that are not nearly all of one kind.

import { expect, test } from 'vitest';
import { invalid } from '../problem.ts';
import { linesOf } from './jsonl.ts';
import { LineCutter } from './part-plan.ts';
import type { Call } from './calls.ts';

const calls = {
  async check(_: string, body: unknown): Promise<Call> {
    const input: unknown = Reflect.get(Object(body), 'input');
    if (input === '') throw invalid('invalid_value', 'input', 'it is empty');
    return { kind: 'embeddings', texts: [input].flat() } as unknown as Call;
  },
  groupOf: (call: Call) => String(Reflect.get(call, 'texts')[0].split(' ')[0]),
};

async function cut(text: string, leastLines: number) {
  const cutter = new LineCutter(calls, leastLines);
  async function* pieces() {
    yield Buffer.from(text);
  }
  for await (const line of linesOf(pieces())) await cutter.add(line, JSON.parse(line.text!));
  return cutter.plan();
}

/** First lines of the parts of each kind. */
async function firstLines(lines: readonly string[], leastLines: number) {
  const kinds = await cut(lines.join('\n'), leastLines);
  return kinds.map(({ group, ranges }) => [group, ...ranges.map(({ firstLine }) => firstLine)]);
}

const line = (input: unknown): string => JSON.stringify({ input });

test('parts are whole lines, in order, without a gap; blank lines count, and refused ones are among them', async () => {
  const lines = [line('a 1'), '', line('a 2'), line(''), '  ', line('a 3'), line('a 4')];
  const text = Array.from({ length: 4 }, () => lines)
    .flat()
    .join('\n');
  const at = (count: number): number => Buffer.byteLength(`${text.split('\n').slice(0, count).join('\n')}\n`);
  const [found] = await cut(text, 16); // of 20 lines that are not blank, 16 are asked: parts have two of the first
  expect(found?.ranges.slice(0, 3)).toEqual([
    { from: 0, to: at(3), firstLine: 1, lines: 3 },
    { from: at(3), to: at(6), firstLine: 4, lines: 3 },
    { from: at(6), to: at(8), firstLine: 7, lines: 2 },
  ]);
  expect([found?.ranges.length, found?.ranges.at(-1)?.to]).toEqual([10, Buffer.byteLength(text)]);
  expect(await cut(`${text}\n\n`, 17)).toEqual([]);
  expect((await cut(`${text}\n\n`, 16))[0]?.ranges.at(-1)).toMatchObject({ to: Buffer.byteLength(text) + 1, lines: 3 });
});

test('lines of several kinds are cut into parts of each, the kinds with the most lines first', async () => {
  const lines = [...Array(16).fill(line('a 1')), ...Array(24).fill(line('b 2')), ...Array(8).fill(line('a 3'))];
  expect(await firstLines(lines, 32)).toEqual([
    ['a', 1, 5, 9, 13, 41, 45],
    ['b', 17, 21, 25, 29, 33, 37],
  ]);
  const many = Array.from({ length: 20 * 8 }, (_, at) => line(`kind-${Math.floor(at / 8)} 1`));
  expect((await firstLines(many, 64)).length).toBe(16);
});

test.each([
  ['other options', line('b 2')],
  ['a list of texts', line(['a 2'])],
])('a part may have one line in eight with %s', async (_, other) => {
  const a = (count: number): string[] => Array(count).fill(line('a 1'));
  const lines = [...a(7), other, ...a(6), other, other, ...a(6), line(''), other, ...a(40)];
  expect(await firstLines(lines, 64)).toEqual([]); // one is refused
  expect(await firstLines([...lines, ...a(1)], 64)).toEqual([['a', 1, 25, 33, 41, 49, 57, 65]]);
});

test('a stretch with a carriage return that is no end of its line is left out', async () => {
  const lines = [...Array(8).fill(line('a 1')), '{"input":\r"a 2"}', ...Array(8).fill(line('a 3'))];
  expect(await firstLines(lines, 16)).toEqual([['a', 1, 3, 5, 7, 11, 13, 15, 17]]);
  expect(await firstLines([`${lines[0]}\r`, `${lines[0]}\r`], 1)).toEqual([['a', 1, 2]]);
});

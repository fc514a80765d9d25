// How an input is cut while its lines are checked: whole lines, as many a part as are asked for, blank ones with those
// behind them, and none at all where one line is another kind of request.

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

async function cut(text: string, partLines: number) {
  const cutter = new LineCutter(calls, partLines);
  async function* pieces() {
    yield Buffer.from(text);
  }
  for await (const line of linesOf(pieces())) await cutter.add(line, JSON.parse(line.text!));
  return cutter.plan()?.ranges;
}

const line = (input: unknown): string => JSON.stringify({ input });

test('parts are whole lines, in order, without a gap; blank lines count, and refused ones are among them', async () => {
  const lines = [line('a 1'), '', line('a 2'), line(''), '  ', line('a 3'), line('a 4')];
  const text = lines.join('\n');
  const end = (count: number): number => Buffer.byteLength(`${lines.slice(0, count).join('\n')}\n`);
  expect(await cut(text, 2)).toEqual([
    { from: 0, to: end(3), firstLine: 1, lines: 3 },
    { from: end(3), to: end(6), firstLine: 4, lines: 3 },
    { from: end(6), to: Buffer.byteLength(text), firstLine: 7, lines: 1 },
  ]);
  expect(await cut(`${text}\n\n`, 5)).toBeUndefined(); // there are four requests
  expect((await cut(`${text}\n\n`, 4))?.at(-1)).toEqual({ from: end(6), to: end(7), firstLine: 7, lines: 1 });
});

test.each([
  ['other options', [line('a 1'), line('b 2')]],
  ['a list of texts', [line('a 1'), line(['a 2'])]],
  ['a carriage return that is no end of its line', [line('a 1'), '{"input":\r"a 2"}']],
])('%s: nothing is cut', async (_, lines) => {
  expect(await cut(lines.join('\n'), 1)).toBeUndefined();
  expect(await cut([lines[0], lines[0]].join('\r\n'), 1)).toHaveLength(2);
});

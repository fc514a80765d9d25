// What of an input is looked at; what jobs become by it is in executor.test.ts.

import { expect, test } from 'vitest';
import { encodeTokens } from '@shoal/contract';
import { FakeTokenizer } from '../testing/fake-tokenizer.ts';
import type { JobOrder } from '../protocol.ts';
import { Filler } from './fill.ts';

const tokenizer = new FakeTokenizer();
const order: JobOrder = {
  jobId: 'a',
  token: 't',
  queuedMs: 0,
  class: 'bulk',
  input: { form: 'tokens', rows: 2, tokens: 5, tokenizer: tokenizer.hash },
  fingerprint: undefined,
  truncate: 'end',
  prompt: undefined,
  output: { dtype: 'f32', dimensions: undefined },
  resultTtlMs: 1_000,
  remainingMs: undefined,
};

test('token ids of a producer are looked at, and those that this process made are not', async () => {
  const strange = tokenizer.vocabularySize;
  const input = encodeTokens([
    [1, 2],
    [1, strange, 2],
  ]);
  const filledBy = async (isOwn: boolean, orders: readonly JobOrder[]) => {
    const store = {
      read: async () => [{ input, isOwn, resultHead: undefined }],
      commit: async () => [],
      stop: async () => {},
    };
    const filler = new Filler({ store, tokenizer, backend: { dims: 4 }, model: 'fake@1', prompts: {} });
    return filler.fill(orders);
  };
  expect(await filledBy(false, [order])).toMatchObject([{ kind: 'failed', failure: { code: 'INPUT_CORRUPT' } }]);
  const [own] = await filledBy(true, [order]);
  expect(own).toMatchObject({ kind: 'rows', truncated: 0 });
  expect(own?.kind === 'rows' && own.ids.map((row) => Array.from(row))).toEqual([
    [1, 2],
    [1, strange, 2],
  ]);
});

import { expect, test } from 'vitest';
import { describeInferenceBackend } from '../testing/inference-backend.conformance.ts';
import { PacedBackend, paceOf, pacedAxis } from './paced-backend.ts';

describeInferenceBackend('the paced device', async () => ({
  backend: new PacedBackend({ tokensPerMs: 400, dims: 32, slotRows: 64, slotTokens: 4_096 }),
  vocabularySize: 1_000,
  maxTokens: 64,
}));

test.each([
  [1, ['long', 'short', 'last']],
  [2, ['short', 'last', 'long']],
])('a short run behind a long one, runs side by side: %i', async (sessions, order) => {
  const backend = new PacedBackend({ tokensPerMs: 1, sessions, dims: 32, slotRows: 1, slotTokens: 256 });
  const ended: string[] = [];
  const run = async (name: string, width: number): Promise<void> => {
    const slot = backend.lend()!;
    slot.lengths[0] = width;
    await backend.run(slot, { rows: 1, width });
    ended.push(name);
  };
  await Promise.all([run('long', 256), run('short', 8), run('last', 8)]);
  await backend.stop();
  expect(ended).toEqual(order);
});

test('a device is named by its pace', () => {
  expect([paceOf('sim:8000'), paceOf('sim:8000+15'), paceOf('cpu'), paceOf('sim:8000+')]).toEqual([
    { tokensPerMs: 8_000, fixedMs: 0 },
    { tokensPerMs: 8_000, fixedMs: 15 },
    undefined,
    undefined,
  ]);
});

test('a row points along the axis of its ids', async () => {
  const backend = new PacedBackend({ tokensPerMs: 8_000, dims: 384, slotRows: 2, slotTokens: 16 });
  const slot = backend.lend()!;
  slot.ids.set([101, 7, 102], 0);
  slot.ids.set([101, 102], 8);
  slot.lengths.set([3, 2]);
  await backend.run(slot, { rows: 2, width: 8 });
  expect(slot.embeddings[pacedAxis([101, 7, 102], 384)]).toBe(1);
  expect(slot.embeddings[384 + pacedAxis([101, 102], 384)]).toBe(1);
});

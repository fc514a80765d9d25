// What is judged from the last ten minutes of a fleet; reading them is worker-history.test.ts' business.

import { expect, test } from 'vitest';
import { latelyOf, successorOf } from './fleet-lately.ts';
import type { ReadStep, WorkerHistory } from './worker-history.ts';

const step = (events: Readonly<Record<string, number>>, more: Partial<ReadStep> = {}): ReadStep => ({
  v: 1,
  ms: 10_000,
  jobs: 0,
  texts: 0,
  tokens: 0,
  padded: 0,
  runs: 0,
  busyMs: 0,
  batches: [],
  events,
  atMs: 5_000,
  isLast: false,
  ...more,
});
const history = (workerId: string, steps: readonly ReadStep[], queue = 'embed-x'): WorkerHistory => ({
  workerId,
  owner: { queue, device: 'cpu', host: 'h' },
  steps,
});

test('losses are added up by reason, those that come most often first; other events are none', () => {
  const steps = [
    step({ 'lost exit code 1': 1, 'failed INPUT_LOST': 7 }),
    step({ 'lost killed by SIGKILL': 2, 'lost for other reasons': 1 }),
    step({ 'lost killed by SIGKILL': 3, 'recycled CUDA error': 1 }),
  ];
  expect(latelyOf([history('a', steps), history('b', [step({ 'split VRAM': 1 })])], ['a', 'b']).losses).toEqual([
    {
      workerId: 'a',
      count: 7,
      reasons: [
        { reason: 'killed by SIGKILL', count: 5 },
        { reason: 'exit code 1', count: 1 },
        { reason: 'for other reasons', count: 1 },
      ],
    },
  ]);
});

test('who is not alive died or left, and has a successor or none', () => {
  const told = [
    history('gpu-00000001', [step({}, { atMs: 1_000 })]),
    history('cpu-00000001', [step({}), step({}, { isLast: true })]),
    history('live-00000001', [step({})]),
    history('silent-00000001', []),
  ];
  expect(latelyOf(told, ['gpu-00000002', 'live-00000001']).absent).toMatchObject([
    { workerId: 'gpu-00000001', lastMs: 1_000, hasLeft: false, successor: 'gpu-00000002' },
    { workerId: 'cpu-00000001', hasLeft: true, successor: undefined },
  ]);
});

test('another queue is left out where one is named', () => {
  const told = [history('a', [step({ 'lost x': 1 })]), history('b', [step({ 'lost x': 1 })], 'embed-y')];
  expect(latelyOf(told, [], 'embed-y')).toMatchObject({ losses: [{ workerId: 'b' }], absent: [{ workerId: 'b' }] });
  expect(latelyOf(told, []).absent).toHaveLength(2);
});

test('a successor has the same name and another life', () => {
  expect(successorOf('gpu-1-0000000a', ['gpu-1-0000000a', 'gpu-11-0000000b', 'gpu-1-0000000c'])).toBe('gpu-1-0000000c');
  expect(successorOf('gpu-1-0000000a', ['gpu-1-0000000a'])).toBeUndefined();
});

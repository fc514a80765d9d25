import { expect, test } from 'vitest';
import { standingOf, type StandingSeen, type WorkerState } from './worker-state.ts';

const WELL: StandingSeen = { isDrained: false, claims: 3, isPaused: false };

test.each<[string, Partial<StandingSeen>, WorkerState, string]>([
  ['claims', {}, 'ready', 'it claims'],
  ['has no executor', { notReady: 'its executor is starting' }, 'starting', 'its executor is starting'],
  ['waits for memory', { brake: 'memory' }, 'braked', 'the memory of the queue server is almost full'],
  ['waits for readers', { brake: 'unread' }, 'braked', 'results that nobody has fetched'],
  ['serves a paused queue', { isPaused: true, brake: 'memory' }, 'paused', 'its queue is paused'],
  ['was drained', { isDrained: true, claims: 1 }, 'draining', 'it was told to claim nothing; 1 claimed job left'],
  ['has nothing left', { isDrained: true, claims: 0, isPaused: true }, 'drained', 'until it is resumed'],
  ['ends', { isStopping: true, isDrained: true }, 'draining', 'it was told to end; 3 claimed jobs left'],
])('a worker that %s', (_, seen, state, reason) => {
  const standing = standingOf({ ...WELL, ...seen });
  expect(standing.state).toBe(state);
  expect(standing.reason).toContain(reason);
});

import { expect, test } from 'vitest';
import { cpuSessions, threadsEach } from './cpu-sessions.ts';

const GRAPH_BYTES = 90e6;
const MEMORY_BYTES = 64e9;

test.each([
  [1, 1, 1],
  [2, 1, 2],
  [15, 1, 15],
  [16, 2, 8],
  [20, 2, 10],
  [32, 4, 8],
  [64, 8, 8],
  [128, 8, 16],
])('%i threads are %i sessions of %i', (threads, sessions, each) => {
  expect(cpuSessions({ threads, graphBytes: GRAPH_BYTES, memoryBytes: MEMORY_BYTES })).toBe(sessions);
  expect(threadsEach(threads, sessions)).toBe(each);
});

test('copies of the weights take an eighth of the memory at most', () => {
  expect(cpuSessions({ threads: 32, graphBytes: 1.3e9, memoryBytes: 32e9 })).toBe(3);
  expect(cpuSessions({ threads: 32, graphBytes: 1.3e9, memoryBytes: 4e9 })).toBe(1);
});

test('more sessions than threads have one each', () => expect(threadsEach(2, 4)).toBe(1));

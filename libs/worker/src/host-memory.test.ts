import { expect, test } from 'vitest';
import { hostMemory } from './host-memory.ts';

const process = (constrained: number, available: number) => ({ constrainedMemory: () => constrained, availableMemory: () => available });

test.each([
  ['a control group', process(2e9, 1e9), 8e9, { totalBytes: 2e9, freeBytes: 1e9 }],
  ['no control group', process(0, 3e9), 8e9, { totalBytes: 8e9, freeBytes: 3e9 }],
  ['a control group without a limit', process(18_446_744_073_709_552_000, 3e9), 8e9, { totalBytes: 8e9, freeBytes: 3e9 }],
])('memory is what %s leaves', async (_, memory, machineBytes, expected) => {
  expect(await hostMemory(memory, machineBytes).read()).toEqual(expected);
});

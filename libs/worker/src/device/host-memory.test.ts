import { expect, test } from 'vitest';
import { hostMemory } from './host-memory.ts';

const process = (constrained: number, available: number) => ({
  constrainedMemory: () => constrained,
  availableMemory: () => available,
});

const noFiles = async (path: string): Promise<string> => {
  throw new Error(`there is no ${path}`);
};

test.each([
  ['a control group', process(2e9, 1e9), 8e9, { totalBytes: 2e9, freeBytes: 1e9 }],
  ['no control group', process(0, 3e9), 8e9, { totalBytes: 8e9, freeBytes: 3e9 }],
  [
    'a control group without a limit',
    process(18_446_744_073_709_552_000, 3e9),
    8e9,
    { totalBytes: 8e9, freeBytes: 3e9 },
  ],
])('memory is what %s leaves', async (_, memory, machineBytes, expected) => {
  expect(await hostMemory(memory, machineBytes, noFiles).read()).toEqual(expected);
});

const V1 = '2:cpu,cpuacct:/\n4:memory:/docker/1\n0::/\n';
test.each([
  [
    'of the second form',
    {
      '/proc/self/cgroup': '0::/docker/1\n',
      '/sys/fs/cgroup/docker/1/memory.stat': 'file 7\ninactive_file 600000000\n',
    },
    1.6e9,
  ],
  [
    'of the second form, mounted as the root',
    { '/proc/self/cgroup': '0::/docker/1\n', '/sys/fs/cgroup/memory.stat': 'inactive_file 600000000\n' },
    1.6e9,
  ],
  [
    'of the first form',
    {
      '/proc/self/cgroup': V1,
      '/sys/fs/cgroup/memory/docker/1/memory.stat': 'inactive_file 1\ntotal_inactive_file 600000000\n',
    },
    1.6e9,
  ],
  [
    'that has read more than its limit',
    { '/proc/self/cgroup': '0::/\n', '/sys/fs/cgroup/memory.stat': 'inactive_file 9000000000\n' },
    2e9,
  ],
  ['that cannot be read', {}, 1e9],
])(
  'files that were read and are not in use count as free under the limit of a control group %s',
  async (_, files: Readonly<Record<string, string>>, freeBytes) => {
    const readText = async (path: string): Promise<string> => files[path] ?? noFiles(path);
    expect(await hostMemory(process(2e9, 1e9), 8e9, readText).read()).toEqual({ totalBytes: 2e9, freeBytes });
    // without a limit it is counted as free already
    expect(await hostMemory(process(0, 1e9), 8e9, readText).read()).toEqual({ totalBytes: 8e9, freeBytes: 1e9 });
  },
);

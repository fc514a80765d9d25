// Main memory as a device's memory, for workers on the CPU: the limit of the control group or of the machine, whichever
// is less, and what is free below it. Node reads both forms of control groups itself (22.12), but counts what the group
// has read of files as used; the kernel gives that up before it refuses anything, so it is free here, as on a machine
// without a limit.

import { readFile } from 'node:fs/promises';
import { totalmem } from 'node:os';
import type { MemoryProbe } from '@shoal/core';

interface MemoryOfProcess {
  /** Limit of the control group; 0, or more than any machine has, where there is none. */
  constrainedMemory(): number;
  /** Below that limit, or on the machine without one. */
  availableMemory(): number;
}

type ReadText = (path: string) => Promise<string>;

export function hostMemory(
  memory: MemoryOfProcess = process,
  machineBytes = totalmem(),
  readText: ReadText = (path) => readFile(path, 'utf8'),
): MemoryProbe {
  return {
    read: async () => {
      const limitBytes = memory.constrainedMemory() || machineBytes;
      const totalBytes = Math.min(limitBytes, machineBytes);
      const cacheBytes = limitBytes < machineBytes ? await idleCacheBytes(readText) : 0;
      return { totalBytes, freeBytes: Math.min(memory.availableMemory() + cacheBytes, totalBytes) };
    },
  };
}

/**
 * Pages of files that nobody used lately, in this process's control group and those below it. 0 where it cannot be
 * read.
 */
async function idleCacheBytes(readText: ReadText): Promise<number> {
  const groups = await readText('/proc/self/cgroup').catch(() => '');
  const first = /^\d+:(?:[^:\n]*,)?memory(?:,[^:\n]*)?:(.*)$/m.exec(groups)?.[1];
  const second = /^0::(.*)$/m.exec(groups)?.[1];
  if (first !== undefined) return statIn(await statOf('/sys/fs/cgroup/memory', first, readText), 'total_inactive_file');
  return second === undefined ? 0 : statIn(await statOf('/sys/fs/cgroup', second, readText), 'inactive_file');
}

/** In a container the group is often mounted in the place of the root. */
async function statOf(mount: string, group: string, readText: ReadText): Promise<string> {
  return readText(`${mount}${group.replace(/\/$/, '')}/memory.stat`).catch(() =>
    readText(`${mount}/memory.stat`).catch(() => ''),
  );
}

function statIn(stat: string, name: string): number {
  return Number(new RegExp(`^${name} (\\d+)$`, 'm').exec(stat)?.[1] ?? 0);
}

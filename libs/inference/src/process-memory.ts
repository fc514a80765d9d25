// What this process holds in main memory, for runs on the CPU: weights, arena and everything beside them are in one
// number. Reads no other process and starts none.

import { readFileSync } from 'node:fs';
import type { MemoryReading } from '@shoal/core';

/**
 * `footprintBytes`: resident now. `liveBytes`: most that was ever resident. 0.04 ms on Linux (2026-11), so that it may
 * follow every run.
 */
export function processMemory(): MemoryReading {
  const [now, peak] =
    process.platform === 'linux' ? fromStatus() : [process.memoryUsage.rss(), process.resourceUsage().maxRSS * 1024];
  return { footprintBytes: now, liveBytes: peak, source: 'process' };
}

/** Not getrusage's maxRSS: on Linux a child starts with what its parent held when it forked. */
function fromStatus(): [number | undefined, number | undefined] {
  const status = readFileSync('/proc/self/status', 'latin1');
  return [kilobytes(status, 'VmRSS'), kilobytes(status, 'VmHWM')];
}

function kilobytes(status: string, key: string): number | undefined {
  const digits = new RegExp(`^${key}:\\s+(\\d+) kB`, 'm').exec(status)?.[1];
  return digits === undefined ? undefined : Number(digits) * 1024;
}

// Main memory as a device's memory, for workers on the CPU: the limit of the control group or of the machine, whichever is
// less, and what is free below it. Node reads both forms of control groups itself (22.12).

import { totalmem } from 'node:os';
import type { MemoryProbe } from '@shoal/core';

interface MemoryOfProcess {
  /** Limit of the control group; 0, or more than any machine has, where there is none. */
  constrainedMemory(): number;
  /** Below that limit, or on the machine without one. */
  availableMemory(): number;
}

export function hostMemory(memory: MemoryOfProcess = process, machineBytes = totalmem()): MemoryProbe {
  return {
    read: async () => {
      const totalBytes = Math.min(memory.constrainedMemory() || machineBytes, machineBytes);
      return { totalBytes, freeBytes: Math.min(memory.availableMemory(), totalBytes) };
    },
  };
}

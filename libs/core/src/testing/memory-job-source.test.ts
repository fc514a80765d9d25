import { invariant } from '@shoal/contract';
import { describeJobSource } from './job-source.conformance.ts';
import { ManualClock } from './manual-clock.ts';
import { MemoryJobSource, MemoryQueue } from './memory-job-source.ts';

describeJobSource('MemoryJobSource', async () => {
  const clock = new ManualClock();
  const queue = new MemoryQueue(clock, 1_000);
  return {
    leaseMs: queue.leaseMs,
    open: () => new MemoryJobSource(queue),
    add: async (jobId, data) => queue.add(jobId, data),
    inspect: async (jobId) => queue.inspect(jobId),
    steal: async (jobId) => queue.steal(jobId),
    cancel: async (jobId) => queue.cancel(jobId),
    quarantined: async () => [...queue.quarantined.keys()],
    passTime: (ms) => clock.advance(ms),
    close: async () => {
      await clock.advance(0);
      invariant(clock.pending === 0, 'a stopped source leaves no timer behind');
    },
  };
});

// The executor process of a worker that compares: opens the kernels and its own connection to the queue server, then lets
// core's SimilarityExecutor answer the claimer. It ends with its claimer, as executor-main.ts does.

import { Residents, SimilarityExecutor, faultPointsFrom, keySpace, systemClock, type SimilarityOrder } from '@shoal/core';
import { openKernels } from '@shoal/similarity';
import { RedisPayloadStore } from '@shoal/queue/payload';
import { executorProcess } from './executor-process.ts';
import type { SimilarityExecutorSettings } from './executor-settings.ts';
import { kernelDevice } from './kernel-device.ts';

await executorProcess<SimilarityExecutorSettings, SimilarityOrder>(async ({ settings, log, tell: send }) => {
  const { redisUrl, prefix, queue, folder, kernels: isa, threads, maxRows, budgetBytes } = settings;
  const device = kernelDevice({ kernels: openKernels({ threads, ...(isa === 'auto' ? {} : { isa }) }), folder });
  const store = await RedisPayloadStore.connect({ redisUrl, prefix, queue, log });
  const keys = keySpace(prefix);
  const executor = new SimilarityExecutor({
    store, device, maxRows, log, send,
    residents: new Residents(budgetBytes),
    clock: systemClock,
    resultKey: (jobId) => keys.output(queue, jobId),
    faults: faultPointsFrom(process.env['SHOAL_FAULT_POINT'], (signal) => process.kill(process.pid, signal)),
  });
  send({ kind: 'ready', model: 'similarity', dims: 0, maxTokens: 0, device: device.device, precision: 'fp32', pid: process.pid });
  return {
    handle: (message) => executor.handle(message),
    close: async () => {
      await executor.stop();
      await store.stop();
    },
  };
});

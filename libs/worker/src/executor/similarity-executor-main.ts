// The executor process of a worker that compares: opens the kernels and its own connection to the queue server, then
// lets core's SimilarityExecutor answer the claimer. It ends with its claimer, as executor-main.ts does. A GPU that
// failed stays lost in this process: it is tried in another one now and then, and once it works again this process asks
// to be replaced.

import { keySpace } from '@shoal/contract';
import { sizesOf, systemClock, type SimilarityOrder } from '@shoal/core';
import { faultPointsFrom } from '@shoal/core/base';
import { Residents, SimilarityExecutor, type LedgerFacts, type SimilarityFacts } from '@shoal/core/similarity';
import { RedisPayloadStore } from '@shoal/queue/payload';
import { executorProcess, type ExecutorProcess } from './executor-process.ts';
import type { SimilarityExecutorSettings } from './executor-settings.ts';
import { GpuRetry } from '../device/gpu-retry.ts';
import { kernelDevice } from '../device/kernel-device.ts';
import { openComparer, type OpenGpu } from '../device/open-comparer.ts';

const TELL_EVERY_MS = 1_000;

await executorProcess<SimilarityExecutorSettings, SimilarityOrder>(async (own) => {
  const { settings, log, tell } = own;
  const { redisUrl, prefix, queue, cpuQueue } = settings;
  const opened = await openKernels(own);
  const { gpu, retry } = opened;
  const store = await RedisPayloadStore.connect({ redisUrl, prefix, queue, cpuQueue, log });
  const { executor, residents } = startExecutor(own, opened, store);
  const telling = tellFacts(
    () => factsOf(residents, opened.fallbacks(), gpu),
    (facts) => tell({ kind: 'similarity', facts }),
  );
  return {
    handle: (message) => executor.handle(message),
    close: async () => {
      clearInterval(telling);
      retry.stop();
      await executor.stop();
      gpu?.engine.close();
      await store.stop();
    },
  };
});

type Process = ExecutorProcess<SimilarityExecutorSettings>;

interface OpenKernels {
  readonly device: ReturnType<typeof kernelDevice>;
  /** What is said of the device in the records of what ran. */
  readonly label: string;
  readonly gpu: OpenGpu | undefined;
  readonly retry: GpuRetry;
  /** Calls that the CPU took over from the GPU. */
  fallbacks(): number;
}

async function openKernels({ settings, log, tell }: Process): Promise<OpenKernels> {
  const { folder, cudaLibrary } = settings;
  let fallbacks = 0;
  const retry = new GpuRetry({
    cudaLibrary,
    log,
    firstMs: settings.gpuRetryMs,
    onBack: () => tell({ kind: 'recycle', reason: 'the GPU works again' }),
  });
  const {
    kernels,
    device: label,
    cpu,
    gpu,
  } = await openComparer({
    ...settings,
    log,
    environment: process.env,
    onFellBack: ({ code, message }) => {
      fallbacks++;
      log.warn({ code, reason: message, device: `cpu:${cpu.isa}` }, 'the GPU could not compute this, the CPU does');
      if (code === 'DEVICE_LOST') retry.start();
    },
  });
  const device = kernelDevice({ kernels, folder, gpu: gpu === undefined ? undefined : { ...gpu, device: label } });
  return { device, label, gpu, retry, fallbacks: () => fallbacks };
}

/** Tells the claimer that it may send work. */
function startExecutor(
  { settings, log, tell: send }: Process,
  { device, label, gpu }: OpenKernels,
  store: RedisPayloadStore,
): { readonly executor: SimilarityExecutor; readonly residents: Residents } {
  const keys = keySpace(settings.prefix);
  const residents = new Residents(settings.budgetBytes);
  const executor = new SimilarityExecutor({
    store,
    device,
    log,
    send,
    residents,
    maxRows: sizesOf(settings, label).maxRows,
    isLastLane: gpu === undefined,
    clock: systemClock,
    resultKey: (resultId) => keys.output(settings.queue, resultId),
    faults: faultPointsFrom(process.env['SHOAL_FAULT_POINT'], (signal) => process.kill(process.pid, signal)),
  });
  send({
    kind: 'ready',
    model: 'similarity',
    dims: 0,
    maxTokens: 0,
    device: device.device,
    precision: 'fp32',
    pid: process.pid,
  });
  return { executor, residents };
}

/** Tells them at once, and whenever they have changed. */
function tellFacts(read: () => SimilarityFacts, tell: (facts: SimilarityFacts) => void): NodeJS.Timeout {
  let told = '';
  const look = (): void => {
    const facts = read();
    const text = JSON.stringify(facts);
    if (text !== told) tell(facts);
    told = text;
  };
  look();
  return setInterval(look, TELL_EVERY_MS);
}

function factsOf(host: Residents, fallbacks: number, gpu: OpenGpu | undefined): SimilarityFacts {
  if (gpu === undefined) return { host: ledgerOf(host), calls: { cpu: 0, gpu: 0 }, fallbacks, isGpuLost: false };
  const { engine, hybrid } = gpu;
  return {
    host: ledgerOf(host),
    gpu: ledgerOf(engine.residents),
    calls: hybrid.calls,
    fallbacks,
    isGpuLost: hybrid.isLost,
    breakEvens: hybrid.thresholds.all,
  };
}

function ledgerOf({ count, bytes, budgetBytes, evictions }: Residents): LedgerFacts {
  return { residents: count, bytes, budgetBytes, evictions };
}

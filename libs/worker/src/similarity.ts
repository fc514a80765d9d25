// @shoal/worker/similarity: what serves similarity jobs. An entry point of its own, because a worker that embeds need
//   not load it.

export { kernelDevice, type KernelDeviceOptions } from './device/kernel-device.ts';
export { tuneComparing, type ComparingReport, type TuneComparingOptions } from './measure/tune-comparing.ts';
export { startSimilarityWorker } from './claimer/similarity-worker.ts';

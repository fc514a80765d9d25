// @shoal/worker/similarity: what serves similarity jobs. An entry point of its own, because a worker that embeds need
//   not load it.

export { kernelDevice, type KernelDeviceOptions } from './kernel-device.ts';
export { tuneComparing, type ComparingReport, type TuneComparingOptions } from './tune-comparing.ts';
export { startSimilarityWorker } from './similarity-worker.ts';

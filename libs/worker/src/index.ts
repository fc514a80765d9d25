export { installCudaProvider, type InstallOptions, type InstallReport } from './cuda-provider.ts';
export { examineGpus, examineModel, type Finding } from './examine.ts';
export {
  buildNativeEncoder,
  type NativeEncoderBuildOptions,
  type NativeEncoderReport,
} from './native-encoder-build.ts';
export { inTurns } from './in-turns.ts';
export { localGpus, type LocalGpus, type LocalGpusOptions } from './local-gpus.ts';
export { startWorker, type RunningWorker, type WorkerOptions } from './worker.ts';
export type { TriedBudget } from './tried-budgets.ts';
export { tune, type TuneOptions, type TuneReport } from './tune.ts';
export { workerMain, type WorkerMainOptions, type WorkerReport } from './worker-main.ts';

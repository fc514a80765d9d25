export { installCudaProvider, type InstallOptions, type InstallReport } from './device/cuda-provider.ts';
export { examineGpus } from './doctor/examine-gpus.ts';
export { examineModel } from './doctor/examine-model.ts';
export type { Finding } from './doctor/finding.ts';
export {
  buildNativeEncoder,
  type NativeEncoderBuildOptions,
  type NativeEncoderReport,
} from './device/native-encoder-build.ts';
export { proveModel, type ProveOptions } from './device/prove-model.ts';
export { runGraph } from './device/run-graph.ts';
export { interleaved } from './measure/interleaved.ts';
export { localGpus, type LocalGpus, type LocalGpusOptions } from './device/local-gpus.ts';
export { startWorker } from './claimer/worker.ts';
export type { RunningWorker, WorkerOptions } from './claimer/start-claiming.ts';
export type { TriedBudget } from './measure/tried-budgets.ts';
export { forgetTuned, tunedProfiles, type TunedProfile } from './measure/profile-store.ts';
export { tune, type TuneOptions, type TuneReport } from './measure/tune.ts';
export { workerMain, type WorkerMainOptions, type WorkerReport } from './claimer/worker-main.ts';

export { startWorker, type RunningWorker, type WorkerOptions } from './worker.ts';
export { tune, type TriedBudget, type TuneOptions, type TuneReport } from './tune.ts';
export { workerMain, type WorkerMainOptions, type WorkerReport } from './worker-main.ts';

export { startWorker, type RunningWorker, type WorkerOptions } from './worker.ts';
export { workerMain, type WorkerMainOptions, type WorkerReport } from './worker-main.ts';

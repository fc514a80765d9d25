// What the worker apps' main.ts call: a process that runs one worker until it is told to stop. The entry
// @shoal/worker/claimer, which carries no engine: the main entry would load ONNX Runtime's library into every claimer.

import type { Logger, Precision, Settings } from '@shoal/core';
import { serviceMain, type ServiceReport } from '@shoal/ops/service';
import { isConnectionFault } from '@shoal/queue';
import { SHOAL_VERSION } from './shoal-version.ts';
import { startWorker } from './worker.ts';

/** What a forked worker tells its parent. */
export type WorkerReport = ServiceReport<{
  readonly device: string;
  readonly precision: Precision;
  readonly model: string;
}>;

export interface WorkerMainOptions {
  /** Settings that this app is about, e.g. its device; the environment may not override them. */
  readonly fixed?: Partial<Settings>;
}

/** Runs a worker; resolves with the exit code when it has ended: 0 drained, 1 failed, 2 set up wrongly, 75 for a successor. */
export async function workerMain({ fixed = {} }: WorkerMainOptions = {}): Promise<number> {
  return serviceMain({
    name: 'worker',
    fixed,
    version: SHOAL_VERSION,
    start: async (settings, log, { sayWho, trace, stopAsked }) => {
      process.on('unhandledRejection', (error) => survive(error, log));
      const start =
        settings.kind === 'similarity' ? (await import('../similarity.ts')).startSimilarityWorker : startWorker;
      const { facts, failed, left, stop } = await start({
        settings,
        log,
        sayWho,
        tracer: await trace(),
        stopAsked,
        faultPoint: process.env['SHOAL_FAULT_POINT'],
      });
      const { device, precision, model } = facts;
      return { facts: { device, precision, model }, failed, left, stop };
    },
  });
}

/**
 * ioredis selects a database and subscribes again by itself after a cut, and lets nobody catch that the next cut came
 * first (6.0.0); the connection after that does it anew. Anything else is a bug: the process ends, aloud.
 */
function survive(error: unknown, log: Logger): void {
  if (!isConnectionFault(error)) throw error;
  log.warn({ err: error }, 'a connection broke while it was being restored, trying again');
}

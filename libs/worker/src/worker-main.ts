// What the worker apps' main.ts call: a process that runs one worker until it is told to stop.

import type { Precision, Settings } from '@shoal/core';
import { serviceMain, type ServiceReport } from '@shoal/ops/service';
import { startWorker } from './worker.ts';

/** What a forked worker tells its parent. */
export type WorkerReport = ServiceReport<{ readonly device: string; readonly precision: Precision; readonly model: string }>;

export interface WorkerMainOptions {
  /** Settings that this app is about, e.g. its device; the environment may not override them. */
  readonly fixed?: Partial<Settings>;
}

/** Runs a worker; resolves with the exit code when it has ended: 0 drained, 1 failed, 2 set up wrongly. */
export async function workerMain({ fixed = {} }: WorkerMainOptions = {}): Promise<number> {
  return serviceMain({
    name: 'worker',
    fixed,
    start: async (settings, log) => {
      const { facts, failed, stop } = await startWorker({ settings, log, faultPoint: process.env['SHOAL_FAULT_POINT'] });
      const { device, precision, model } = facts;
      return { facts: { device, precision, model }, failed, stop };
    },
  });
}

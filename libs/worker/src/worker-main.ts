// What the worker apps' main.ts call: a process that runs one worker until it is told to stop. Reads the environment,
// handles signals, sets the exit code; nothing else does.
//
// Alone it stops on SIGTERM or SIGINT. Forked with an IPC channel it reports `ready` or `unfit` there and stops when the
// channel closes as well, so that a parent that was killed leaves nothing behind; SIGINT is then the parent's to handle.

import { readFileSync } from 'node:fs';
import { ShoalError, isShoalError, redactSettings, resolveSettings, toFailure, type Failure, type Precision, type Settings } from '@shoal/core';
import { createLogger } from '@shoal/ops/logger';
import { startWorker } from './worker.ts';

export type WorkerReport =
  | { readonly kind: 'ready'; readonly device: string; readonly precision: Precision; readonly model: string; readonly pid: number }
  | { readonly kind: 'unfit'; readonly failure: Failure };

export interface WorkerMainOptions {
  /** Settings that this app is about, e.g. its device; the environment may not override them. */
  readonly fixed?: Partial<Settings>;
}

/** Runs a worker; resolves with the exit code when it has ended: 0 drained, 1 failed. */
export async function workerMain({ fixed = {} }: WorkerMainOptions = {}): Promise<number> {
  try {
    const settings = resolveSettings({ flags: fixed, environment: process.env, file: readSettingsFile() });
    return await runUntilStopped(withServer(settings));
  } catch (error) {
    const failure = toFailure(error, 'SETUP_FAILED');
    await report({ kind: 'unfit', failure });
    process.stderr.write(`shoal worker: ${failure.message}\n`);
    if (!isShoalError(error)) process.stderr.write(`${error instanceof Error ? (error.stack ?? '') : ''}\n`);
    return isShoalError(error, 'CONFIG_INVALID') ? 2 : 1;
  }
}

async function runUntilStopped(settings: Settings & { readonly redisUrl: string }): Promise<number> {
  const log = createLogger({ level: settings.logLevel, name: 'worker' });
  log.debug({ settings: redactSettings(settings) }, 'settings in force');
  const stopped = stopRequest();
  const worker = await startWorker({ settings, log, faultPoint: process.env['SHOAL_FAULT_POINT'] });
  const { device, precision, model } = worker.facts;
  await report({ kind: 'ready', device, precision, model, pid: process.pid });
  try {
    const reason = await Promise.race([stopped, worker.failed]);
    log.info({ reason }, 'worker draining');
    return 0;
  } catch (error) {
    log.error({ err: error }, 'worker cannot go on');
    return 1;
  } finally {
    await worker.stop();
    if (process.connected) process.disconnect();
  }
}

/** To the parent, when there is one; resolves when the message is on its way. */
function report(message: WorkerReport): Promise<void> {
  return new Promise((resolve) => {
    if (process.send === undefined) resolve();
    else process.send(message, undefined, {}, () => resolve());
  });
}

function stopRequest(): Promise<string> {
  return new Promise((resolve) => {
    process.once('SIGTERM', () => resolve('SIGTERM'));
    process.once('disconnect', () => resolve('parent gone'));
    process.on('SIGINT', () => {
      if (process.send === undefined) resolve('SIGINT');
    });
  });
}

function withServer(settings: Settings): Settings & { readonly redisUrl: string } {
  const { redisUrl } = settings;
  if (redisUrl !== undefined) return { ...settings, redisUrl };
  throw new ShoalError('CONFIG_INVALID', 'a worker needs a queue server: set REDIS_URL, e.g. redis://localhost:6379, or use `shoal worker`, which finds or starts one');
}

function readSettingsFile(): Record<string, unknown> {
  try {
    return JSON.parse(readFileSync('shoal.config.json', 'utf8')) as Record<string, unknown>;
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return {};
    throw new ShoalError('CONFIG_INVALID', `shoal.config.json cannot be read: ${error instanceof Error ? error.message : String(error)}`, {}, error);
  }
}

// What the main.ts of a service calls (the HTTP producer, the dashboard): settings, log, start, stop. With the worker's own
// main it is the only reader of environment and signals. It knows nothing of what the service does.
//
// Alone a service stops on SIGTERM or SIGINT. Forked with an IPC channel it reports `ready` or `unfit` there and stops when
// the channel closes as well, so that a parent that was killed leaves nothing behind; SIGINT is then the parent's to handle.

import { readFileSync } from 'node:fs';
import { ShoalError, isShoalError, redactSettings, resolveSettings, toFailure, type Failure, type Logger, type Settings } from '@shoal/core';
import { createLogger } from './logger.ts';

export type ServiceReport =
  | { readonly kind: 'ready'; readonly url: string; readonly pid: number }
  | { readonly kind: 'unfit'; readonly failure: Failure };

export interface Service {
  /** Where it answers. */
  readonly url: string;
  /** Finishes what is open and leaves nothing running. */
  stop(): Promise<void>;
}

export interface ServiceMainOptions {
  /** For log lines and messages: "http", "dashboard". */
  readonly name: string;
  readonly start: (settings: Settings & { readonly redisUrl: string }, log: Logger) => Promise<Service>;
}

/** Resolves with the exit code when the service has ended: 0 stopped, 1 failed, 2 set up wrongly. */
export async function serviceMain({ name, start }: ServiceMainOptions): Promise<number> {
  try {
    const stopped = stopRequest();
    const settings = withServer(name, resolveSettings({ environment: process.env, file: readSettingsFile() }));
    const log = createLogger({ level: settings.logLevel, name });
    log.debug({ settings: redactSettings(settings) }, 'settings in force');
    const service = await start(settings, log);
    report({ kind: 'ready', url: service.url, pid: process.pid });
    log.info({ url: service.url }, 'ready');
    log.info({ reason: await stopped }, 'stopping');
    await service.stop();
    return 0;
  } catch (error) {
    const failure = toFailure(error, 'SETUP_FAILED');
    report({ kind: 'unfit', failure });
    process.stderr.write(`shoal ${name}: ${failure.message}\n`);
    if (!isShoalError(error)) process.stderr.write(`${error instanceof Error ? error.stack ?? '' : ''}\n`);
    return isShoalError(error, 'CONFIG_INVALID') ? 2 : 1;
  } finally {
    if (process.connected) process.disconnect();
  }
}

function report(message: ServiceReport): void {
  process.send?.(message, undefined, {}, () => undefined); // a parent that is gone does not want to know
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

function withServer(name: string, settings: Settings): Settings & { readonly redisUrl: string } {
  const { redisUrl } = settings;
  if (redisUrl !== undefined) return { ...settings, redisUrl };
  throw new ShoalError('CONFIG_INVALID', `${name} needs a queue server: set REDIS_URL, e.g. redis://localhost:6379, or use \`shoal up\`, which finds or starts one`);
}

function readSettingsFile(): Record<string, unknown> {
  try {
    const parsed: unknown = JSON.parse(readFileSync('shoal.config.json', 'utf8'));
    if (typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed)) return { ...parsed };
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return {};
    throw new ShoalError('CONFIG_INVALID', `shoal.config.json cannot be read: ${error instanceof Error ? error.message : String(error)}`, {}, error);
  }
  throw new ShoalError('CONFIG_INVALID', 'shoal.config.json must hold one JSON object of settings, such as { "model": "minilm" }');
}

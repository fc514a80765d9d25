// What the main.ts of every process that serves calls (worker, HTTP producer, dashboard): settings, log, start, stop.
// It is the only reader of environment and signals there, and knows nothing of what the service does.
//
// Alone a service stops on SIGTERM or SIGINT, while it starts as well: a start may wait for a server for as long as that
// takes. Forked with an IPC channel it reports `ready` or `unfit` there and stops
// when the channel closes as well, so that a parent that was killed leaves nothing behind; SIGINT is then the parent's
// to handle. Once ready it gives signs of life there, so that a parent can replace one that lives and does nothing.

import { ShoalError, isShoalError, toFailure, type Failure } from '@shoal/contract';
import {
  droppedVariables,
  redactSettings,
  redactText,
  resolveSettings,
  strayVariables,
  withHome,
  type Logger,
  type Settings,
  type Tracer,
} from '@shoal/core';
import { descriptorFailure } from '@shoal/core/base';
import { createLogger } from './logger.ts';
import { readSettingsFiles } from './settings-file.ts';
import { PARENT_TELLS, giveSigns } from './signs-of-life.ts';
import { openTracer, type OpenTracer } from './tracing/open-tracer.ts';

export type ServiceReport<Facts extends object = object> =
  | ({ readonly kind: 'ready'; readonly pid: number } & Facts)
  | { readonly kind: 'unfit'; readonly failure: Failure };

export interface Service<Facts extends object = object> {
  /** What the parent process is told: where it answers, what it runs on. */
  readonly facts: Facts;
  /** Rejects when the service cannot go on; never resolves. */
  readonly failed?: Promise<never>;
  /** Resolves when it is to make room for its successor: it ends with REPLACE_ME. */
  readonly left?: Promise<void>;
  /** Finishes what is open and leaves nothing running. */
  stop(): Promise<void>;
}

/** Exit code of a service that is to be started again by whoever keeps it (EX_TEMPFAIL of sysexits.h). */
export const REPLACE_ME = 75;

export interface ServiceMainOptions {
  /** For log lines and messages: "worker", "http", "dashboard". */
  readonly name: string;
  /** Settings that this process is about, e.g. its device: nothing else overrides them. */
  readonly fixed?: Partial<Settings>;
  /** Of Shoal; in every line of the log. */
  readonly version: string;
  /** How long a stop may take beyond twice the drain timeout; then the process ends without what is open. */
  readonly mostStopMs?: number;
  readonly start: (
    settings: Settings & { readonly redisUrl: string },
    log: Logger,
    means: ServiceMeans,
  ) => Promise<Service>;
}

/** What a service may use besides. */
export interface ServiceMeans {
  /** Aborted when it is told to stop before it is ready: what waits is to be given up, and what is open to be closed. */
  readonly stopAsked: AbortSignal;
  /** Adds fields to every line of the log from then on. */
  sayWho(who: Readonly<Record<string, string>>): void;
  /** For one that makes spans; what waits is sent after it has stopped. Throws CONFIG_INVALID. */
  trace(): Promise<Tracer>;
}

/** A start that is told to stop has so long to become ready, or to close what it has opened; then it is left as it is. */
const GIVE_UP_MS = 5_000;

const MOST_STOP_MS = 120_000;

/** Resolves with the exit code when the service has ended: 0 stopped, 1 failed, 2 set up wrongly, 75 for a successor. */
export async function serviceMain({
  name,
  fixed = {},
  version,
  mostStopMs = MOST_STOP_MS,
  start,
}: ServiceMainOptions): Promise<number> {
  const stopped = stopRequest();
  let endSigns: (() => void) | undefined;
  let traced: OpenTracer | undefined;
  try {
    const files = await readSettingsFiles({ flags: fixed, environment: process.env });
    const settings = withServer(name, withHome(resolveSettings({ flags: fixed, environment: process.env, ...files })));
    const who: Record<string, string> = { version };
    const log = createLogger({ level: settings.logLevel, format: settings.logFormat, name, who });
    log.debug({ settings: redactSettings(settings) }, 'settings in force');
    for (const dropped of droppedVariables(process.env)) log.warn(dropped, 'a setting that is gone is ignored');
    // a parent that is a command has said it already
    for (const stray of process.send === undefined ? strayVariables(process.env) : []) log.warn({}, stray);
    for (const warning of files.warnings) log.warn({}, warning);
    const stopAsked = new AbortController();
    void stopped.then(() => stopAsked.abort());
    const starting = start(settings, log, {
      stopAsked: stopAsked.signal,
      sayWho: (more) => Object.assign(who, more),
      trace: async () => {
        const { traces } = settings;
        traced = await openTracer({ traces, environment: process.env, name, version, log });
        return traced.tracer;
      },
    });
    const service = await untilStarted(starting, stopAsked.signal);
    if (service === undefined) {
      log.info({ reason: await stopped }, 'stopped while it started');
      return 0;
    }
    await report({ kind: 'ready', pid: process.pid, ...service.facts });
    log.info(service.facts, 'ready');
    endSigns = giveSigns();
    return await untilStopped(service, stopped, { log, mostMs: 2 * settings.drainTimeoutMs + mostStopMs });
  } catch (error) {
    const known = descriptorFailure(error) ?? error;
    const failure = toFailure(known, 'SETUP_FAILED');
    await report({ kind: 'unfit', failure });
    if (!process.argv.includes(PARENT_TELLS)) process.stderr.write(`shoal ${name}: ${redactText(failure.message)}\n`);
    if (!isShoalError(known) && known instanceof Error) process.stderr.write(`${redactText(known.stack ?? '')}\n`);
    return isShoalError(known, 'CONFIG_INVALID') ? 2 : 1;
  } finally {
    endSigns?.();
    await traced?.stop();
    if (process.connected) process.disconnect();
  }
}

/** Undefined: it was told to stop before it was ready. */
async function untilStarted(starting: Promise<Service>, stopAsked: AbortSignal): Promise<Service | undefined> {
  const { promise: givenUp, resolve } = Promise.withResolvers<undefined>();
  let timer: NodeJS.Timeout | undefined;
  stopAsked.addEventListener('abort', () => (timer = setTimeout(() => resolve(undefined), GIVE_UP_MS)));
  try {
    return await Promise.race([starting, givenUp]);
  } catch (error) {
    if (stopAsked.aborted) return undefined; // that kept it from starting
    throw error;
  } finally {
    clearTimeout(timer);
    starting.catch(() => undefined); // it may fail after it was given up
  }
}

async function untilStopped(
  service: Service,
  stopped: Promise<string>,
  { log, mostMs }: { readonly log: Logger; readonly mostMs: number },
): Promise<number> {
  try {
    const { failed = new Promise<never>(() => undefined), left = new Promise<never>(() => undefined) } = service;
    const reason = await Promise.race([stopped, failed, left.then(() => undefined)]);
    log.info({ reason: reason ?? 'told to make room for its successor' }, 'stopping');
    return reason === undefined ? REPLACE_ME : 0;
  } catch (error) {
    log.error({ err: descriptorFailure(error) ?? error }, 'cannot go on');
    return 1;
  } finally {
    await stopWithin(service, mostMs, log);
  }
}

/** Whoever keeps it starts another one only when this one is gone. */
async function stopWithin(service: Service, mostMs: number, log: Logger): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const tooLong = new Promise<void>((resolve) => {
    timer = setTimeout(() => {
      log.error({ durationMs: mostMs }, 'stopping takes too long, ending without what is open');
      resolve();
    }, mostMs);
  });
  try {
    await Promise.race([service.stop(), tooLong]);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * To the parent, when there is one; resolves when the message is on its way. A parent that is gone does not want to
 * know.
 */
function report(message: ServiceReport): Promise<void> {
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

function withServer(name: string, settings: Settings): Settings & { readonly redisUrl: string } {
  const { redisUrl } = settings;
  if (redisUrl !== undefined) return { ...settings, redisUrl };
  throw new ShoalError(
    'CONFIG_INVALID',
    `${name} needs a queue server: set REDIS_URL, e.g. redis://localhost:6379, or use \`shoal ` +
      `${name === 'worker' ? 'worker' : 'up'}\`, which finds or starts one`,
  );
}

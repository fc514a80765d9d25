// `shoal serve` and `shoal dashboard`: one service in the foreground, for people and process managers. The service is a
// program of its own; these commands find it a queue server and a model, and pass signals on.

import { once } from 'node:events';
import { ShoalError, mainQueue } from '@shoal/contract';
import { flagName, servedModels, type Settings, redactUrl } from '@shoal/core';
import type { StoredModel } from '@shoal/models';
import { liveWorkers } from '@shoal/queue';
import { UpProcess, forkApp, samePort, type App } from '../processes/up-process.ts';
import { fetchModel } from '../processes/fetch-model.ts';
import { withConnection, type ConnectionTerms } from '../processes/queue-connection.ts';
import { withServer } from '../processes/session.ts';
import { settingsEnvironment, settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';

export type ServeFlags = Readonly<Record<string, string>>;

/** A service that hangs while it stops is killed this long after its last request had to be answered. */
const BEYOND_REQUESTS_MS = 5_000;
/** A queue server that has not told by then who serves the queue holds up nobody who waits for the address. */
const LOOK_MS = 2_000;
/**
 * Flags that a worker has to be given as well, so that both are at the same queue. What comes from elsewhere, it finds
 * there.
 */
const SHARED_FLAGS: readonly (keyof Settings)[] = ['redisUrl', 'prefix', 'cacheDir', 'modelsDir'];

export async function serve(terminal: Terminal, flags: ServeFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  const models = await modelsForHttp(terminal, settings);
  await runService(terminal, settings, {
    app: 'producer',
    name: 'HTTP',
    port: 'httpPort',
    stopMs: settings.requestTimeoutMs + BEYOND_REQUESTS_MS,
    onReady: (terms) => tellOfNoWorkers(terminal, models, flags, terms),
  });
}

/** The model of the settings first, then those that HTTP serves besides; each is fetched where it is not there. */
export async function modelsForHttp(
  terminal: Terminal,
  settings: Settings,
): Promise<readonly [StoredModel, ...StoredModel[]]> {
  const fetched = async (name: string): Promise<StoredModel> =>
    forHttp(await fetchModel(terminal, name, { settings, isQuiet: false }));
  const models: [StoredModel, ...StoredModel[]] = [await fetched(settings.model)];
  for (const { model } of settings.serve === undefined ? [] : servedModels(settings.serve)) {
    const stored = await fetched(model);
    if (models.every(({ name }) => name !== stored.name)) models.push(stored);
  }
  return models;
}

/** HTTP embeds with its models, and reranks with any reranker that a worker serves. USAGE for a reranker as that one. */
export function forHttp(model: StoredModel): StoredModel {
  if (model.kind === 'embedder') return model;
  const { name } = model;
  throw new ShoalError(
    'USAGE',
    `${name} is a reranker, and HTTP is started with an embedder: leave --model ${name} out here, and start a worker for ` +
      `it, shoal worker --model ${name}. POST /v1/rerank then takes "model": "${name}"`,
    { name },
  );
}

export async function dashboard(terminal: Terminal, flags: ServeFlags): Promise<void> {
  await runService(terminal, await settingsOf(terminal, flags), {
    app: 'dashboard',
    name: 'dashboard',
    port: 'dashboardPort',
    stopMs: BEYOND_REQUESTS_MS,
  });
}

interface Service {
  readonly app: App;
  readonly name: string;
  /** Setting that has its port. */
  readonly port: 'httpPort' | 'dashboardPort';
  readonly stopMs: number;
  /** It answers; nobody was told its address yet. */
  readonly onReady?: (terms: ConnectionTerms) => Promise<void>;
}

async function runService(
  terminal: Terminal,
  settings: Settings,
  { app, name, port, stopMs, onReady }: Service,
): Promise<void> {
  await withServer(terminal, { settings, isQuiet: false }, async ({ redisUrl, lost }) => {
    const ending = AbortSignal.any([terminal.signal, lost]);
    ending.throwIfAborted();
    const ended = once(ending, 'abort');
    const part = new UpProcess({
      name,
      stopMs,
      start: (first) =>
        forkApp(app, {
          ...terminal.environment,
          ...settingsEnvironment({ ...settings, redisUrl }),
          ...samePort(port, first),
        }),
      onDeath: (reason) => say(terminal, `${name} ended (${reason}); starting it again`),
      onReturn: () => say(terminal, `${name} is up again`),
    });
    try {
      const report = await Promise.race([part.ready, ended]);
      await onReady?.({
        redisUrl,
        prefix: settings.prefix,
        signal: AbortSignal.any([ending, AbortSignal.timeout(LOOK_MS)]),
      });
      if (!Array.isArray(report) && 'url' in report) await print(terminal, `${String(report.url)}\n`);
      await ended;
    } finally {
      await part.stop();
    }
    if (lost.aborted) throw lost.reason;
  });
}

/**
 * A request may come before its worker; whoever starts the service without one should hear so, rather than wait with no
 * hint.
 */
export async function tellOfNoWorkers(
  terminal: Terminal,
  models: readonly Pick<StoredModel, 'name'>[],
  flags: ServeFlags,
  terms: ConnectionTerms,
): Promise<void> {
  for (const { name } of models) {
    const workers = await withConnection(terms, (connection) =>
      liveWorkers(connection, mainQueue(name), terms.prefix),
    ).catch(() => undefined); // told to stop, or the server is away: that is told by others
    if (workers?.length !== 0) continue;
    say(
      terminal,
      `no worker serves the model ${name} yet, and requests wait for one; start one with: ` +
        `${workerCommand(name, flags)}`,
    );
  }
}

function workerCommand(model: string, flags: ServeFlags): string {
  const given = SHARED_FLAGS.flatMap((key) => {
    const value = flags[key];
    return value === undefined ? [] : [flagName(key), key === 'redisUrl' ? redactUrl(value) : value];
  });
  return ['shoal', 'worker', flagName('model'), model, ...given].map(asShellWord).join(' ');
}

function asShellWord(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`;
}

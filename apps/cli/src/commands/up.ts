// `shoal up`: everything on this machine in one command: queue server, HTTP, dashboard, and workers: one for each GPU
// and one on the CPU to embed, and as many to compare where the CUDA kernels for that were built. Each is a process of
// its own, started again when it dies; a GPU that fails leaves the others at work. Ctrl-C first stops taking requests,
// answers those that are open, then drains the workers, then lets go of the queue server; nothing is left running.

import { once } from 'node:events';
import { MASTER_KEY_VARIABLE, cacheFolder, type Settings, redactUrl } from '@shoal/core';
import { modelSlug } from '@shoal/contract';
import type { StoredModel } from '@shoal/models';
import { cudaLibraryProblem } from '@shoal/similarity';
import { localGpus } from '@shoal/worker';
import {
  UpProcess,
  forkApp,
  samePort,
  type App,
  type UpProcessOptions,
  type ReadyReport,
} from '../processes/up-process.ts';
import { withServer, type QueueServer } from '../processes/session.ts';
import { modelsForHttp, tellOfNoWorkers } from './serve.ts';
import { settingsEnvironment, settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';

export type UpFlags = Readonly<Record<string, string>> & { readonly json?: boolean };

/** A part that hangs is killed so long after its own time to stop. */
const BEYOND_STOP_MS = 5_000;
/** A queue server that has not told by then who serves which model holds up nobody. */
const LOOK_MS = 2_000;

export async function up(terminal: Terminal, flags: UpFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  const [model, ...others] = await modelsForHttp(terminal, settings);
  const devices = await devicesOf(terminal, flags, settings, model);
  const comparers = await comparersOf(terminal, flags, settings);
  await withServer(terminal, { settings, isQuiet: false }, (server) =>
    runAll(terminal, { settings, devices, comparers, others, flags, server, isJson: flags.json === true }),
  );
}

interface Parts {
  readonly http: UpProcess;
  /** One for each device. */
  readonly workers: readonly UpProcess[];
  readonly similarity: readonly UpProcess[];
  readonly dashboard: UpProcess;
}

interface RunTerms {
  readonly settings: Settings;
  readonly devices: readonly Device[];
  /** For similarity. */
  readonly comparers: readonly Device[];
  readonly server: QueueServer;
  readonly isJson: boolean;
  /** That HTTP serves besides, and for which no worker is started here. */
  readonly others: readonly StoredModel[];
  readonly flags: Readonly<Record<string, string>>;
}

async function runAll(terminal: Terminal, terms: RunTerms): Promise<void> {
  const { settings, devices, comparers, server, isJson, others, flags } = terms;
  const ending = AbortSignal.any([terminal.signal, server.lost]);
  ending.throwIfAborted();
  const ended = once(ending, 'abort').then(() => undefined);
  const parts = startParts(terminal, { ...settings, redisUrl: server.redisUrl }, devices, comparers);
  try {
    const reports = await Promise.race([
      Promise.all([parts.http.ready, someOf(parts.workers), parts.dashboard.ready, someOf(parts.similarity)]),
      ended,
    ]);
    if (reports !== undefined)
      await print(terminal, isJson ? asJson(reports, server.redisUrl) : asText(reports, settings, server.redisUrl));
    await tellOfNoWorkers(terminal, others, flags, {
      redisUrl: server.redisUrl,
      prefix: settings.prefix,
      signal: AbortSignal.any([ending, AbortSignal.timeout(LOOK_MS)]),
    });
    await ended;
    say(terminal, 'stopping: requests first, then the workers; a second Ctrl-C does not wait');
  } finally {
    await Promise.all([parts.http.stop(), parts.dashboard.stop()]);
    await Promise.all([...parts.workers, ...parts.similarity].map((part) => part.stop()));
  }
  if (server.lost.aborted) throw server.lost.reason;
}

/** What those said that could be started; where none could, why the first could not. */
async function someOf(workers: readonly UpProcess[]): Promise<ReadyReport[]> {
  const found = await Promise.allSettled(workers.map((worker) => worker.ready));
  const reports = found.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  if (reports.length === 0) await workers[0]?.ready;
  return reports;
}

/** A device and what is in force for its worker: sizes differ between GPUs and CPUs. */
interface Device {
  readonly settings: Settings;
  readonly environment: Readonly<Record<string, string>>;
}

/** What was named, else every GPU that can be used. The CPU beside them takes what fits none of them. */
async function devicesOf(
  terminal: Terminal,
  flags: UpFlags,
  { device, simServes, cacheDir }: Settings,
  model: StoredModel,
): Promise<readonly Device[]> {
  const on = async (name: string, environment = {}): Promise<Device> => ({
    settings: await settingsOf(terminal, { ...flags, device: name }),
    environment,
  });
  const cpu = await on('cpu');
  if (device === 'cpu' || (device === 'auto' && model.graphKind === 'int8')) return [cpu];
  if (simServes === 'model') return [await on(device)]; // no worker computes the model beside a trial
  if (device !== 'auto') return [await on(device), cpu];
  const { ids, refusals } = await localGpus({
    cacheDir: cacheFolder(cacheDir, terminal.environment),
    environment: terminal.environment,
  });
  if (refusals.length > 0)
    say(
      terminal,
      `${ids.length === 0 ? 'no GPU is used' : 'not every GPU is used'}: ${refusals.join('; ')}. "shoal ` +
        'doctor" looks closer',
    );
  const environment = { CUDA_VISIBLE_DEVICES: ids.join(',') };
  return [...(await Promise.all(ids.map((_, index) => on(`gpu:${index}`, environment)))), cpu];
}

/** The same for comparing, where the CUDA kernels for it were built; else the CPU. */
async function comparersOf(
  terminal: Terminal,
  flags: UpFlags,
  { device, cacheDir, cudaLibrary }: Settings,
): Promise<readonly Device[]> {
  const on = async (name: string, environment = {}): Promise<Device> => ({
    settings: await settingsOf(terminal, { ...flags, device: name }),
    environment,
  });
  const cpu = await on('cpu');
  const isGpu = device === 'auto' || device.startsWith('gpu:');
  if (!isGpu || (await cudaLibraryProblem(cudaLibrary)) !== undefined) return [cpu];
  if (device !== 'auto') return [await on(device), cpu];
  const { ids } = await localGpus({
    cacheDir: cacheFolder(cacheDir, terminal.environment),
    environment: terminal.environment,
    providerProblem: async () => undefined,
  });
  const environment = { CUDA_VISIBLE_DEVICES: ids.join(',') };
  return [...(await Promise.all(ids.map((_, index) => on(`gpu:${index}`, environment)))), cpu];
}

/** A name that somebody chose is for one worker of a queue. */
function nameOn({ workerName, device }: Settings): string | undefined {
  return workerName === undefined ? undefined : `${workerName}-${device.replaceAll(':', '-')}`.slice(-64);
}

function startParts(
  terminal: Terminal,
  settings: Settings,
  devices: readonly Device[],
  comparers: readonly Device[],
): Parts {
  // Every line of three processes would bury what a person wants to see; whoever asks for another level gets it.
  const logLevel = settings.logLevel === 'info' ? 'warn' : settings.logLevel;
  const environmentOf = (own: Settings): Record<string, string | undefined> => ({
    ...terminal.environment,
    ...settingsEnvironment({ ...own, redisUrl: settings.redisUrl, logLevel }),
  });
  type More = Pick<UpProcessOptions, 'hasOthers'> & {
    readonly port?: 'httpPort' | 'dashboardPort';
    readonly environment?: Readonly<Record<string, string | undefined>>;
  };
  const part = (
    app: App,
    name: string,
    stopMs: number,
    { port, hasOthers = false, environment = environmentOf(settings) }: More = {},
  ): UpProcess =>
    new UpProcess({
      name,
      hasOthers,
      stopMs: stopMs + BEYOND_STOP_MS,
      start: (first) =>
        forkApp(app, {
          ...environment,
          ...(app === 'producer' ? {} : { [MASTER_KEY_VARIABLE]: undefined }), // nobody else's business
          ...(port === undefined ? {} : samePort(port, first)),
        }),
      ...told(terminal, name),
    });
  const workersFor = (kind: Settings['kind'], called: string, on: readonly Device[], firstPort: number): UpProcess[] =>
    on.map(({ settings: own, environment }, at) => {
      const hasOthers = on.length > 1;
      const name = hasOthers ? `${called} on ${own.device}` : called;
      return part(own.device === 'cpu' ? 'cpu-worker' : 'gpu-worker', name, settings.drainTimeoutMs, {
        hasOthers,
        environment: {
          ...environmentOf({
            ...own,
            kind,
            metricsPort: portOf(settings.metricsPort, firstPort + at),
            workerName: hasOthers ? nameOn(own) : own.workerName,
          }),
          ...environment,
        },
      });
    });
  return {
    http: part('producer', 'HTTP', settings.requestTimeoutMs, { port: 'httpPort' }),
    workers: workersFor('embed', 'the worker', devices, 0),
    similarity: workersFor('similarity', 'the similarity worker', comparers, devices.length),
    dashboard: part('dashboard', 'the dashboard', 0, { port: 'dashboardPort' }),
  };
}

/** What befalls a part, once: a device that stays away is tried again every ten seconds. */
function told(terminal: Terminal, name: string): Pick<UpProcessOptions, 'onDeath' | 'onReturn'> {
  let saidLast: string | undefined;
  return {
    onDeath: (reason) => {
      if (reason !== saidLast) say(terminal, `${name} ended (${reason}); starting it again`);
      saidLast = reason;
    },
    onReturn: () => {
      say(terminal, `${name} is up again`);
      saidLast = undefined;
    },
  };
}

/** Workers' metrics are at one port after the other; 0 stays none. */
function portOf(first: number, at: number): number {
  return first === 0 ? 0 : first + at;
}

type Reports = readonly [
  http: ReadyReport,
  workers: readonly ReadyReport[],
  dashboard: ReadyReport,
  similarity: readonly ReadyReport[],
];

function asText([http, workers, dashboard, similarity]: Reports, { model: asked }: Settings, redisUrl: string): string {
  const url = String(http['url']);
  const places = workers.map(({ device, precision }) => `${String(device)} (${String(precision)})`);
  const served = String(workers[0]?.['model']);
  const model = asked.includes('/') ? modelSlug(asked) : asked;
  const comparing = similarity.map(({ device }) => String(device)).join(', ');
  return `
  HTTP       ${url}/v1/embeddings   OpenAI's API; also /v1/models, /openapi.json, /metrics
  queue      ${redactUrl(redisUrl)}   REDIS_URL of programs with the SDK, the Python client or BullMQ
  dashboard  ${String(dashboard['url'])}
  ${workers.length === 1 ? 'worker ' : 'workers'}    ${served} on ${places.join(', ')}, similarity on ${comparing}

  curl ${url}/v1/embeddings -H 'content-type: application/json' -d '{"model": "${model}", "input": "hello"}'

Ctrl-C drains and stops all of it.
`;
}

function asJson([http, workers, dashboard, similarity]: Reports, redisUrl: string): string {
  const pids = {
    http: http['pid'],
    workers: workers.map(({ pid }) => pid),
    dashboard: dashboard['pid'],
    similarity: similarity.map(({ pid }) => pid),
  };
  const shown = redactUrl(redisUrl); // standard output of a service ends in a journal
  return `${JSON.stringify({ http: http['url'], dashboard: dashboard['url'], redisUrl: shown, pids })}\n`;
}

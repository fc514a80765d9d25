// `shoal up`: everything on this machine in one command: queue server, HTTP, two workers on the CPU (one embeds, one
// compares), dashboard. Each is a process of its own, started again when it dies. Ctrl-C first stops taking requests, answers
// those that are open, then drains the workers, then lets go of the queue server; nothing is left running.

import { once } from 'node:events';
import { environmentName, type Settings } from '@shoal/core';
import { Part, forkApp, samePort, type App, type ReadyReport } from '../part.ts';
import { fetchModel, withServer, type QueueServer } from '../session.ts';
import { settingsEnvironment, settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';

export type UpFlags = Readonly<Record<string, string>> & { readonly json?: boolean };

/** A part that hangs is killed so long after its own time to stop. */
const BEYOND_STOP_MS = 5_000;

export async function up(terminal: Terminal, flags: UpFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  await fetchModel(terminal, settings.model, { settings, isQuiet: false });
  await withServer(terminal, { settings, isQuiet: false }, (server) => runAll(terminal, settings, server, flags.json === true));
}

interface Parts {
  readonly http: Part;
  readonly worker: Part;
  readonly similarity: Part;
  readonly dashboard: Part;
}

async function runAll(terminal: Terminal, settings: Settings, server: QueueServer, isJson: boolean): Promise<void> {
  const ending = AbortSignal.any([terminal.signal, server.lost]);
  ending.throwIfAborted();
  const ended = once(ending, 'abort').then(() => undefined);
  const parts = startParts(terminal, { ...settings, redisUrl: server.redisUrl });
  try {
    const reports = await Promise.race([Promise.all([parts.http.ready, parts.worker.ready, parts.dashboard.ready, parts.similarity.ready]), ended]);
    if (reports !== undefined) await print(terminal, isJson ? asJson(reports, server.redisUrl) : asText(reports, settings));
    await ended;
    say(terminal, 'stopping: requests first, then the workers; a second Ctrl-C does not wait');
  } finally {
    await Promise.all([parts.http.stop(), parts.dashboard.stop()]);
    await Promise.all([parts.worker.stop(), parts.similarity.stop()]);
  }
  if (server.lost.aborted) throw server.lost.reason;
}

function startParts(terminal: Terminal, settings: Settings): Parts {
  // Every line of three processes would bury what a person wants to see; whoever asks for another level gets it.
  const logLevel = settings.logLevel === 'info' ? 'warn' : settings.logLevel;
  const environment = { ...terminal.environment, ...settingsEnvironment({ ...settings, logLevel, device: 'cpu', kind: 'embed' }) };
  // its metrics would be at the address of the other worker's
  const similar = { [environmentName('kind')]: 'similarity', [environmentName('metricsPort')]: '0' };
  const part = (app: App, name: string, stopMs: number, port?: 'httpPort' | 'dashboardPort', more?: Readonly<Record<string, string>>): Part => new Part({
    name,
    stopMs: stopMs + BEYOND_STOP_MS,
    start: (first) => forkApp(app, { ...environment, ...more, ...(port === undefined ? {} : samePort(port, first)) }),
    onDeath: (reason) => say(terminal, `${name} ended (${reason}); starting it again`),
    onReturn: () => say(terminal, `${name} is up again`),
  });
  return {
    http: part('producer', 'HTTP', settings.requestTimeoutMs, 'httpPort'),
    worker: part('cpu-worker', 'the worker', settings.drainTimeoutMs),
    similarity: part('cpu-worker', 'the similarity worker', settings.drainTimeoutMs, undefined, similar),
    dashboard: part('dashboard', 'the dashboard', 0, 'dashboardPort'),
  };
}

type Reports = readonly [http: ReadyReport, worker: ReadyReport, dashboard: ReadyReport, similarity: ReadyReport];

function asText([http, worker, dashboard, similarity]: Reports, { model }: Settings): string {
  const url = String(http['url']);
  return `
  HTTP       ${url}/v1/embeddings   OpenAI's API; also /v1/models, /openapi.json, /metrics
  dashboard  ${String(dashboard['url'])}
  worker     ${String(worker['model'])} on ${String(worker['device'])} (${String(worker['precision'])}), similarity on ${String(similarity['device'])}

  curl ${url}/v1/embeddings -H 'content-type: application/json' -d '{"model": "${model}", "input": "hello"}'

Ctrl-C drains and stops all of it.
`;
}

function asJson([http, worker, dashboard, similarity]: Reports, redisUrl: string): string {
  return `${JSON.stringify({ http: http['url'], dashboard: dashboard['url'], redisUrl, pids: { http: http['pid'], worker: worker['pid'], dashboard: dashboard['pid'], similarity: similarity['pid'] } })}\n`;
}

// `shoal up`: everything on this machine in one command: queue server, HTTP, a worker on the CPU, dashboard. Each is a
// process of its own, started again when it dies. Ctrl-C first stops taking requests, answers those that are open, then
// drains the worker, then lets go of the queue server; nothing is left running.

import { once } from 'node:events';
import type { Settings } from '@shoal/core';
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
  readonly dashboard: Part;
}

async function runAll(terminal: Terminal, settings: Settings, server: QueueServer, isJson: boolean): Promise<void> {
  const ending = AbortSignal.any([terminal.signal, server.lost]);
  ending.throwIfAborted();
  const ended = once(ending, 'abort').then(() => undefined);
  const parts = startParts(terminal, { ...settings, redisUrl: server.redisUrl });
  try {
    const reports = await Promise.race([Promise.all([parts.http.ready, parts.worker.ready, parts.dashboard.ready]), ended]);
    if (reports !== undefined) await print(terminal, isJson ? asJson(reports, server.redisUrl) : asText(reports, settings));
    await ended;
    say(terminal, 'stopping: requests first, then the worker; a second Ctrl-C does not wait');
  } finally {
    await Promise.all([parts.http.stop(), parts.dashboard.stop()]);
    await parts.worker.stop();
  }
  if (server.lost.aborted) throw server.lost.reason;
}

function startParts(terminal: Terminal, settings: Settings): Parts {
  // Every line of three processes would bury what a person wants to see; whoever asks for another level gets it.
  const logLevel = settings.logLevel === 'info' ? 'warn' : settings.logLevel;
  const environment = { ...terminal.environment, ...settingsEnvironment({ ...settings, logLevel, device: 'cpu' }) };
  const part = (app: App, name: string, stopMs: number, port?: 'httpPort' | 'dashboardPort'): Part => new Part({
    name,
    stopMs: stopMs + BEYOND_STOP_MS,
    start: (first) => forkApp(app, { ...environment, ...(port === undefined ? {} : samePort(port, first)) }),
    onDeath: (reason) => say(terminal, `${name} ended (${reason}); starting it again`),
    onReturn: () => say(terminal, `${name} is up again`),
  });
  return {
    http: part('producer', 'HTTP', settings.requestTimeoutMs, 'httpPort'),
    worker: part('cpu-worker', 'the worker', settings.drainTimeoutMs),
    dashboard: part('dashboard', 'the dashboard', 0, 'dashboardPort'),
  };
}

type Reports = readonly [http: ReadyReport, worker: ReadyReport, dashboard: ReadyReport];

function asText([http, worker, dashboard]: Reports, { model }: Settings): string {
  const url = String(http['url']);
  return `
  HTTP       ${url}/v1/embeddings   OpenAI's API; also /v1/models, /openapi.json, /metrics
  dashboard  ${String(dashboard['url'])}
  worker     ${String(worker['model'])} on ${String(worker['device'])} (${String(worker['precision'])})

  curl ${url}/v1/embeddings -H 'content-type: application/json' -d '{"model": "${model}", "input": "hello"}'

Ctrl-C drains and stops all of it.
`;
}

function asJson([http, worker, dashboard]: Reports, redisUrl: string): string {
  return `${JSON.stringify({ http: http['url'], dashboard: dashboard['url'], redisUrl, pids: { http: http['pid'], worker: worker['pid'], dashboard: dashboard['pid'] } })}\n`;
}

// `shoal serve` and `shoal dashboard`: one service in the foreground, for people and process managers. The service is a
// program of its own; these commands find it a queue server and a model, and pass signals on.

import { once } from 'node:events';
import type { Settings } from '@shoal/core';
import { Part, forkApp, samePort, type App } from '../part.ts';
import { fetchModel, withServer } from '../session.ts';
import { settingsEnvironment, settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';

export type ServeFlags = Readonly<Record<string, string>>;

/** A service that hangs while it stops is killed this long after its last request had to be answered. */
const BEYOND_REQUESTS_MS = 5_000;

export async function serve(terminal: Terminal, flags: ServeFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  await fetchModel(terminal, settings.model, { settings, isQuiet: false });
  await runService(terminal, settings, { app: 'producer', name: 'HTTP', port: 'httpPort', stopMs: settings.requestTimeoutMs + BEYOND_REQUESTS_MS });
}

export async function dashboard(terminal: Terminal, flags: ServeFlags): Promise<void> {
  await runService(terminal, await settingsOf(terminal, flags), { app: 'dashboard', name: 'dashboard', port: 'dashboardPort', stopMs: BEYOND_REQUESTS_MS });
}

interface Service {
  readonly app: App;
  readonly name: string;
  /** Setting that has its port. */
  readonly port: 'httpPort' | 'dashboardPort';
  readonly stopMs: number;
}

async function runService(terminal: Terminal, settings: Settings, { app, name, port, stopMs }: Service): Promise<void> {
  await withServer(terminal, { settings, isQuiet: false }, async ({ redisUrl, lost }) => {
    const ending = AbortSignal.any([terminal.signal, lost]);
    ending.throwIfAborted();
    const ended = once(ending, 'abort');
    const part = new Part({
      name, stopMs,
      start: (first) => forkApp(app, { ...terminal.environment, ...settingsEnvironment({ ...settings, redisUrl }), ...samePort(port, first) }),
      onDeath: (reason) => say(terminal, `${name} ended (${reason}); starting it again`),
      onReturn: () => say(terminal, `${name} is up again`),
    });
    try {
      const report = await Promise.race([part.ready, ended]);
      if (!Array.isArray(report) && 'url' in report) await print(terminal, `${String(report.url)}\n`);
      await ended;
    } finally {
      await part.stop();
    }
    if (lost.aborted) throw lost.reason;
  });
}

// Workers and HTTP servers of tests as processes of their own, so that they can be killed.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { programOf, type AppName } from '@shoal/core/testing';

export interface AppReport {
  readonly kind: 'ready' | 'unfit';
  readonly url?: string;
}

export interface StartedApp {
  readonly report: AppReport;
  /** What it has logged so far. */
  readonly log: () => string;
  /** SIGKILL; resolves when it is gone. */
  kill9(): Promise<void>;
  /** SIGTERM, unless it is gone already. */
  stop(): Promise<void>;
}

/** Resolves once it says that it is ready, or why not. */
export async function startProcess(app: AppName, environment: Readonly<Record<string, string>>): Promise<StartedApp> {
  const { main, execArgv } = programOf(app);
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: { ...process.env, SHOAL_LOG_LEVEL: 'warn', SHOAL_THREADS: '1', ...environment },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream?.on('data', (chunk) => (text += String(chunk)));
  const [report]: unknown[] = await once(child, 'message');
  return {
    report: report as AppReport,
    log: () => text,
    kill9: () => end(child, 'SIGKILL'),
    stop: () => end(child, 'SIGTERM'),
  };
}

async function end(child: ChildProcess, signal: 'SIGKILL' | 'SIGTERM'): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, 'exit');
  child.kill(signal);
  await gone;
}

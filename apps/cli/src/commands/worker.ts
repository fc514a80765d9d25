// `shoal worker`: one worker in the foreground, for people and process managers. The worker is the same program that a
// fleet runs; this command finds it a queue server, passes signals on and gives back its exit code.

import type { ChildProcess } from 'node:child_process';
import { ShoalError, type Failure } from '@shoal/contract';
import type { Settings } from '@shoal/core';
import { REPLACE_ME } from '@shoal/ops/service';
import { SILENT_FOR, watchSigns } from '@shoal/ops/signs-of-life';
import { endOf, forkWorker, stopWorker, unfitReport } from '../processes/keep-worker.ts';
import { fetchModel } from '../processes/fetch-model.ts';
import { withServer } from '../processes/session.ts';
import { settingsEnvironment, settingsOf } from '../settings.ts';
import { Interruption, say, type Terminal } from '../terminal.ts';

export type WorkerFlags = Readonly<Record<string, string>>;

/** A worker that hangs while it drains is killed when its own time for that is over. */
const BEYOND_DRAIN_MS = 5_000;

export async function worker(terminal: Terminal, flags: WorkerFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  if (settings.kind === 'embed') await fetchModel(terminal, settings.model, { settings, isQuiet: false });
  await withServer(terminal, { settings, isQuiet: false }, ({ redisUrl }) =>
    runWorker(terminal, { ...settings, redisUrl }),
  );
}

async function runWorker(terminal: Terminal, settings: Settings): Promise<void> {
  terminal.signal.throwIfAborted();
  const app = settings.device === 'cpu' ? 'cpu-worker' : 'gpu-worker';
  const child = forkWorker(app, { ...terminal.environment, ...settingsEnvironment(settings) }, 'inherit');
  let unfit: Failure | undefined;
  child.on('message', (message) => {
    unfit ??= unfitReport(message);
    announce(terminal, message);
  });
  watchSigns(child, () => {
    say(terminal, `the worker has given no sign of life for ${SILENT_FOR} and is killed`);
    child.kill('SIGKILL');
  });
  const stopped = stopOnSignal(terminal, child, settings.drainTimeoutMs + BEYOND_DRAIN_MS);
  const { code, signal } = await endOf(child);
  if (stopped() && code === 0) return;
  if (code === REPLACE_ME)
    throw new Interruption(
      `the worker made room for its successor: start it again (exit code ${REPLACE_ME})`,
      REPLACE_ME,
    );
  if (unfit !== undefined) throw new ShoalError(unfit.code, unfit.message);
  throw new ShoalError(
    'EXECUTOR_LOST',
    `the worker ended ${signal === null ? `with exit code ${String(code)}` : `by ${String(signal)}`}; its log ` +
      'lines above say why',
  );
}

function announce(terminal: Terminal, message: unknown): void {
  if (typeof message !== 'object' || message === null || Reflect.get(message, 'kind') !== 'ready') return;
  const fact = (name: string): string => String(Reflect.get(message, name));
  say(
    terminal,
    `worker ${fact('pid')} serves ${fact('model')} on ${fact('device')} (${fact('precision')}); Ctrl-C drains it`,
  );
}

/** Returns whether a stop was asked for. A drained worker is a done command: the exit code is 0. */
function stopOnSignal(terminal: Terminal, child: ChildProcess, waitMs: number): () => boolean {
  terminal.signal.addEventListener(
    'abort',
    () => {
      say(terminal, 'draining; a second Ctrl-C does not wait');
      void stopWorker(child, waitMs);
    },
    { once: true },
  );
  return () => terminal.signal.aborted;
}

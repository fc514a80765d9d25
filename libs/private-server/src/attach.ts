// Attaching to this user's private queue server, which is started when it is not running and stops when the last
// command has left. An attachment is
//   attached   while its line to the supervisor is open;
//   rejoining  when the line broke (the supervisor was killed): a new one is started, by whichever command is first;
//   lost       when that failed: the owner is told once, through onLost;
//   released   for good, after release().
// Refuses to touch a server that somebody else runs: with a redisUrl nothing is started, checked or stopped here.

import { spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { hostname } from 'node:os';
import { fileURLToPath } from 'node:url';
import { isShoalError, ShoalError } from '@shoal/contract';
import { descriptorFailure, programFile } from '@shoal/core/base';
import type { Logger } from '@shoal/core';
import { diskFailure, withLock } from '@shoal/fetch';
import { ControlLine, waitUntilGone } from './control-line.ts';
import type { Launched } from './control-protocol.ts';
import { findServerProgram } from './program.ts';
import { readRunFile, RUN_VERSION, whereabouts, type RunFile } from './run-file.ts';
import { privateSite, runFileOf, type Site } from './site.ts';
import type { SupervisorOptions } from './supervisor.ts';

export interface AttachOptions {
  readonly cacheDir: string;
  /** A server that somebody else runs: its address is handed back as it is. */
  readonly redisUrl?: string | undefined;
  /** What is being done that takes a while, as a sentence for a person. */
  readonly onProgress?: ((step: string) => void) | undefined;
  readonly log?: Logger | undefined;
  /** Called once when the private server cannot be brought back. */
  readonly onLost?: ((failure: ShoalError) => void) | undefined;
  /** How long the server waits for another command when the last one was killed. Used by the command that starts it. */
  readonly lingerMs?: number | undefined;
  /**
   * Ends the wait for other commands and the fetch of a program, with its reason. A server that is being started is
   * attached to; later nothing comes of it, because what stops needs its server.
   */
  readonly signal?: AbortSignal | undefined;
}

export interface AttachedServer {
  readonly url: string;
  readonly isPrivate: boolean;
  /** Leaves; when nobody else is attached, resolves once the server is gone. Safe to call twice. */
  release(): Promise<void>;
}

/**
 * A command that was killed may be resumed for the better part of a minute; after the minute nothing of it is left
 * running.
 */
const LINGER_MS = 50_000;
/** Supervisors that may die under our hands while we attach. */
const MAX_JOINS = 5;

/** The queue server to use: the one at `redisUrl`, else this user's private one, running and ready. */
export async function attachServer(options: AttachOptions): Promise<AttachedServer> {
  if (options.redisUrl !== undefined)
    return { url: options.redisUrl, isPrivate: false, release: async () => undefined };
  const attachment = new Attachment(options, await join(options));
  return { url: attachment.url, isPrivate: true, release: () => attachment.release() };
}

/**
 * The queue server to use, if there is one: undefined when no private server runs. Starts nothing, creates nothing and
 * takes no lock, so that an operator sees the queue when the disk is full or read-only. Where the supervisor dies under
 * it, a server that is brought back by others is found at the same address.
 */
export async function attachRunningServer(options: AttachOptions): Promise<AttachedServer | undefined> {
  if (options.redisUrl !== undefined) return attachServer(options);
  const runFile = runFileOf(options.cacheDir);
  const run = readRunFile(runFile);
  if (run === undefined || whereabouts(runFile, run) === 'gone') return undefined;
  const line = await lineTo(runFile, run, options);
  if (line === undefined || !(await line.ready())) return undefined;
  return { url: `unix://${run.socket}`, isPrivate: true, release: () => line.bye() };
}

/** A line to a supervisor of our kind; undefined where it is just stopping. */
async function lineTo(
  runFile: string,
  run: RunFile,
  { onProgress }: Pick<AttachOptions, 'onProgress'>,
): Promise<ControlLine | undefined> {
  if (whereabouts(runFile, run) === 'elsewhere') throw onAnotherHost(run);
  if (run.version !== RUN_VERSION) throw otherVersion(run);
  return ControlLine.open(run, onProgress);
}

interface Joined {
  readonly line: ControlLine;
  readonly url: string;
}

type State =
  | { readonly name: 'attached'; readonly line: ControlLine }
  | { readonly name: 'rejoining'; readonly joined: Promise<void> }
  | { readonly name: 'lost' }
  | { readonly name: 'released'; readonly gone: Promise<void> };

class Attachment {
  readonly url: string;
  readonly #options: AttachOptions;
  #state: State;

  constructor(options: AttachOptions, joined: Joined) {
    this.#options = options;
    this.url = joined.url;
    this.#state = { name: 'attached', line: joined.line };
    this.#listen(joined.line);
  }

  release(): Promise<void> {
    if (this.#state.name === 'released') return this.#state.gone;
    const before = this.#state;
    const gone = (async () => {
      if (before.name === 'attached') await before.line.bye();
      if (before.name === 'rejoining') await before.joined;
    })();
    this.#state = { name: 'released', gone };
    return gone;
  }

  #listen(line: ControlLine): void {
    line.onMessage((message) => {
      if (message.kind === 'restarting')
        this.#options.log?.warn({ found: message.found }, 'private queue server died, starting again');
      if (message.kind === 'stopping' && this.#state.name === 'attached' && this.#state.line === line)
        this.#lineBroke(line);
    });
  }

  #lineBroke(line: ControlLine): void {
    if (line.failure !== undefined) return this.#lose(line.failure);
    this.#options.log?.warn(
      { cacheDir: this.#options.cacheDir },
      'supervisor of the private queue server is gone, attaching again',
    );
    this.#state = { name: 'rejoining', joined: this.#rejoin() };
  }

  async #rejoin(): Promise<void> {
    try {
      const { line } = await join({ ...this.#options, signal: undefined });
      if (this.#state.name === 'released') return await line.bye();
      this.#state = { name: 'attached', line };
      this.#listen(line);
    } catch (error) {
      this.#lose(
        isShoalError(error)
          ? error
          : new ShoalError(
              'SETUP_FAILED',
              `the private queue server could not be brought back: ${String(error)}`,
              {},
              error,
            ),
      );
    }
  }

  #lose(failure: ShoalError): void {
    if (this.#state.name === 'released') return;
    this.#state = { name: 'lost' };
    this.#options.log?.error({ code: failure.code, err: failure }, 'private queue server lost');
    this.#options.onLost?.(failure);
  }
}

/** Attaches, starting a supervisor when there is none. One command at a time, so that there is only ever one. */
async function join(options: AttachOptions): Promise<Joined> {
  const site = privateSite(options.cacheDir);
  for (let turn = 0; turn < MAX_JOINS; turn++) {
    const { line, run } = await withLock(site.runLock, () => openLine(site, options), {
      signal: options.signal,
      onWait: () => options.onProgress?.('waiting for another command that starts the queue server'),
    });
    if (await line.ready()) return { line, url: `unix://${run.socket}` };
  }
  throw diesAtOnce(site);
}

/**
 * At most one supervisor can be found stopping, and one be started, while we hold the lock: more turns mean that it
 * dies at once.
 */
async function openLine(site: Site, options: AttachOptions): Promise<{ line: ControlLine; run: RunFile }> {
  for (let turn = 0; turn < MAX_JOINS; turn++) {
    const run = readRunFile(site.runFile);
    if (run === undefined || whereabouts(site.runFile, run) === 'gone') {
      await launch(site, options);
      continue;
    }
    const line = await lineTo(site.runFile, run, options);
    if (line !== undefined) return { line, run };
    await waitUntilGone(run.supervisor); // it was just stopping
  }
  throw diesAtOnce(site);
}

/** Starts a supervisor that outlives this command, and returns once it listens. */
async function launch(site: Site, options: AttachOptions): Promise<void> {
  const program = await findServerProgram(options);
  options.signal?.throwIfAborted();
  if (program.warning !== undefined) options.log?.warn({ path: program.path }, program.warning);
  options.onProgress?.(`starting a private queue server (${program.name} ${program.version})`);
  const settings: SupervisorOptions = { site, program, lingerMs: options.lingerMs ?? LINGER_MS };
  const log = openLog(site);
  const main = programFile('./supervisor-main', import.meta.url);
  const child = spawn(
    process.execPath,
    [...conditions(process.execArgv), '--max-old-space-size=64', fileURLToPath(main), JSON.stringify(settings)],
    {
      detached: true,
      cwd: site.folder,
      stdio: ['ignore', log, log, 'ipc'],
    },
  );
  closeSync(log);
  const outcome = await new Promise<Launched>((resolve) => {
    child.once('message', (message) => resolve(message as Launched));
    child.once('error', (error) => resolve({ kind: 'unfit', message: (descriptorFailure(error) ?? error).message }));
    child.once('exit', (code, signal) =>
      resolve({
        kind: 'unfit',
        message: `its supervisor ended (${signal ?? `code ${code}`}); ${site.log} may say why`,
      }),
    );
  });
  child.removeAllListeners();
  if (child.connected) child.disconnect();
  child.unref();
  if (outcome.kind === 'unfit')
    throw new ShoalError('SETUP_FAILED', `the private queue server cannot be started: ${outcome.message}`, {
      log: site.log,
    });
}

function openLog(site: Site): number {
  try {
    return openSync(site.log, 'a', 0o600);
  } catch (error) {
    throw diskFailure(error, site.log) ?? descriptorFailure(error) ?? error;
  }
}

/**
 * Of our own flags only those that decide how packages resolve; an inspector port or a test runner's flags are ours
 * alone.
 */
function conditions(flags: readonly string[]): string[] {
  return flags.filter(
    (flag, i) => /^(--conditions|-C)(=|$)/.test(flag) || /^(--conditions|-C)$/.test(flags[i - 1] ?? ''),
  );
}

function diesAtOnce(site: Site): ShoalError {
  return new ShoalError(
    'SETUP_FAILED',
    `the private queue server's supervisor died ${MAX_JOINS} times while it started: ${site.log} may say why`,
    { log: site.log },
  );
}

function onAnotherHost(run: RunFile): ShoalError {
  return new ShoalError(
    'SETUP_FAILED',
    'the private queue server of this folder runs on host ' +
      `${run.host}${run.host === hostname() ? ' in another container' : ''}: set SHOAL_CACHE_DIR to a folder ` +
      'that is used only here, or REDIS_URL to a server for both',
    { host: run.host },
  );
}

function otherVersion(run: RunFile): ShoalError {
  return new ShoalError(
    'SETUP_FAILED',
    `a private queue server of another version of Shoal is running (process ${run.supervisor.pid}): let the ` +
      'commands that use it finish, then try again',
    { pid: run.supervisor.pid, version: run.version },
  );
}

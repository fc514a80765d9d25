// For tests: the command line as its users meet it, a process of its own in folders of its own.

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { programOf } from '@shoal/core/testing';
import { cacheFolder } from '@shoal/core';

/** The arguments that come before a command's own, for tests that start the process in their own way. */
export const SHOAL = commandOf({});
/** The same from the sources, whatever else the tests start. */
export const SHOAL_SOURCES = commandOf({ from: 'sources' });

function commandOf(options: { readonly from?: 'sources' }): readonly [string, ...string[]] {
  const { main, execArgv } = programOf('cli', options);
  return [process.execPath, ...execArgv, main];
}

export interface Result {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Running {
  readonly child: ChildProcess;
  readonly ended: Promise<Result>;
  readonly stderr: () => string;
}

export interface RunOptions {
  readonly input?: string | Buffer;
  readonly environment?: Readonly<Record<string, string>>;
  readonly folder?: string;
  /** Left out: what programOf says. */
  readonly from?: 'sources';
  /** A user without rights, for tests that run as root. */
  readonly uid?: number;
}

/** A cache folder and a folder for files, removed by `remove`. */
export class Sandbox {
  readonly root = mkdtempSync(join(tmpdir(), 'shoal-cli-'));
  readonly cacheDir = join(this.root, 'cache');
  readonly files = join(this.root, 'files');

  constructor() {
    for (const folder of [this.cacheDir, this.files]) mkdirSync(folder);
  }

  path(name: string): string {
    return join(this.files, name);
  }

  /** Models and graphs that the machine has already are used; what is missing there is made there, once. */
  shareModels(): void {
    const shared = cacheFolder(process.env['SHOAL_CACHE_DIR']);
    for (const part of ['models', 'graphs'])
      if (existsSync(join(shared, part))) symlinkSync(join(shared, part), join(this.cacheDir, part));
  }

  environment(): Record<string, string> {
    const program = process.env['SHOAL_TEST_SERVER'];
    const path = `${program === undefined ? '' : `${dirname(program)}${delimiter}`}${process.env['PATH'] ?? ''}`;
    return {
      PATH: path,
      HOME: this.root,
      TMPDIR: tmpdir(),
      SHOAL_CACHE_DIR: this.cacheDir,
      SHOAL_MODEL: 'tiny-random',
      SHOAL_THREADS: '1',
      ...compileCache(),
    };
  }

  start(args: readonly string[], options: RunOptions = {}): Running {
    const [node, ...before] = options.from === 'sources' ? SHOAL_SOURCES : SHOAL;
    const child = spawn(node, [...before, ...args], {
      cwd: options.folder ?? this.files,
      env: { ...this.environment(), ...options.environment },
      stdio: ['pipe', 'pipe', 'pipe'],
      ...(options.uid === undefined ? {} : { uid: options.uid, gid: options.uid }),
    });
    child.stdin.on('error', () => undefined); // a command that failed has closed it
    child.stdin.end(options.input ?? '');
    return watch(child);
  }

  async run(args: readonly string[], options: RunOptions = {}): Promise<Result> {
    return this.start(args, options).ended;
  }

  /** Processes that were started with this cache folder, whoever started them. */
  processes(): readonly { readonly pid: number; readonly command: string }[] {
    return readdirSync('/proc').flatMap((entry) => {
      if (!/^\d+$/.test(entry) || Number(entry) === process.pid) return [];
      try {
        const command = readFileSync(`/proc/${entry}/cmdline`, 'utf8').replaceAll('\0', ' ').trim();
        const isOurs =
          command.includes(this.cacheDir) ||
          readFileSync(`/proc/${entry}/environ`, 'utf8').includes(`SHOAL_CACHE_DIR=${this.cacheDir}\0`);
        return isOurs && command !== '' ? [{ pid: Number(entry), command }] : [];
      } catch {
        return []; // gone meanwhile, or not ours to read
      }
    });
  }

  /** SIGKILL to all of them, again for those that one of them started meanwhile, until none is left. */
  async killAll(): Promise<void> {
    for (let left = this.kill(); left > 0; left = this.kill()) await sleep(50);
  }

  remove(): void {
    this.kill();
    rmSync(this.root, { recursive: true, force: true });
  }

  /** How many there were. */
  private kill(): number {
    const found = this.processes();
    for (const { pid } of found) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // it ended by itself
      }
    }
    return found.length;
  }
}

/** Where the suite keeps compiled code between its processes; a sandbox has it too. */
function compileCache(): Record<string, string> {
  const folder = process.env['NODE_COMPILE_CACHE'];
  return folder === undefined ? {} : { NODE_COMPILE_CACHE: folder };
}

/** Collects what a process writes and how it ends. */
export function watch(child: ChildProcess): Running {
  let stdout = '';
  let stderr = '';
  child.stdout?.setEncoding('utf8').on('data', (text: string) => (stdout += text));
  child.stderr?.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  const ended = once(child, 'close').then(([code, signal]: unknown[]): Result => ({
    code: typeof code === 'number' ? code : null,
    signal: typeof signal === 'string' ? signalNamed(signal) : null,
    stdout,
    stderr,
  }));
  return { child, ended, stderr: () => stderr };
}

function signalNamed(name: string): NodeJS.Signals {
  return name === 'SIGKILL' ? 'SIGKILL' : name === 'SIGINT' ? 'SIGINT' : 'SIGTERM';
}

export interface Interruption {
  /** Starts the command on so many rows, whatever an earlier one left. */
  readonly start: (rows: number) => Running;
  readonly rows: number;
  /** Whether it has got as far as it is to get. */
  readonly isThere: () => boolean;
  /** Sent one behind the other. */
  readonly signals: readonly NodeJS.Signals[];
  /** What is there once it has done all of it. */
  readonly output: string;
}

/**
 * Ends a command by signals in the middle of its work: one that was done by then, because the machine is quick, is
 * started on four times as many rows. How it ended, and on how many rows.
 */
export async function interrupt({ start, rows, isThere, signals, output }: Interruption): Promise<Interrupted> {
  for (let some = rows; some <= 256 * rows; some *= 4) {
    const { child, ended } = start(some);
    while (child.exitCode === null && child.signalCode === null && !isThere()) await sleep(10);
    for (const signal of signals) child.kill(signal);
    const result = await ended;
    if (!existsSync(output)) return { ...result, rows: some };
  }
  throw new Error(`${256 * rows} rows are done before ${signals.join()} comes`);
}

export interface Interrupted extends Result {
  readonly rows: number;
}

/** Resolves when the process has written `text` to stderr; rejects when it ends without. */
export async function says(running: Running, text: string): Promise<void> {
  const ended = new AbortController();
  void running.ended.then(() => ended.abort());
  while (!running.stderr().includes(text)) {
    if (ended.signal.aborted || running.child.stderr === null)
      throw new Error(`it ended without saying "${text}":\n${running.stderr()}`);
    await once(running.child.stderr, 'data', { signal: ended.signal }).catch(() => undefined);
  }
}

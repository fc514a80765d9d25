// The queue server's process over time: started, found ready, started again after a crash, stopped. Data survive a
// crash in the append-only file. Refuses to try for ever: a server that never gets ready five times in a row is
// reported with the last lines that it printed, because those name the cause (a damaged file, a full disk, a missing
// library).

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, fstatSync, openSync, readFileSync } from 'node:fs';
import { availableParallelism, totalmem } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import { toFailure } from '@shoal/contract';
import { descriptorFailure } from '@shoal/core/base';
import { KeptProcess } from '@shoal/ops/kept-process';
import { ask, probe } from './socket-probe.ts';

export interface QueueServerOptions {
  readonly program: string;
  readonly socket: string;
  readonly data: string;
  /** The server's own lines go to the end of this file. */
  readonly log: string;
  readonly onStarted: (pid: number) => void;
  readonly onReady: () => void;
  readonly onCrash: (found: string) => void;
}

const MAX_FAILED_STARTS = 5;
const PAUSE = { firstMs: 100, mostMs: 5_000 };
/** A server that ran this long before it died begins again with the shortest pause. */
const STEADY_MS = 10_000;
/** Until it listens. Loading a long append-only file comes after that and may take as long as it takes. */
const LISTEN_TIMEOUT_MS = 30_000;
const SHUTDOWN_TIMEOUT_MS = 20_000;
/**
 * An append-only file is rewritten from so much on, in gigabytes: of the machine's memory, because the disk mostly is
 * like it. Large machines, as those with several GPUs are, give the smaller share and more of it.
 */
const LEAST_REWRITE = 1;
const REWRITE_SHARES = [
  { share: 1 / 6, most: 8 },
  { share: 1 / 16, most: 32 },
] as const;

/** One server process, from its start to its exit. */
interface Life {
  readonly wasReady: boolean;
  readonly found: string;
}

export class QueueServer {
  readonly #options: QueueServerOptions;
  readonly #kept: KeptProcess<Life>;
  #child: ChildProcess | undefined;
  #failedStarts = 0;

  constructor(options: QueueServerOptions) {
    this.#options = options;
    this.#kept = new KeptProcess({
      live: () => this.#liveOnce(),
      onDeath: (life) => this.#died(life),
      pause: PAUSE,
      steadyMs: STEADY_MS,
    });
  }

  /** Keeps the server running until `stop`. Rejects with a plain sentence when it cannot be started. */
  run(): Promise<void> {
    return this.#kept.run();
  }

  #died({ wasReady, found }: Life): 'again' {
    this.#failedStarts = wasReady ? 0 : this.#failedStarts + 1;
    if (this.#failedStarts >= MAX_FAILED_STARTS)
      throw new Error(`${this.#options.program} could not be started ${this.#failedStarts} times in a row: ${found}`);
    this.#options.onCrash(found);
    return 'again';
  }

  /** From start to exit of one server process. */
  async #liveOnce(): Promise<Life> {
    const { program, socket, log } = this.#options;
    let logFile: number;
    try {
      logFile = openSync(log, 'a', 0o600);
    } catch (error) {
      return { wasReady: false, found: toFailure(descriptorFailure(error) ?? error).message };
    }
    const logStart = fstatSync(logFile).size;
    const child = spawn(program, serverArguments(this.#options), {
      stdio: ['ignore', logFile, logFile],
      env: serverEnvironment(),
    });
    closeSync(logFile);
    const exited = new Promise<string>((resolve) => {
      child.once('error', (error) => resolve((descriptorFailure(error) ?? error).message));
      child.once('exit', (code, signal) =>
        resolve(signal === null ? `it exited with code ${code}` : `it was ended by ${signal}`),
      );
    });
    this.#child = child;
    if (child.pid !== undefined) this.#options.onStarted(child.pid);
    const wasReady = await becomesReady(socket, exited);
    if (wasReady) this.#options.onReady();
    else child.kill('SIGKILL');
    const ending = await exited;
    this.#child = undefined;
    return { wasReady, found: wasReady ? ending : `${ending}. ${explain(log, logStart, this.#options.data)}` };
  }

  /** Asks the server to write everything and exit, insists after 20 s. Safe to call early or twice. */
  async stop(): Promise<void> {
    const stopped = this.#kept.stop();
    const child = this.#child;
    if (child !== undefined && !hasExited(child)) {
      const insist = setTimeout(() => child.kill('SIGKILL'), SHUTDOWN_TIMEOUT_MS);
      // acts at once; SIGTERM waits for the server's next tick
      await ask(this.#options.socket, 'SHUTDOWN NOSAVE', 1_000);
      if (!hasExited(child)) child.kill('SIGTERM');
      if (!hasExited(child)) await once(child, 'exit');
      clearTimeout(insist);
    }
    await stopped;
  }

  /** Ends the server without letting it write: for when its folder is gone. */
  async kill(): Promise<void> {
    const stopped = this.#kept.stop();
    this.#child?.kill('SIGKILL');
    await stopped;
  }
}

/** DESIGN: nothing evicted, every write in an append-only file synced once a second, rewritten late, no snapshots. */
function serverArguments({ socket, data }: QueueServerOptions): string[] {
  return [
    '--port',
    '0',
    '--unixsocket',
    socket,
    '--unixsocketperm',
    '700',
    '--daemonize',
    'no',
    '--maxmemory-policy',
    'noeviction',
    '--appendonly',
    'yes',
    '--appendfsync',
    'everysec',
    '--save',
    '',
    '--dir',
    data,
    ...tuning(),
  ];
}

/**
 * Threads that read and write sockets: where a GPU fills the queue, one thread is full with copying results; where
 * cores are few, the others need them more.
 *
 * A late rewrite of the append-only file, which results fill fast and hardly outlive: each one forks the server, whose
 * memory is then copied page by page, and has it wait for the disk when it lists the new file: 94 ms, in which it did
 * nothing, while 78 MB of results came each second. From 64 MB on, the default, that was a sixth of the server's CPU at
 * 200 results of 393 KB a second on two cores; 800 of 98 KB have a p99 of 59 to 92 ms from 1 GB on and of 46 to 56 from
 * 4 GB on (two cores, 2026-11); one H200 did 162 k texts/s from 1 GB on and was at work for 0.85 of the time, 174 k and
 * 0.97 from 8 GB on. Four of them fill 8 GB in 13 s, and did 642 k texts/s with f16 results then, 725 k where nothing
 * was rewritten meanwhile (512 GB of memory, 2026-11-26). A server that starts again reads a gigabyte in some 1.1 s.
 *
 * Eager expiry: every result leaves a header behind that expires, of which the default effort keeps 18 % beyond their
 * time, this one 3 % (800 a second; Valkey 9.1, 2026-11).
 *
 * No histograms of latencies: each command, those of scripts too, would be entered into one. Two H200 that fill the
 * server's one thread for commands did 357 and 358 k texts/s without them, 335 and 322 k with them, and one alone 182 k
 * both ways.
 */
export function tuning({ cores = availableParallelism(), memoryBytes = totalmem() } = {}): string[] {
  const gigabytes = REWRITE_SHARES.map(({ share, most }) => Math.min(most, Math.floor((memoryBytes * share) / 1e9)));
  return [
    '--io-threads',
    String(Math.max(1, Math.min(4, Math.floor(cores / 4)))),
    '--auto-aof-rewrite-min-size',
    `${Math.max(LEAST_REWRITE, ...gigabytes)}gb`,
    '--active-expire-effort',
    '10',
    '--latency-tracking',
    'no',
  ];
}

/**
 * Programs with glibc's allocator, as the wheel of Valkey is, keep small pieces for reuse, and what lives for minutes
 * comes to lie among them: 12.9 % more memory after ten minutes of a steady load, 3.8 % without (two cores, 160 jobs of
 * 64 rows a second), for no CPU that could be told apart. Programs with jemalloc read nothing of this, and what
 * somebody set wins.
 */
export function serverEnvironment(environment: Readonly<NodeJS.ProcessEnv> = process.env): NodeJS.ProcessEnv {
  const own = 'glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0';
  const set = environment['GLIBC_TUNABLES'];
  return { ...environment, GLIBC_TUNABLES: set === undefined || set === '' ? own : `${own}:${set}` };
}

async function becomesReady(socket: string, exited: Promise<string>): Promise<boolean> {
  const ended = new AbortController();
  void exited.then(() => ended.abort());
  const giveUpAt = performance.now() + LISTEN_TIMEOUT_MS;
  while (!ended.signal.aborted) {
    const found = await probe(socket);
    if (found === 'ready') return !ended.signal.aborted;
    if (found !== 'loading' && performance.now() > giveUpAt) return false;
    await Promise.race([exited, delay(found === 'loading' ? 100 : 5)]);
  }
  return false;
}

function hasExited(child: ChildProcess): boolean {
  return child.exitCode !== null || child.signalCode !== null || child.pid === undefined;
}

/** Redis takes a base file that does not begin with its name for a list of commands. */
const OTHER_FORMAT = anyOf(
  'Wrong signature trying to load DB',
  "Can't handle RDB format version",
  'Bad file format reading the append only file \\S+\\.base\\.rdb',
);
const DAMAGED = anyOf(
  'Bad file format reading the append only file',
  'Unexpected end of file',
  'Unknown command .* reading the append only',
  'AOF .* (missing|corrupt)',
  'manifest',
);

function anyOf(...patterns: readonly string[]): RegExp {
  return new RegExp(patterns.join('|'), 'i');
}

/** Nothing where the log cannot be read now: the server is started again all the same. */
function printedSince(log: string, from: number): string {
  try {
    return readFileSync(log).subarray(from).toString('utf8');
  } catch {
    return '';
  }
}

/** What the server printed last, with the cure where the cause is known. */
function explain(log: string, from: number, data: string): string {
  const printed = printedSince(log, from);
  const last = printed
    .trim()
    .split('\n')
    .slice(-3)
    .map((line) => line.replace(/^\d+:[A-Z] .{20,28} [*#.-] /, '').trim())
    .join(' | ')
    .slice(-400);
  const said = last === '' ? 'It printed nothing.' : `It said: ${last}`;
  if (OTHER_FORMAT.test(printed)) {
    return (
      `${said}. Its data in ${data} are of another or a newer server program, or damaged: put the one that wrote ` +
      'them (Valkey, Redis) on PATH, or move that folder away and begin with an empty queue'
    );
  }
  if (DAMAGED.test(printed)) {
    return (
      `${said}. Its data in ${data} are damaged: repair them (valkey-check-aof --fix on the file it names), or ` +
      'move that folder away and begin with an empty queue'
    );
  }
  return said;
}

// One process for many files. It is ended when a file takes it longer than the clock allows or more memory than the
// limit, and the next file gets another one. Says how each file ended, and never whether that is right.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { ReadAnswer, ReadOrder } from './reader-process.ts';

export interface Limits {
  /** Of CPU, where the system tells it: on a busy machine everything takes long. Of waiting, PATIENCE times that. */
  readonly clockMs: number;
  /** Beyond what the process held before the file. */
  readonly memoryBytes: number;
}

export type Ending =
  | ReadAnswer
  | { readonly kind: 'crashed'; readonly error: string }
  | { readonly kind: 'hung' }
  | { readonly kind: 'memory'; readonly bytes: number };

const LOOK_MS = 50;
const PATIENCE = 24;
/** What /proc counts in. */
const TICK_MS = 10;
const MAIN = fileURLToPath(new URL('reader-process.ts', import.meta.url));

export class KeptProcess {
  readonly #limits: Limits;
  #child: ChildProcess | undefined;
  #said = '';
  #peakBytes = 0;
  /** How many processes were started. */
  started = 0;

  constructor(limits: Limits) {
    this.#limits = limits;
  }

  async read(order: ReadOrder): Promise<Ending> {
    const child = (this.#child ??= await this.#start());
    const before = residentBytes(child.pid!) ?? this.#peakBytes;
    const ending = await this.#ending(child, order, before);
    if (ending.kind === 'crashed' || ending.kind === 'hung' || ending.kind === 'memory') await this.stop();
    else {
      const grownBytes = ending.peakBytes > this.#peakBytes ? ending.peakBytes - before : 0;
      this.#peakBytes = ending.peakBytes;
      if (grownBytes > this.#limits.memoryBytes) {
        await this.stop();
        return { kind: 'memory', bytes: grownBytes };
      }
    }
    return ending;
  }

  async stop(): Promise<void> {
    const child = this.#child;
    this.#child = undefined;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, 'exit');
    if (child.connected) child.disconnect();
    const clock = setTimeout(() => child.kill('SIGKILL'), 500);
    await gone;
    clearTimeout(clock);
  }

  async #start(): Promise<ChildProcess> {
    this.started++;
    const child = fork(MAIN, {
      execArgv: ['--conditions=@shoal/source', '--max-old-space-size=1024', '--disable-warning=ExperimentalWarning'],
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    });
    this.#said = '';
    child.stderr!.on('data', (text: Buffer) => (this.#said = (this.#said + text.toString()).slice(-2_000)));
    const [ready] = (await Promise.race([once(child, 'message'), once(child, 'exit')])) as [unknown];
    if (ready !== 'ready') throw new Error(`the process of readers did not start: ${this.#said}`);
    this.#peakBytes = residentBytes(child.pid!) ?? 0;
    return child;
  }

  #ending(child: ChildProcess, order: ReadOrder, before: number): Promise<Ending> {
    return new Promise((resolve) => {
      const { clockMs, memoryBytes } = this.#limits;
      const end = (ending: Ending): void => {
        clearInterval(look);
        child.off('message', hear).off('exit', gone);
        resolve(ending);
      };
      const [begun, cpuBegun] = [Date.now(), cpuMs(child.pid!)];
      const look = setInterval(() => {
        const waitedMs = Date.now() - begun;
        const workedMs = cpuBegun === undefined ? waitedMs : (cpuMs(child.pid!) ?? cpuBegun) - cpuBegun;
        if (workedMs > clockMs || waitedMs > PATIENCE * clockMs) end({ kind: 'hung' });
        const bytes = (residentBytes(child.pid!) ?? before) - before;
        if (bytes > memoryBytes) end({ kind: 'memory', bytes });
      }, LOOK_MS);
      const hear = (answer: ReadAnswer): void => end(answer);
      const gone = (status: number | null, signal: string | null): void =>
        end({ kind: 'crashed', error: `${signal ?? `exit ${status}`} ${this.#said}` });
      child.on('message', hear).on('exit', gone);
      child.send(order);
    });
  }
}

/** User and system time so far; undefined where nobody says it. */
function cpuMs(pid: number): number | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return TICK_MS * (Number(fields[11]) + Number(fields[12]));
  } catch {
    return undefined;
  }
}

/** Undefined where nobody says it. */
function residentBytes(pid: number): number | undefined {
  try {
    return Number(readFileSync(`/proc/${pid}/statm`, 'utf8').split(' ')[1]) * 4096;
  } catch {
    return undefined;
  }
}

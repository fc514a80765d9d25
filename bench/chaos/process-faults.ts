// What can happen to one running process of Linux, and heals by itself: stopped for a while, no descriptor or no memory
// left, another time of day. That it ends meanwhile is right, and whoever keeps it starts it again.

import { execFileSync } from 'node:child_process';
import { readFileSync, readdirSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

type LimitName = 'nofile' | 'as';

const TITLES: Readonly<Record<LimitName, string>> = { nofile: 'Max open files', as: 'Max address space' };

/** SIGSTOP, and SIGCONT after so long. */
export async function stopFor(pid: number, ms: number): Promise<void> {
  process.kill(pid, 'SIGSTOP');
  await sleep(ms);
  try {
    process.kill(pid, 'SIGCONT');
  } catch {
    // it was killed for its silence
  }
}

/** It may open nothing more than it has open. */
export async function withoutDescriptors(pid: number, ms: number): Promise<void> {
  await limit(pid, 'nofile', readdirSync(`/proc/${pid}/fd`).length, ms);
}

/** It gets no memory beyond `spareBytes`. */
export async function withoutMemory(pid: number, spareBytes: number, ms: number): Promise<void> {
  await limit(pid, 'as', addressSpace(pid) + spareBytes, ms);
}

/** A soft limit of a running process, and back. */
async function limit(pid: number, name: LimitName, amount: number, ms: number): Promise<void> {
  const before = softLimit(pid, name);
  execFileSync('prlimit', ['--pid', String(pid), `--${name}=${amount}:`]);
  await sleep(ms);
  try {
    execFileSync('prlimit', ['--pid', String(pid), `--${name}=${before}:`], { stdio: 'ignore' });
  } catch {
    // it ended of it
  }
}

function softLimit(pid: number, name: LimitName): string {
  return new RegExp(`${TITLES[name]}\\s+(\\S+)`).exec(readFileSync(`/proc/${pid}/limits`, 'utf8'))![1]!;
}

function addressSpace(pid: number): number {
  return 1_024 * Number(/VmSize:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]);
}

/** The time of day of the processes that have its environment; their monotonic clocks go on. */
export class SteppedClock {
  /** To be given to a process at its start. */
  readonly environment: Readonly<Record<string, string>>;
  private readonly folder: string;
  private readonly name: string;

  /** `library`: libfaketime.so.1. Of each name one in a folder. */
  constructor(folder: string, name: string, library: string) {
    this.folder = folder;
    this.name = name;
    this.environment = {
      LD_PRELOAD: library,
      FAKETIME_TIMESTAMP_FILE: this.path,
      FAKETIME_NO_CACHE: '1',
      FAKETIME_DONT_FAKE_MONOTONIC: '1',
    };
    this.step(0);
  }

  /** So many hours off from now on. */
  step(hours: number): void {
    const next = join(this.folder, `next-${this.name}`);
    writeFileSync(next, hours === 0 ? '+0' : `${hours > 0 ? '+' : '-'}${Math.abs(hours)}h`);
    renameSync(next, this.path);
  }

  private get path(): string {
    return join(this.folder, `clock-${this.name}`);
  }
}

// What can happen to one running process of Linux, and heals by itself: stopped for a while, no descriptor or no memory
// left, another time of day. That it ends meanwhile is right, and whoever keeps it starts it again.

import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { childrenOf } from '../rig/processes.ts';

type LimitName = 'nofile' | 'as';

const TITLES: Readonly<Record<LimitName, string>> = { nofile: 'Max open files', as: 'Max address space' };

/** SIGSTOP, and SIGCONT after so long; nothing where it is gone, or was killed for its silence. */
export async function stopFor(pid: number, ms: number): Promise<void> {
  if (!signalled(pid, 'SIGSTOP')) return;
  await sleep(ms);
  signalled(pid, 'SIGCONT');
}

/** Whether it was there. */
export function signalled(pid: number, signal: NodeJS.Signals): boolean {
  try {
    process.kill(pid, signal);
    return true;
  } catch {
    return false;
  }
}

/** It may open nothing more than it has open; nothing happens where it is gone. */
export async function withoutDescriptors(pid: number, ms: number): Promise<void> {
  await limit(pid, 'nofile', () => readdirSync(`/proc/${pid}/fd`).length, ms);
}

/** It gets no memory beyond `spareBytes`; nothing happens where it is gone. */
export async function withoutMemory(pid: number, spareBytes: number, ms: number): Promise<void> {
  await limit(pid, 'as', () => addressSpace(pid) + spareBytes, ms);
}

/** A soft limit of a running process, and back: also for what it has started meanwhile, which got its limit from it. */
async function limit(pid: number, name: LimitName, amountOf: () => number, ms: number): Promise<void> {
  const before = limited(pid, name, amountOf);
  if (before === undefined) return;
  await sleep(ms);
  for (const one of [pid, ...childrenOf(pid)]) limited(one, name, () => before);
}

/** The limit before; undefined: it is gone. */
function limited(pid: number, name: LimitName, amountOf: () => number | string): string | undefined {
  try {
    const before = softLimit(pid, name);
    execFileSync('prlimit', ['--pid', String(pid), `--${name}=${amountOf()}:`], { stdio: 'ignore' });
    return before;
  } catch (error) {
    if (!existsSync(`/proc/${pid}/exe`)) return undefined; // gone, or nothing but its exit code is left
    throw error;
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

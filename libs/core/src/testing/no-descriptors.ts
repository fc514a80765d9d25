// For tests: this process, unable to open one more file, connection or pipe. Linux with prlimit only; elsewhere it
// cannot be, with the reason.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readdirSync } from 'node:fs';

const HERE = String(process.pid);

/** What came of `use` while no descriptor was left, or why that cannot be shown here. */
export async function withoutDescriptors<T>(use: () => Promise<T>): Promise<{ readonly came: T } | string> {
  const before = limitOf();
  if (typeof before === 'string') return before;
  // What raises the limit again is started while it can be: how many descriptors a start takes is the system's affair.
  const raises = spawn('sh', ['-c', `read -r _; exec prlimit --pid ${HERE} --nofile=${before}:`], {
    stdio: ['pipe', 'ignore', 'inherit'],
  });
  const raised = once(raises, 'exit');
  const held: number[] = [];
  try {
    lowerTo(readdirSync('/proc/self/fd').length);
    fill(held); // the limit is of the highest number, and there are gaps below it
    return { came: await use() };
  } finally {
    for (const file of held) closeSync(file);
    raises.stdin.end('\n');
    await raised; // where it failed it has said why on stderr
  }
}

function fill(held: number[]): void {
  for (;;) {
    try {
      held.push(openSync('/dev/null', 'r'));
    } catch {
      return;
    }
  }
}

function prlimit(...args: readonly string[]): string {
  const { status, stdout, stderr, error } = spawnSync('prlimit', ['--pid', HERE, ...args], { encoding: 'utf8' });
  if (status !== 0) throw new Error(`prlimit: ${error?.message ?? stderr}`);
  return stdout;
}

function limitOf(): number | string {
  try {
    return Number(prlimit('--nofile', '--output', 'SOFT', '--noheadings').trim());
  } catch (error) {
    return `prlimit does not tell the limit of open files (${(error as Error).message})`;
  }
}

function lowerTo(files: number): void {
  prlimit(`--nofile=${files}:`);
}

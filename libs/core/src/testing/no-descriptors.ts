// For tests: this process, unable to open one more file, connection or pipe. Linux with prlimit only; elsewhere it
// cannot be, with the reason.

import { spawnSync } from 'node:child_process';
import { closeSync, openSync, readdirSync } from 'node:fs';

/** As many as it takes to start a program again. */
const SPARE = 12;

/** What came of `use` while no descriptor was left, or why that cannot be shown here. */
export async function withoutDescriptors<T>(use: () => Promise<T>): Promise<{ readonly came: T } | string> {
  const before = limitOf(process.pid);
  if (typeof before === 'string') return before;
  const held = Array.from({ length: SPARE }, () => openSync('/dev/null', 'r'));
  limitTo(readdirSync('/proc/self/fd').length);
  try {
    fill(held); // the limit is of the highest number, and there are gaps below it
    return { came: await use() };
  } finally {
    for (const file of held) closeSync(file);
    limitTo(before);
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

function limitOf(pid: number): number | string {
  const { stdout, error } = spawnSync(
    'prlimit',
    ['--pid', String(pid), '--nofile', '--output', 'SOFT', '--noheadings'],
    {
      encoding: 'utf8',
    },
  );
  const limit = Number(stdout?.trim());
  return limit > 0 ? limit : `prlimit does not tell the limit of open files (${error?.message ?? stdout})`;
}

function limitTo(files: number): void {
  const { status, stderr, error } = spawnSync('prlimit', ['--pid', String(process.pid), `--nofile=${files}:`], {
    encoding: 'utf8',
  });
  if (status !== 0) throw new Error(`prlimit: ${error?.message ?? stderr}`);
}

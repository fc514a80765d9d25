// What /proc tells of a process that a bench started. Linux only.

import { readFileSync, readdirSync } from 'node:fs';

/** ms of CPU so far, user and system, without its children, of all threads or of one; 0 when it is gone. */
export function processCpuMs(pid: number, thread?: number): number {
  const fields = told(pid, thread === undefined ? 'stat' : `task/${thread}/stat`)
    .split(') ')[1]
    ?.split(' ');
  return fields === undefined ? 0 : (Number(fields[11]) + Number(fields[12])) * 10;
}

/** MiB of memory that it occupies; 0 when it is gone. */
export function residentMegabytes(pid: number): number {
  return Number(/VmRSS:\s+(\d+)/.exec(told(pid, 'status'))?.[1] ?? 0) / 1_024;
}

/** Process ids; none when it is gone. */
export function childrenOf(pid: number): number[] {
  return told(pid, `task/${pid}/children`).trim().split(' ').filter(Boolean).map(Number);
}

/** Name, state and place in the kernel of each of its threads; none when it is gone. */
export function threadsOf(pid: number): string[] {
  return told(pid, 'status') === ''
    ? []
    : readdirSync(`/proc/${pid}/task`).map((thread) => {
        const [, name = '?', state = '?'] = /\((.*)\) (\S)/.exec(told(pid, `task/${thread}/stat`)) ?? [];
        return `${name} ${state} ${told(pid, `task/${thread}/wchan`)}`;
      });
}

function told(pid: number, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'utf8');
  } catch {
    return '';
  }
}

// Which processors of this machine are threads of one core, so that a bench can give a thread a core for itself. Linux
// only: it reads /sys and /proc, and holds processes with taskset. A virtual machine may say that every processor is a
// core; siblings.ts then looks whether that is so.

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

/** Processors of one core, in rising order. */
export type Core = readonly number[];

/** A list as Linux writes it: "0-3,8,10-11". */
export function cpusIn(list: string): number[] {
  return list
    .trim()
    .split(',')
    .filter(Boolean)
    .flatMap((part) => {
      const [from = 0, to = from] = part.split('-').map(Number);
      return Array.from({ length: to - from + 1 }, (_, at) => from + at);
    });
}

/** Those that this process may run on, as the kernel tells which belong together. */
export function coresTold(): Core[] {
  const allowed = cpusIn(/^Cpus_allowed_list:\s*(.*)$/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1] ?? '');
  const cores = new Map<string, number[]>();
  for (const cpu of allowed) {
    const core = told(`/sys/devices/system/cpu/cpu${cpu}/topology/thread_siblings_list`) ?? String(cpu);
    cores.set(core, [...(cores.get(core) ?? []), cpu]);
  }
  return [...cores.values()];
}

/** Holds processes, with all threads that they have, or one thread alone, to these processors. */
export function pin(pids: readonly number[], cpus: readonly number[], which: 'all' | 'one' = 'all'): void {
  const how = which === 'all' ? ['--all-tasks'] : [];
  for (const pid of pids) execFileSync('taskset', [...how, '--cpu-list', '--pid', cpus.join(','), String(pid)]);
}

/** How much of the time, for all processors together, a hypervisor ran somebody else: ticks since the start. */
export function stolenTicks(): number {
  return Number(/^cpu +(?:\d+ ){7}(\d+)/m.exec(readFileSync('/proc/stat', 'utf8'))?.[1] ?? 0);
}

function told(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8').trim();
  } catch {
    return undefined;
  }
}

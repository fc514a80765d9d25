// What this machine says of itself, for host-checks.ts. Whatever it does not tell is left out; nothing is changed.

import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { availableParallelism, totalmem } from 'node:os';
import { promisify } from 'node:util';
import { MASTER_KEY_VARIABLE, type Settings } from '@shoal/core';
import type { HostFacts } from './host-checks.ts';

export interface HostQuestions {
  readonly settings: Settings;
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly hasServer: boolean;
  /** As core's strayVariables says it. */
  readonly strays: HostFacts['strays'];
  /** Reads a file of the system; left out: the real ones. Rejects where there is none. */
  readonly read?: (path: string) => Promise<string>;
  /** Asks systemd; left out: the real one. */
  readonly units?: () => Promise<string>;
}

const UNITS_MS = 2_000;

export async function readHost(questions: HostQuestions): Promise<HostFacts> {
  const { settings, environment, hasServer, strays } = questions;
  const { read = (path: string) => readFile(path, 'utf8'), units = askSystemd } = questions;
  const optional = (path: string): Promise<string | undefined> => read(path).catch(() => undefined);
  const [limits, meminfo, overcommit, hugePages, stops] = await Promise.all([
    optional('/proc/self/limits'),
    optional('/proc/meminfo'),
    optional('/proc/sys/vm/overcommit_memory'),
    optional('/sys/kernel/mm/transparent_hugepage/enabled'),
    units().catch(() => ''),
  ]);
  const constrained = process.constrainedMemory();
  return {
    node: process.version,
    platform: process.platform,
    cores: availableParallelism(),
    threads: settings.threads,
    openFiles: openFilesIn(limits),
    availableBytes: process.availableMemory(),
    totalBytes: totalmem(),
    containerBytes: constrained > 0 ? constrained : undefined,
    swapUsedBytes: swapUsedIn(meminfo),
    overcommit: overcommit === undefined ? undefined : Number(overcommit),
    hugePages: /\[(\w+)\]/.exec(hugePages ?? '')?.[1],
    hasServer,
    strays,
    drainTimeoutMs: settings.drainTimeoutMs,
    metricsPort: settings.metricsPort,
    metricsHost: settings.metricsHost,
    hasMasterKey: environment[MASTER_KEY_VARIABLE] !== undefined,
    hasPasswordInEnvironment: /\/\/[^/?#]*:[^/?#]+@/.test(environment['REDIS_URL'] ?? ''),
    stopLimits: stopLimitsIn(stops),
    umask: process.umask(),
  };
}

export function openFilesIn(limits: string | undefined): number | undefined {
  const soft = /^Max open files\s+(\S+)/m.exec(limits ?? '')?.[1];
  if (soft === undefined) return undefined;
  return soft === 'unlimited' ? Number.MAX_SAFE_INTEGER : Number(soft);
}

export function swapUsedIn(meminfo: string | undefined): number | undefined {
  const kilobytes = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(meminfo ?? '')?.[1]);
  const used = 1_024 * (kilobytes('SwapTotal') - kilobytes('SwapFree'));
  return Number.isFinite(used) ? used : undefined;
}

const UNITS = { us: 1e-3, ms: 1, s: 1_000, min: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** Of `systemctl show -p Id -p TimeoutStopUSec`: blocks of lines, times such as "1min 30s" or "infinity". */
export function stopLimitsIn(shown: string): { readonly name: string; readonly ms: number }[] {
  return shown.split(/\n\s*\n/).flatMap((block) => {
    const name = /^Id=(.+)$/m.exec(block)?.[1];
    const time = /^TimeoutStopUSec=(.+)$/m.exec(block)?.[1];
    if (name === undefined || time === undefined || time === 'infinity') return [];
    const parts = [...time.matchAll(/(\d+(?:\.\d+)?)\s*(us|ms|min|s|h|d)\b/g)];
    const ms = parts.reduce((sum, [, count, unit]) => sum + Number(count) * UNITS[unit as keyof typeof UNITS], 0);
    return parts.length === 0 ? [] : [{ name, ms }];
  });
}

async function askSystemd(): Promise<string> {
  const asked = ['show', 'shoal-*.service', '--property=Id', '--property=TimeoutStopUSec'];
  return (await promisify(execFile)('systemctl', asked, { timeout: UNITS_MS })).stdout;
}

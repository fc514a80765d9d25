// What every process tells of itself, whatever it does: the version it runs, how it gets on with the queue server, and
// what prom-client counts of a Node process. Those cost 1.1 ms of CPU a second and 1.4 ms a scrape (measured on an idle
// process, 2026-11): a histogram of event-loop delays that wakes it every 50 ms, an observer of garbage collections, and
// reads of /proc. At prom-client's own 10 ms it would be 5.3 ms a second.

import { readFileSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { EVERY_PROCESS } from './catalogue/every-process.ts';
import type { MetricRegistry } from './metrics.ts';
import { spanCounts } from './tracing/span-counts.ts';

/** How the queue server answers this process: ServerWatch of libs/queue. */
export interface ServerSeen {
  readonly isUp: boolean;
  /** `maxBytes` 0: no limit; undefined while nobody knows. */
  readonly memory: { readonly usedBytes: number; readonly maxBytes: number } | undefined;
  /** Since the process started. */
  readonly reconnects: number;
}

export interface ProcessFacts {
  readonly process: 'claimer' | 'producer' | 'dashboard' | 'exporter';
  readonly server: ServerSeen;
  /** Of Shoal. */
  readonly version: string;
}

type ProcessRegistry = MetricRegistry<typeof EVERY_PROCESS>;

/** Sets, at each scrape, all but the round trips: `roundTrip` is called with each. */
export function tellProcess(
  registry: ProcessRegistry,
  { process: name, server, version }: ProcessFacts,
): { roundTrip(ms: number): void } {
  registry.standard();
  registry.set('shoal_build_info', { version, commit: commitOf(import.meta.dirname) }, 1);
  registry.onScrape(() => {
    registry.set('shoal_process_resident_bytes', { process: name }, process.memoryUsage.rss());
    registry.set('shoal_queue_server_up', {}, server.isUp ? 1 : 0);
    registry.countTo('shoal_queue_server_reconnects_total', {}, server.reconnects);
    for (const outcome of ['exported', 'dropped'] as const)
      registry.countTo('shoal_trace_spans_total', { outcome }, spanCounts[outcome]);
    const { memory } = server;
    registry.forget('shoal_queue_server_memory_bytes');
    if (memory === undefined) return;
    registry.set('shoal_queue_server_memory_bytes', { kind: 'used' }, memory.usedBytes);
    if (memory.maxBytes > 0) registry.set('shoal_queue_server_memory_bytes', { kind: 'max' }, memory.maxBytes);
  });
  return { roundTrip: (ms) => registry.observe('shoal_queue_server_round_trip_seconds', {}, ms / 1_000) };
}

/** The commit of the checkout that `folder` is in, its first twelve digits; '' where there is none or it is not told. */
export function commitOf(folder: string): string {
  try {
    const git = gitFolder(resolve(folder));
    if (git === undefined) return '';
    const head = readFileSync(join(git, 'HEAD'), 'utf8').trim();
    const ref = /^ref: (\S+)$/.exec(head)?.[1];
    return (ref === undefined ? head : commitAt(git, ref)).slice(0, 12);
  } catch {
    return '';
  }
}

/** `.git` is a folder, or in a worktree a file that names one. */
function gitFolder(folder: string): string | undefined {
  const path = join(folder, '.git');
  const found = statSync(path, { throwIfNoEntry: false });
  if (found?.isDirectory() === true) return path;
  if (found?.isFile() === true)
    return resolve(
      folder,
      readFileSync(path, 'utf8')
        .replace(/^gitdir: /, '')
        .trim(),
    );
  const above = resolve(folder, '..');
  return above === folder ? undefined : gitFolder(above);
}

/** Branches of a worktree lie in the repository that it is of. */
function commitAt(git: string, ref: string): string {
  const common = statSync(join(git, 'commondir'), { throwIfNoEntry: false });
  const home = common === undefined ? git : resolve(git, readFileSync(join(git, 'commondir'), 'utf8').trim());
  const loose = statSync(join(home, ref), { throwIfNoEntry: false });
  if (loose !== undefined) return readFileSync(join(home, ref), 'utf8').trim();
  const packed = readFileSync(join(home, 'packed-refs'), 'utf8');
  return (
    packed
      .split('\n')
      .find((line) => line.endsWith(` ${ref}`))
      ?.split(' ')[0] ?? ''
  );
}

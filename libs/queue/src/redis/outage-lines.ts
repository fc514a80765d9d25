// One log line when a process loses a queue server and one when it has it back, however many connections it has there
// and however often each of them tries. A server that is slow at the first contact counts as lost until it answers.

import type { Logger } from '@shoal/core';
import type { Redis } from 'ioredis';

interface Outage {
  readonly sinceMs: number;
  /** Those that are lost still. */
  readonly lost: Set<Redis>;
  /** Those that were lost. */
  connections: number;
}

/** A connection that began so long ago, and of which nothing was heard, is told of. */
const SILENT_MS = 5_000;

/** By who writes the lines, and by server. */
const outages = new WeakMap<Logger, Map<string, Outage>>();

export interface OutageLinesOptions {
  /** Of the connection, as CLIENT LIST shows it. */
  readonly name: string;
  /** Without a password. */
  readonly server: string;
  readonly log: Logger;
  readonly describe: (error: Error) => string;
}

export function tellOutages(connection: Redis, { name, server, log, describe }: OutageLinesOptions): void {
  const open = outages.get(log) ?? new Map<string, Outage>();
  outages.set(log, open);
  const tellLost = (message: string, reason: string): void => {
    const known = open.get(server);
    if (known?.lost.has(connection) === true) return;
    const outage = known ?? { sinceMs: performance.now(), lost: new Set(), connections: 0 };
    outage.lost.add(connection);
    outage.connections++;
    if (known !== undefined) return;
    open.set(server, outage);
    log.warn({ connection: name, server, reason }, message);
  };
  connection.on('error', (error: Error) => tellLost('queue server lost, reconnecting', describe(error)));
  const silence = setTimeout(
    () => tellLost('queue server has not answered yet, waiting', `silent for ${SILENT_MS} ms`),
    SILENT_MS,
  ).unref();
  for (const heard of ['error', 'ready', 'end']) connection.once(heard, () => clearTimeout(silence));
  const found = (isBack: boolean): void => {
    const outage = open.get(server);
    if (outage?.lost.delete(connection) !== true || outage.lost.size > 0) return;
    open.delete(server);
    const { connections, sinceMs } = outage;
    const durationMs = Math.round(performance.now() - sinceMs);
    if (isBack) log.info({ connection: name, server, connections, durationMs }, 'queue server is back');
  };
  connection.on('ready', () => found(true));
  connection.on('end', () => found(false)); // closed for good
}

// The run file says which processes make up the running private server. Written by its supervisor alone, in one rename;
// read by every command that attaches, and by the next supervisor when this one was killed. It is touched every two
// seconds, because a home folder may be shared by hosts that cannot look up each other's processes.

import { readFileSync, renameSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { descriptorFailure } from '@shoal/core/base';
import { diskFailure } from '@shoal/fetch';
import { isAlive, isInSight, type ProcessIdentity } from '@shoal/fetch/process-identity';

/** Changes when commands of one version can no longer speak to a supervisor of another. */
export const RUN_VERSION = 1;

export interface RunFile {
  readonly version: number;
  readonly host: string;
  /** Where the pids below mean something (`placeOfPids`). */
  readonly place?: string | undefined;
  readonly supervisor: ProcessIdentity;
  /** Undefined between two starts of the server. */
  readonly server?: ProcessIdentity | undefined;
  readonly socket: string;
  readonly control: string;
}

/**
 * Undefined when there is none or it cannot be understood: then nothing is running that it could speak of. Every field
 * is looked at, because what it names is connected to and stopped. Throws SETUP_FAILED when this process can open
 * nothing now: it may well be there.
 */
export function readRunFile(path: string): RunFile | undefined {
  try {
    const run: unknown = JSON.parse(readFileSync(path, 'utf8'));
    return isRunFile(run) ? run : undefined;
  } catch (error) {
    const failure = descriptorFailure(error);
    if (failure !== undefined) throw failure;
    return undefined;
  }
}

function isRunFile(value: unknown): value is RunFile {
  const { version, host, place, supervisor, server, socket, control } = fieldsOf(value);
  return (
    Number.isSafeInteger(version) &&
    [host, socket, control].every((text) => typeof text === 'string') &&
    (place === undefined || typeof place === 'string') &&
    isProcess(supervisor) &&
    (server === undefined || isProcess(server))
  );
}

function isProcess(value: unknown): boolean {
  const { pid, startTime } = fieldsOf(value);
  return Number.isSafeInteger(pid) && (pid as number) > 0 && typeof startTime === 'string';
}

function fieldsOf(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? { ...value } : {};
}

export function writeRunFile(path: string, run: RunFile): void {
  const draft = `${path}.${process.pid}`;
  try {
    writeFileSync(draft, JSON.stringify(run), { mode: 0o600 });
    renameSync(draft, path);
  } catch (error) {
    rmSync(draft, { force: true });
    throw diskFailure(error, path) ?? error;
  }
}

/** A run file of another host that was not touched for so long is a dead one's. */
const SILENCE_MS = 60_000;

/**
 * `elsewhere`: on another host that shares these files, or in another container that has this host's name. A laptop's
 * host name may change, so processes are looked up first.
 */
export function whereabouts(path: string, run: RunFile): 'here' | 'elsewhere' | 'gone' {
  if (isAlive(run.supervisor)) return 'here';
  if (isInSight(run)) return 'gone';
  const touched = statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0;
  return Date.now() - touched < SILENCE_MS ? 'elsewhere' : 'gone';
}

export function touchRunFile(path: string): void {
  try {
    utimesSync(path, new Date(), new Date());
  } catch {
    // deleted this instant: the next look finds it gone
  }
}

/** Removes the run file if it is still this supervisor's. */
export function removeRunFile(path: string): void {
  if (readRunFile(path)?.supervisor.pid === process.pid) rmSync(path, { force: true });
}

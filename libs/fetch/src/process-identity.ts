// Which process a pid means: a pid alone is reused, a pid with its start time is not. Lock files and run files hold
// both. Signals nobody; a zombie counts as dead, because it will never release what it holds. Refuses only to answer
// while it can open nothing (EMFILE, ENFILE, ENOMEM): a process that cannot be looked up then is not gone.

import { spawnSync } from 'node:child_process';
import { readFileSync, readlinkSync } from 'node:fs';
import { hostname } from 'node:os';

export interface ProcessIdentity {
  readonly pid: number;
  /** Opaque; equal for as long as the pid means the same process. */
  readonly startTime: string;
}

/** This process. */
export function ownIdentity(): ProcessIdentity {
  return { pid: process.pid, startTime: startTimeOf(process.pid) ?? 'unknown' };
}

/** The process that has this pid now, or undefined when there is none. */
export function identityOf(pid: number): ProcessIdentity | undefined {
  const startTime = startTimeOf(pid);
  return startTime === undefined ? undefined : { pid, startTime };
}

export function isAlive(identity: ProcessIdentity): boolean {
  return startTimeOf(identity.pid) === identity.startTime;
}

let place: string | undefined;

/** Where a pid means something: equal texts are the same boot of the same machine and the same pid namespace. */
export function placeOfPids(): string {
  place ??= process.platform === 'linux' ? `${bootId()}.${pidNamespace()}` : hostname().replaceAll('~', '-');
  return place;
}

/**
 * Whether processes that were written down there can be looked up here: not those of another host, nor of another
 * container of this boot under this host's name. What says no place is taken by its host alone.
 */
export function isInSight({
  host,
  place: theirs,
}: {
  readonly host: string;
  readonly place?: string | undefined;
}): boolean {
  const isOtherContainer =
    theirs !== undefined && theirs !== placeOfPids() && theirs.split('.')[0] === placeOfPids().split('.')[0];
  return host === hostname() && !isOtherContainer;
}

function bootId(): string {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim().slice(0, 8);
  } catch (error) {
    unlessBlind(error);
    return hostname();
  }
}

function pidNamespace(): string {
  try {
    return /\d+/.exec(readlinkSync('/proc/self/ns/pid'))?.[0] ?? 'unknown';
  } catch {
    return 'unknown';
  }
}

function startTimeOf(pid: number): string | undefined {
  if (!Number.isInteger(pid) || pid <= 0) return undefined;
  return process.platform === 'linux' ? startTimeFromProc(pid) : startTimeFromPs(pid);
}

/**
 * Field 22 of /proc/<pid>/stat, clock ticks since boot; the name in field 2 may hold spaces, so counting starts behind
 * it.
 */
function startTimeFromProc(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const [state, ...fields] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return state === 'Z' || state === 'X' ? undefined : fields[18];
  } catch (error) {
    unlessBlind(error);
    return undefined;
  }
}

/** Rethrows what says nothing of the file that was to be read. */
function unlessBlind(error: unknown): void {
  if (error instanceof Error && ['EMFILE', 'ENFILE', 'ENOMEM'].includes(String(Reflect.get(error, 'code'))))
    throw error;
}

function startTimeFromPs(pid: number): string | undefined {
  const ps = spawnSync('ps', ['-o', 'stat=', '-o', 'lstart=', '-p', String(pid)], {
    encoding: 'utf8',
    env: { ...process.env, LC_ALL: 'C' },
  });
  const [state = '', ...started] = (ps.stdout ?? '').trim().split(/\s+/);
  return state === '' || state.startsWith('Z') ? undefined : started.join(' ');
}

// A lock between processes: a file that only one of them can create. It names its owner (host, place of its pid, pid,
// start time), so a lock whose owner was killed is taken over at once, and nobody has to delete files by hand. Waiting
// is polling. Not for hot paths, and not re-entrant: taking a lock twice in one process waits for the first to end.

import { linkSync, mkdirSync, readFileSync, renameSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { dirname } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { ShoalError } from '@shoal/contract';
import { diskFailure } from './disk-failure.ts';
import { isAlive, ownIdentity, placeOfPids, type ProcessIdentity } from './process-identity.ts';

export interface LockOwner extends ProcessIdentity {
  /** For messages: containers on one machine may share its name. */
  readonly host: string;
  /** Where its pid means something; see placeOfPids. */
  readonly place: string;
  /** Tells two holders in one process apart. */
  readonly nonce: string;
}

export interface LockOptions {
  /** Called once, when the lock is held by someone else and waiting begins. */
  readonly onWait?: (owner: LockOwner | undefined) => void;
  /** How long to wait before giving up; default 15 minutes, the longest download over a slow line. */
  readonly timeoutMs?: number;
  readonly pollMs?: number;
  /** Ends the waiting, with the signal's reason; the work itself ends in its own way. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * An owner whose pid means nothing here (another host, or a container that shares the cache) cannot be looked up: it
 * counts as dead when it stops touching its lock.
 */
const TOUCH_MS = 5_000;
const FOREIGN_STALE_MS = 60_000;

/**
 * Runs `work` while holding the lock file at `path`; other processes wait. SETUP_FAILED when it stays taken for
 * `timeoutMs`.
 */
export async function withLock<T>(path: string, work: () => Promise<T>, options: LockOptions = {}): Promise<T> {
  const owner: LockOwner = { host: hostname(), place: placeOfPids(), ...ownIdentity(), nonce: randomUUID() };
  await acquire(path, owner, options);
  const touching = setInterval(() => touch(path), TOUCH_MS).unref();
  try {
    return await work();
  } finally {
    clearInterval(touching);
    if (readOwner(path)?.nonce === owner.nonce) rmSync(path, { force: true });
  }
}

async function acquire(path: string, owner: LockOwner, options: LockOptions): Promise<void> {
  const { onWait, timeoutMs = 15 * 60_000, pollMs = 50, signal } = options;
  signal?.throwIfAborted();
  const giveUpAt = performance.now() + timeoutMs;
  makeFolder(dirname(path));
  for (let turn = 0; !create(path, owner); turn++) {
    const holder = readOwner(path);
    if (isStale(path, holder) && takeOver(path, owner)) return;
    if (turn === 0) onWait?.(holder);
    if (performance.now() > giveUpAt) throw stillTaken(path, holder, timeoutMs);
    await delay(pollMs, undefined, { signal }).catch(() => signal?.throwIfAborted()); // with its own reason
  }
}

function makeFolder(folder: string): void {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
  } catch (error) {
    throw diskFailure(error, folder) ?? error;
  }
}

/** Links a finished file into place, so that nobody ever reads a lock without its owner in it. */
function create(path: string, owner: LockOwner): boolean {
  const draft = writeDraft(path, owner);
  try {
    linkSync(draft, path);
    return true;
  } catch (error) {
    if (errorCode(error) === 'EEXIST') return false;
    throw (
      diskFailure(error, path) ??
      new ShoalError(
        'SETUP_FAILED',
        `the lock file ${path} cannot be created (${errorCode(error)}): its folder must be writable`,
        { path },
        error,
      )
    );
  } finally {
    rmSync(draft, { force: true });
  }
}

/**
 * Replaces a dead owner by `owner`. Two processes may have read the same dead owner: without the guard the slower one
 * would replace the faster one's fresh lock. Between guard and rename nothing waits; a guard that was left by a process
 * killed exactly there is cleared after ten seconds.
 */
function takeOver(path: string, owner: LockOwner): boolean {
  const guard = `${path}.takeover`;
  try {
    mkdirSync(guard);
  } catch {
    if (ageMs(guard) > 10_000) rmSync(guard, { recursive: true, force: true });
    return false;
  }
  try {
    if (!isStale(path, readOwner(path))) return false;
    renameSync(writeDraft(path, owner), path);
    return true;
  } finally {
    rmSync(guard, { recursive: true, force: true });
  }
}

function isStale(path: string, holder: LockOwner | undefined): boolean {
  const age = ageMs(path);
  if (age === -1) return false; // released meanwhile: the next turn creates it
  if (holder === undefined || holder.place !== placeOfPids()) return age > FOREIGN_STALE_MS;
  return !isAlive(holder);
}

function writeDraft(path: string, owner: LockOwner): string {
  const draft = `${path}.${owner.pid}.${owner.nonce.slice(0, 8)}`;
  try {
    writeFileSync(draft, JSON.stringify(owner));
  } catch (error) {
    rmSync(draft, { force: true }); // on a full disk the name is made and the content is not
    throw diskFailure(error, path) ?? error;
  }
  return draft;
}

function readOwner(path: string): LockOwner | undefined {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as LockOwner;
  } catch {
    return undefined;
  }
}

function ageMs(path: string): number {
  const modified = statSync(path, { throwIfNoEntry: false })?.mtimeMs;
  return modified === undefined ? -1 : Math.max(0, Date.now() - modified);
}

function touch(path: string): void {
  try {
    utimesSync(path, new Date(), new Date());
  } catch {
    // taken over by someone who thought us dead: the release finds another nonce and leaves it alone
  }
}

function stillTaken(path: string, holder: LockOwner | undefined, timeoutMs: number): ShoalError {
  const who = holder === undefined ? 'an unknown process' : `process ${holder.pid} on ${holder.host}`;
  return new ShoalError(
    'SETUP_FAILED',
    `waited ${Math.round(timeoutMs / 1000)} s for ${path}, which ${who} holds: end that process, or wait for ` +
      'it and try again',
    { path, ...holder },
  );
}

function errorCode(error: unknown): string {
  return error instanceof Error && 'code' in error ? String(error.code) : String(error);
}

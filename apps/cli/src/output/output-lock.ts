// Who writes an output file: one run at a time, from before its first look at what an earlier one left until its end.
// The claim is a hidden file beside the output, which only one process can create. It names its owner, and that of a
// process that is gone, or that has not touched it for a while, gives way; nobody has to delete files by hand. Not a
// link, as the locks of the cache folder are: outputs also lie on file systems that have no links.
//
// Why: docs/decisions/command-and-setup.md#an-output-belongs-to-one-run-from-its-first-look-until-its-end

import { mkdir, open, readFile, rm, rmdir, stat, utimes } from 'node:fs/promises';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalError } from '@shoal/contract';
import { isInSight, placeOfPids } from '@shoal/fetch/process-identity';
import { writeFailure } from '@shoal/worker/files/write-failure';
import type { Target } from './target.ts';

/** A living run touches its claim this often, so that one that is three times as old belongs to nobody. */
const HEARTBEAT_MS = 5_000;
const HELD_MS = 3 * HEARTBEAT_MS;
/** By then a claim that nobody's name is in, or a take-over that nobody ends, is that old. */
const PATIENCE_MS = HELD_MS + 1_000;
const LOOK_AGAIN_MS = 200;

interface Owner {
  readonly pid: number;
  readonly host: string;
  /** Where the number means something (`placeOfPids`): two containers may have one host's name. */
  readonly place?: string | undefined;
}

export interface LockOptions {
  readonly patienceMs?: number;
  /** Told once, in words for whoever waits. */
  readonly onWait?: (line: string) => void;
}

/**
 * Runs `use` while no other run writes `target`; FILE_UNWRITABLE, naming the other, when one does. A claim without a
 * name, as a disk that became full or read-only leaves it, is waited for until it is written or old: `patienceMs` at
 * most. Pipes and devices may be shared.
 */
export async function withOutputLock<Result>(
  target: Target,
  use: () => Promise<Result>,
  { patienceMs = PATIENCE_MS, onWait }: LockOptions = {},
): Promise<Result> {
  if (target.kind !== 'file') return use();
  const path = `${target.partial}.claim`;
  await take(path, target.name, patienceMs, onWait);
  const touching = setInterval(
    () => void utimes(path, new Date(), new Date()).catch(() => undefined),
    HEARTBEAT_MS,
  ).unref();
  try {
    return await use();
  } finally {
    clearInterval(touching);
    const owner = await readOwner(path);
    // another's, when we were stopped for so long that we seemed dead
    if (owner !== undefined && isOurs(owner)) await removeIfPossible(path);
  }
}

async function take(path: string, name: string, patienceMs: number, onWait: LockOptions['onWait']): Promise<void> {
  const startedMs = performance.now();
  let isTold = false;
  try {
    while (!(await create(path))) {
      const owner = await readOwner(path);
      const isTaken = await isHeld(path, owner);
      if (!isTaken && (await removeAbandoned(path))) continue;
      const isNamed = isTaken && owner !== undefined;
      if (isNamed || performance.now() - startedMs >= patienceMs) throw heldByAnother(name, owner);
      if (!isTold)
        onWait?.(
          `${name} was left claimed by a run without a name; waiting ${Math.ceil(patienceMs / 1_000)} s at most`,
        );
      isTold = true;
      await sleep(LOOK_AGAIN_MS);
    }
  } catch (error) {
    throw error instanceof ShoalError ? error : writeFailure(name, error);
  }
}

async function create(path: string): Promise<boolean> {
  const owner: Owner = { pid: process.pid, host: hostname(), place: placeOfPids() };
  const file = await open(path, 'wx').catch((error: unknown) => {
    if (isCode(error, 'EEXIST')) return undefined;
    throw error;
  });
  if (file === undefined) return false;
  try {
    await file.writeFile(JSON.stringify(owner));
    return true;
  } catch (error) {
    await removeIfPossible(path);
    throw error;
  } finally {
    await file.close();
  }
}

/** A disk that became read-only keeps the claim, which then gives way to the next run; why this one ended counts more. */
async function removeIfPossible(path: string): Promise<void> {
  await rm(path, { force: true }).catch(() => undefined);
}

/**
 * Removes a claim that nobody holds. Two runs may have read the same one: without the guard the slower would remove the
 * fresh claim of the faster. A guard whose owner was killed in here is cleared for the run after this one.
 */
async function removeAbandoned(path: string): Promise<boolean> {
  const guard = `${path}.takeover`;
  try {
    await mkdir(guard);
  } catch (error) {
    if (!isCode(error, 'EEXIST')) throw error;
    if ((await ageMs(guard)) > HELD_MS) await rmdir(guard).catch(() => undefined);
    return false;
  }
  try {
    if (!(await isHeld(path, await readOwner(path)))) await rm(path, { force: true });
    return true;
  } finally {
    await rmdir(guard).catch(() => undefined);
  }
}

/** A number of a process alone proves nothing: they are used again, and mean nothing on another host. */
async function isHeld(path: string, owner: Owner | undefined): Promise<boolean> {
  if ((await ageMs(path)) >= HELD_MS) return false;
  if (owner === undefined || !isInSight(owner)) return true; // being written this moment, or out of sight
  return !isOurs(owner) && isAlive(owner.pid); // a claim of our number that is not ours was left by a process before us
}

function isOurs(owner: Owner): boolean {
  return owner.pid === process.pid && isInSight(owner);
}

/** Infinity when there is no such file: then nobody holds it. */
async function ageMs(path: string): Promise<number> {
  return stat(path).then(
    ({ mtimeMs }) => Date.now() - mtimeMs,
    () => Infinity,
  );
}

async function readOwner(path: string): Promise<Owner | undefined> {
  try {
    const { pid, host, place }: Record<string, unknown> = JSON.parse(await readFile(path, 'utf8'));
    return typeof pid === 'number' && typeof host === 'string'
      ? { pid, host, place: typeof place === 'string' ? place : undefined }
      : undefined;
  } catch {
    return undefined;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return isCode(error, 'EPERM');
  }
}

function isCode(error: unknown, code: string): boolean {
  return error instanceof Error && 'code' in error && error.code === code;
}

function heldByAnother(name: string, owner: Owner | undefined): ShoalError<'FILE_UNWRITABLE'> {
  const who = owner === undefined ? '' : ` (process ${owner.pid}${whereIs(owner)})`;
  return new ShoalError(
    'FILE_UNWRITABLE',
    `cannot write ${name}: another shoal embed${who} is writing it; wait for it, or choose another file`,
    { file: name },
  );
}

function whereIs(owner: Owner): string {
  if (isInSight(owner)) return '';
  return owner.host === hostname() ? ' in another container' : ` on ${owner.host}`;
}

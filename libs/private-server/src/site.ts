// Where one user's private queue server lives: data, log, run file and sockets, in a folder that only this user may
// enter. Refuses a folder that belongs to somebody else or that others may enter: whoever can open the socket owns the
// queue.

import { createHash } from 'node:crypto';
import { mkdirSync, rmdirSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { ShoalError } from '@shoal/contract';

export interface Site {
  readonly folder: string;
  readonly data: string;
  readonly runFile: string;
  readonly runLock: string;
  readonly log: string;
  /** The queue server's unix socket. */
  readonly socket: string;
  /** The supervisor's unix socket. */
  readonly control: string;
}

/** Addresses of unix sockets end at 104 bytes on macOS and 108 on Linux, the final zero included. */
const MAX_SOCKET_BYTES = 100;

/** Where the run file of a site is, without making the site. */
export function runFileOf(cacheDir: string): string {
  return join(resolve(cacheDir), 'server', 'run.json');
}

/** Where the data of a site are, without making the site. */
export function dataOf(cacheDir: string): string {
  return join(resolve(cacheDir), 'server', 'data');
}

/** The site under `cacheDir`, its folders made and checked. */
export function privateSite(cacheDir: string): Site {
  const folder = join(resolve(cacheDir), 'server');
  makePrivate(folder);
  makePrivate(dataOf(cacheDir));
  const sockets = socketFolder(folder);
  return {
    folder,
    data: dataOf(cacheDir),
    runFile: runFileOf(cacheDir),
    runLock: join(folder, 'run.lock'),
    log: join(folder, 'supervisor.log'),
    socket: join(sockets, 'queue.sock'),
    control: join(sockets, 'control.sock'),
  };
}

/** Beside the data, unless the path is too long for a socket or would have to be escaped inside a URL. */
function socketFolder(folder: string): string {
  const longest = join(folder, 'control.sock');
  if (Buffer.byteLength(longest) <= MAX_SOCKET_BYTES && /^[A-Za-z0-9/._+@-]+$/.test(longest)) return folder;
  const name = createHash('sha256').update(folder).digest('hex').slice(0, 12);
  const elsewhere = join(tmpdir(), `shoal-${process.getuid?.() ?? 0}-${name}`);
  makePrivate(elsewhere);
  return elsewhere;
}

/** A folder that was made for sockets elsewhere goes with them, once nothing is in it. */
export function leaveSocketFolder({ folder, socket }: Site): void {
  const sockets = dirname(socket);
  if (sockets === folder) return;
  try {
    rmdirSync(sockets);
  } catch {
    // not empty: a server that starts has its sockets there by now
  }
}

function makePrivate(folder: string): void {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
  } catch (error) {
    throw refusal(
      folder,
      `cannot be created (${(error as Error).message})`,
      'make the folder above it writable',
      error,
    );
  }
  const found = statSync(folder);
  const uid = process.getuid?.() ?? found.uid;
  if (!found.isDirectory()) throw refusal(folder, 'is not a folder', 'move it away');
  if (found.uid !== uid)
    throw refusal(folder, `belongs to user ${found.uid}, and this command runs as user ${uid}`, 'run as that user');
  if ((found.mode & 0o077) !== 0)
    throw refusal(
      folder,
      `may be entered by others (mode ${(found.mode & 0o777).toString(8)})`,
      `chmod 700 '${folder}'`,
    );
}

function refusal(folder: string, found: string, cure: string, cause?: unknown): ShoalError {
  return new ShoalError(
    'SETUP_FAILED',
    `the private queue server's folder ${folder} ${found}: ${cure}, or choose another cache with SHOAL_CACHE_DIR`,
    { folder },
    cause,
  );
}

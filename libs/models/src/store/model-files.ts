// The files of a stored model against their pins. Hashing 90 MB takes 50–100 ms, too long for every start, so what was
// verified is written down with size and time of change (verified.json beside the files) and hashed again only when one
// of them is no longer as it was then. It is the time that nobody can put back (ctime). Copying a cache changes times
// and costs one hashing; a changed byte is found.

import { createHash } from 'node:crypto';
import { access, constants, mkdir, readFile, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { sha256File } from '@shoal/fetch';
import { whereReadable } from './readable.ts';
import type { StoreOptions } from './store-folders.ts';

export interface PinnedFile {
  readonly bytes: number;
  /** Lower-case hex. */
  readonly sha256: string;
}

/** By path inside the model's folder. */
export type Pins = Readonly<Record<string, PinnedFile>>;

/** By path: pinned digest, size and time of change as they were when the digest was computed. */
type Verified = Readonly<
  Record<string, { readonly sha256: string; readonly bytes: number; readonly changedMs: number }>
>;

export interface FileProblem {
  readonly path: string;
  readonly problem: string;
}

const VERIFIED = 'verified.json';

/** Of this machine, where the files' own folder takes nothing. Another share with the same model has other times. */
function keptElsewhere(folder: string, { cacheDir }: StoreOptions): string {
  const hash = createHash('sha256').update(folder).digest('hex').slice(0, 16);
  return join(cacheDir, 'verified', `${hash}.json`);
}

/** Trusts files that are as they were when they were verified, hashes the others. MODEL_CORRUPT names what differs. */
export async function expectFiles(name: string, folder: string, pins: Pins, store?: StoreOptions): Promise<void> {
  const places = [join(folder, VERIFIED), ...(store === undefined ? [] : [keptElsewhere(folder, store)])];
  for (const place of places) if (await areAsVerified(place, folder, pins)) return;
  await verifyFiles(name, folder, pins, store);
}

/** Hashes every file. MODEL_CORRUPT names all that differ and what to do. */
export async function verifyFiles(name: string, folder: string, pins: Pins, store?: StoreOptions): Promise<void> {
  const problems = await findProblems(folder, pins);
  if (problems.length > 0) throw corruptFiles(name, folder, problems);
  await markVerified(folder, pins, store);
}

export async function findProblems(folder: string, pins: Pins): Promise<readonly FileProblem[]> {
  const problems: FileProblem[] = [];
  for (const [path, pin] of Object.entries(pins)) {
    const problem = await problemOf(join(folder, path), pin);
    if (problem !== undefined) problems.push({ path, problem });
  }
  return problems;
}

async function problemOf(path: string, pin: PinnedFile): Promise<string | undefined> {
  const found = await whereReadable(path, (each) => stat(each));
  if (found === undefined) return 'is missing';
  if (found.size !== pin.bytes) return `has ${found.size} bytes instead of ${pin.bytes}`;
  const sha256 = await whereReadable(path, sha256File);
  if (sha256 === undefined) return 'is missing';
  return sha256 === pin.sha256 ? undefined : `has sha256 ${sha256} instead of ${pin.sha256}`;
}

async function areAsVerified(place: string, folder: string, pins: Pins): Promise<boolean> {
  try {
    // anything else fails below
    const verified = JSON.parse(await readFile(place, 'utf8')) as Verified;
    for (const [path, pin] of Object.entries(pins)) {
      const then = verified[path];
      const now = await stat(join(folder, path));
      await access(join(folder, path), constants.R_OK);
      if (
        then?.sha256 !== pin.sha256 ||
        now.size !== pin.bytes ||
        then.bytes !== pin.bytes ||
        then.changedMs !== now.ctimeMs
      )
        return false;
    }
    return true;
  } catch {
    return false;
  }
}

async function markVerified(folder: string, pins: Pins, store: StoreOptions | undefined): Promise<void> {
  const verified: Record<string, Verified[string]> = {};
  for (const [path, pin] of Object.entries(pins))
    verified[path] = { ...pin, changedMs: (await stat(join(folder, path))).ctimeMs };
  const text = `${JSON.stringify(verified, null, 1)}\n`;
  const write = (path: string): Promise<boolean> =>
    writeFile(path, text).then(
      () => true,
      () => false,
    );
  if (store?.modelsReadOnly !== true && (await write(join(folder, VERIFIED)))) return;
  if (store === undefined) return;
  const elsewhere = keptElsewhere(folder, store);
  await mkdir(dirname(elsewhere), { recursive: true, mode: 0o700 }).catch(() => undefined);
  await write(elsewhere); // where nothing can be written at all it works, only slower
}

function corruptFiles(name: string, folder: string, problems: readonly FileProblem[]): ShoalError {
  const list = problems.map(({ path, problem }) => `\n  ${path} ${problem}`).join('');
  return new ShoalError(
    'MODEL_CORRUPT',
    `the model ${JSON.stringify(name)} in ${folder} is not what it should be:${list}\nFetch it again: shoal ` +
      `model pull ${name} --force`,
    { name, folder, problems },
  );
}

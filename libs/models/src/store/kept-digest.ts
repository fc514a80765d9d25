// A file of the cache with its digest beside it (<file>.sha256): written when the file is made, looked at when it is
// used. The whole file is hashed again only when its size or one of its times is no longer what it was at the last look
// (90 MB take 50 to 100 ms). Writing into a file changes its time of change even where whoever writes puts the other
// time back, and a copy has times of its own.

import { readFile, stat, writeFile } from 'node:fs/promises';
import { ShoalError } from '@shoal/contract';
import { placeAtomically, sha256File } from '@shoal/fetch';
import { CheckedJson } from '../checked-json.ts';

interface Seen {
  readonly bytes: number;
  readonly modifiedMs: number;
  readonly changedMs: number;
}

/** What is said of a file that was written before digests were kept. */
export const NO_DIGEST = 'has no digest beside it';

/** Of the file as it is now. */
export async function keepDigest(path: string): Promise<void> {
  await write(path, await sha256File(path));
}

/** Why the file is not what was written, or undefined when it is; `again`: hash it whatever its times say. */
export async function digestProblem(path: string, { again = false } = {}): Promise<string | undefined> {
  const text = await readFile(digestPath(path), 'utf8').catch(() => undefined);
  if (text === undefined) return NO_DIGEST;
  let digest: { readonly sha256: string } & Seen;
  try {
    const json = CheckedJson.parse(text, digestPath(path));
    const [modifiedMs, changedMs] = [json.positive('modifiedMs'), json.positive('changedMs')];
    digest = { sha256: json.string('sha256'), bytes: json.integer('bytes'), modifiedMs, changedMs };
  } catch (error) {
    return `has a damaged digest beside it: ${error instanceof ShoalError ? error.message : String(error)}`;
  }
  const now = await look(path);
  if (now.bytes !== digest.bytes) return `has ${now.bytes} bytes instead of ${digest.bytes}`;
  if (!again && now.modifiedMs === digest.modifiedMs && now.changedMs === digest.changedMs) return undefined;
  const sha256 = await sha256File(path);
  if (sha256 !== digest.sha256) return `has sha256 ${sha256} instead of ${digest.sha256}`;
  // a read-only cache works, only slower
  await write(path, sha256).catch(() => undefined);
  return undefined;
}

async function write(path: string, sha256: string): Promise<void> {
  const text = `${JSON.stringify({ sha256, ...(await look(path)) })}\n`;
  await placeAtomically(digestPath(path), (temporary) => writeFile(temporary, text));
}

async function look(path: string): Promise<Seen> {
  const { size, mtimeMs, ctimeMs } = await stat(path);
  return { bytes: size, modifiedMs: mtimeMs, changedMs: ctimeMs };
}

function digestPath(path: string): string {
  return `${path}.sha256`;
}

// The folder that the objects of a run go into: whether it is another run's, whether they fit in, and at the end the
// manifest. Objects are written by workers; here nothing is written but the folder itself and that list.

import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, readFile, readdir, rename, rm, stat, statfs, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  ShoalError,
  manifestName,
  partCheckpoint,
  partName,
  type Part,
  type PartOutput,
  type PartResult,
  type RunEntry,
} from '@shoal/contract';
import { codeOf } from '@shoal/core/base';
import { writeFailure } from '@shoal/worker/files/write-failure';
import { duration } from '../progress.ts';
import { STEM, type Plan } from './plan-parts.ts';

const BYTES_PER_DIM: Readonly<Record<PartOutput['dtype'], number>> = { f32: 4, f16: 2, i8: 1, binary: 0.125 };

/** What is read of a manifest here. */
export interface Manifest {
  readonly run: string;
  readonly model: Part['model'];
  readonly dims: number;
  readonly rows: number;
  readonly bytes: number;
  readonly tokens: number;
  readonly truncated: number;
  readonly refused: number;
  readonly list: readonly (Omit<PartResult, 'written' | 'dims'> & Pick<Part, 'source' | 'range'>)[];
}

/** Makes the folder in one that is there. FILE_UNWRITABLE. */
export async function makeFolder(folder: string): Promise<void> {
  await mkdir(folder).catch((error: unknown) => {
    if (codeOf(error) === 'EEXIST') return;
    throw codeOf(error) === 'ENOENT'
      ? new ShoalError(
          'FILE_UNWRITABLE',
          `cannot write ${folder}/: the folder in which it would lie is not there; make it`,
        )
      : writeFailure(folder, error);
  });
  if (!(await stat(folder)).isDirectory())
    throw new ShoalError(
      'FILE_UNWRITABLE',
      `cannot write ${folder}/: it is a file, and objects of parts go into a folder`,
    );
}

/** The manifest that lies there, whichever run's. */
export async function readManifest(folder: string): Promise<Manifest | undefined> {
  const path = join(folder, manifestName({ stem: STEM }));
  const text = await readFile(path, 'utf8').catch((error: unknown) => {
    if (codeOf(error) === 'ENOENT') return undefined;
    throw writeFailure(path, error);
  });
  if (text === undefined) return undefined;
  try {
    const manifest = JSON.parse(text) as Manifest;
    if (typeof manifest.run === 'string' && Array.isArray(manifest.list)) return manifest;
  } catch {
    // said below
  }
  throw new ShoalError(
    'FILE_UNREADABLE',
    `${path} is no manifest of a run: it was changed, or is another's file; move it away`,
  );
}

/**
 * Objects of other runs are not mixed with those of this one. `isKnown`: whether a part of this run was ever done.
 * Throws USAGE naming what was found, and what differs.
 */
export async function refuseOtherRun(
  folder: string,
  { run, parts }: Plan,
  manifest: Manifest | undefined,
  isKnown: (part: Part) => Promise<boolean>,
): Promise<void> {
  if (manifest !== undefined && manifest.run !== run)
    throw new ShoalError(
      'USAGE',
      `${folder}/ holds run ${manifest.run}, which is done, and this command asks for run ${run}:\n  ` +
        `${differences(manifest, parts).join('\n  ')}\nname another folder, or remove that run from this one`,
    );
  const byName = new Map(parts.map((part) => [partName(part), part]));
  for (const name of await objectsIn(folder)) {
    const part = byName.get(name);
    if (part !== undefined && (await isKnown(part))) continue;
    throw new ShoalError(
      'USAGE',
      `${folder}/ holds ${name}, of which the queue server does not know that it is of this run (${run}): it is of ` +
        'another command, of sources that were changed since, or older than what the server keeps. Name another folder, ' +
        'or remove it',
    );
  }
}

async function objectsIn(folder: string): Promise<string[]> {
  return (await readdir(folder)).filter((name) => new RegExp(`^${STEM}-\\d{5}\\.\\w+$`).test(name)).toSorted();
}

function differences(manifest: Manifest, parts: readonly Part[]): string[] {
  const theirs = new Map(manifest.list.map(({ source }) => [nameOf(source), source]));
  const ours = new Map(parts.map(({ source }) => [nameOf(source), source]));
  const found = [
    ...[...ours].flatMap(([name, source]) => {
      const other = theirs.get(name);
      if (other === undefined) return [`${name} is no source of that run`];
      return JSON.stringify(other) === JSON.stringify(source) ? [] : [`${name} has changed since that run`];
    }),
    ...[...theirs.keys()].flatMap((name) =>
      ours.has(name) ? [] : [`${name} was a source of that run, and is none now`],
    ),
  ];
  const [then, now] = [manifest.model, parts[0]!.model].map((model) => JSON.stringify(model));
  if (then !== now) found.push(`model ${then} then, ${now} now`);
  return found.length > 0 ? found.slice(0, 10) : ['the same sources with other options or another size of parts'];
}

function nameOf(source: Part['source']): string {
  return source.kind === 'file' ? source.path : `s3://${source.bucket}/${source.key}`;
}

/** Whether the object of a part lies there as it was written, by its size. */
export async function isThere(folder: string, { name, bytes }: Pick<PartResult, 'name' | 'bytes'>): Promise<boolean> {
  const facts = await stat(join(folder, name)).catch(() => undefined);
  return facts?.size === bytes;
}

/** FILE_UNWRITABLE where so many rows do not fit. `bytes`: of the sources, as far as they go along. */
export async function checkRoom(
  folder: string,
  { rows, dims, bytes, output }: { rows: number; dims: number; bytes: number; output: PartOutput },
): Promise<void> {
  const { bavail, bsize } = await statfs(folder);
  const own = rows * (dims * BYTES_PER_DIM[output.dtype] + (output.dtype === 'i8' ? 4 : 0));
  const needed = own + (output.carries === true || output.withText === true ? bytes : 0);
  if (needed <= bavail * bsize) return;
  const [need, room] = [needed, bavail * bsize].map((one) => `${(one / 1e9).toFixed(1)} GB`);
  throw new ShoalError(
    'FILE_UNWRITABLE',
    `${folder}/ has room for ${room}, and ${rows.toLocaleString('en')} rows of ${dims} dimensions (${output.dtype}) take ` +
      `about ${need}; make room, write elsewhere, or have smaller values (--dtype f16)`,
  );
}

/** Rows of these parts that lie behind checkpoints, by part: how far workers have come with what is not done. */
export async function checkpointRows(folder: string, open: readonly Part[]): Promise<ReadonlyMap<Part, number>> {
  const there = new Set(await readdir(folder).catch(() => []));
  const begun = open.filter((part) => there.has(partCheckpoint(part)));
  return new Map(
    await Promise.all(
      begun.map(async (part) => {
        const text = await readFile(join(folder, partCheckpoint(part)), 'utf8').catch(() => '');
        const [, rows = '0'] = /"rows":(\d{1,9})\b/.exec(text) ?? [];
        return [part, Number(rows)] as const;
      }),
    ),
  );
}

/** Whole or not at all. Refused where another run's lies there by now: somebody else works in the same folder. */
export async function writeManifest(folder: string, { run, output }: Part, text: string): Promise<string> {
  const path = join(folder, manifestName(output));
  const other = await readManifest(folder);
  if (other !== undefined && other.run !== run)
    throw new ShoalError(
      'FILE_UNWRITABLE',
      `${path} became that of run ${other.run} while run ${run} was worked on: two commands write into one folder, and ` +
        'their objects lie over each other. Empty it, and run one of them again',
    );
  const beside = `${path}.${process.pid}`;
  try {
    await writeFile(beside, text, { flush: true });
    await rename(beside, path);
  } catch (error) {
    await rm(beside, { force: true });
    throw writeFailure(path, error);
  }
  return path;
}

/** Reads every object through. FILE_UNREADABLE naming all that are not what the manifest says. */
export async function verifyObjects(
  folder: string,
  list: Manifest['list'],
  { signal, onBytes }: { readonly signal: AbortSignal; readonly onBytes: (bytes: number) => void },
): Promise<void> {
  const begunMs = performance.now();
  const wrong: string[] = [];
  for (const { name, sha256, bytes } of list) {
    const found = await digestOf(join(folder, name), { signal, onBytes });
    if (found.sha256 !== sha256)
      wrong.push(
        `${name}: ${found.problem ?? `${found.bytes} bytes of sha256 ${found.sha256}, not ${bytes} of ${sha256}`}`,
      );
  }
  if (wrong.length === 0) return;
  throw new ShoalError(
    'FILE_UNREADABLE',
    `${wrong.length} of ${list.length} objects in ${folder}/ are not what the manifest says ` +
      `(read in ${duration((performance.now() - begunMs) / 1_000)}):\n  ${wrong.slice(0, 20).join('\n  ')}\nremove these, and ` +
      'run the command again: it has them computed anew',
  );
}

async function digestOf(
  path: string,
  { signal, onBytes }: { readonly signal: AbortSignal; readonly onBytes: (bytes: number) => void },
): Promise<{ sha256?: string; bytes: number; problem?: string }> {
  const hash = createHash('sha256');
  let bytes = 0;
  try {
    for await (const chunk of createReadStream(path, { highWaterMark: 1024 * 1024, signal })) {
      hash.update(chunk as Buffer);
      bytes += (chunk as Buffer).length;
      onBytes((chunk as Buffer).length);
    }
  } catch (error) {
    signal.throwIfAborted();
    return { bytes, problem: codeOf(error) === 'ENOENT' ? 'it is gone' : String(error) };
  }
  return { sha256: hash.digest('hex'), bytes };
}

/** What the list of a run has of a part, from its manifest: the list is kept for some weeks, the manifest for good. */
export function entryIn({ list, dims }: Manifest, number: number): RunEntry | undefined {
  const found = list[number];
  if (found === undefined) return undefined;
  const { source, range, ...result } = found;
  return { source, range, result: { ...result, written: result.name, dims } };
}

// What lies where the objects of a run go: whether it is another run's, whether they fit in, and at the end the manifest.

import { createHash } from 'node:crypto';
import {
  ShoalError,
  manifestName,
  nameOfSource,
  partName,
  type Part,
  type PartOutput,
  type PartResult,
  type RunEntry,
} from '@shoal/contract';
import { objectBytes } from '@shoal/worker/files/object-bytes';
import { duration } from '../progress.ts';
import { STEM, type Plan } from './plan-parts.ts';
import type { RunPlace } from './run-place.ts';

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

/** The manifest that lies there, whichever run's. */
export async function readManifest(place: RunPlace): Promise<Manifest | undefined> {
  const path = `${place.name}/${manifestName({ stem: STEM })}`;
  const text = await place.read(manifestName({ stem: STEM }));
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
  place: RunPlace,
  { run, parts }: Plan,
  manifest: Manifest | undefined,
  isKnown: (part: Part) => Promise<boolean>,
): Promise<void> {
  if (manifest !== undefined && manifest.run !== run)
    throw new ShoalError(
      'USAGE',
      `${place.name}/ holds run ${manifest.run}, which is done, and this command asks for run ${run}:\n  ` +
        `${differences(manifest, parts).join('\n  ')}\nname another place, or remove that run from this one`,
    );
  const byName = new Map(parts.map((part) => [partName(part), part]));
  for (const name of await objectsIn(place)) {
    const part = byName.get(name);
    if (part !== undefined && (await isKnown(part))) continue;
    throw new ShoalError(
      'USAGE',
      `${place.name}/ holds ${name}, of which the queue server does not know that it is of this run (${run}): it is of ` +
        'another command, of sources that were changed since, or older than what the server keeps. Name another place, ' +
        'or remove it',
    );
  }
}

async function objectsIn(place: RunPlace): Promise<string[]> {
  return (await place.names()).filter((name) => new RegExp(`^${STEM}-\\d{5}\\.\\w+$`).test(name)).toSorted();
}

function differences(manifest: Manifest, parts: readonly Part[]): string[] {
  const theirs = new Map(manifest.list.map(({ source }) => [nameOfSource(source), source]));
  const ours = new Map(parts.map(({ source }) => [nameOfSource(source), source]));
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

/** Whether the object of a part lies there as it was written, by its size. */
export async function isThere(place: RunPlace, { name, bytes }: Pick<PartResult, 'name' | 'bytes'>): Promise<boolean> {
  return (await place.size(name)) === bytes;
}

/** FILE_UNWRITABLE where so many rows do not fit. `bytes`: of the sources, as far as they go along. */
export async function checkRoom(
  place: RunPlace,
  { rows, dims, bytes, output }: { rows: number; dims: number; bytes: number; output: PartOutput },
): Promise<void> {
  const free = await place.room();
  const carried = output.carries === true || output.withText === true ? bytes : 0;
  const needed = objectBytes({ rows, dims, dtype: output.dtype, carried });
  if (free === undefined || needed <= free) return;
  const [need, room] = [needed, free].map(inWords);
  throw new ShoalError(
    'FILE_UNWRITABLE',
    `${place.name}/ has room for ${room}, and ${rows.toLocaleString('en')} rows of ${dims} dimensions (${output.dtype}) take ` +
      `about ${need}; make room, write elsewhere, or have smaller values (--dtype f16)`,
  );
}

function inWords(bytes: number): string {
  return bytes < 1e8 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}

/** Whole or not at all. Refused where another run's lies there by now: somebody else works in the same folder. */
export async function writeManifest(place: RunPlace, { run, output }: Part, text: string): Promise<void> {
  const name = manifestName(output);
  const other = await readManifest(place);
  if (other !== undefined && other.run !== run)
    throw new ShoalError(
      'FILE_UNWRITABLE',
      `${place.name}/${name} became that of run ${other.run} while run ${run} was worked on: two commands write into one ` +
        'place, and their objects lie over each other. Empty it, and run one of them again',
    );
  await place.writeManifest(name, run, text);
}

/** Reads every object through. FILE_UNREADABLE naming all that are not what the manifest says. */
export async function verifyObjects(
  place: RunPlace,
  list: Manifest['list'],
  { signal, onBytes }: { readonly signal: AbortSignal; readonly onBytes: (bytes: number) => void },
): Promise<void> {
  const begunMs = performance.now();
  const wrong: string[] = [];
  for (const { name, sha256, bytes } of list) {
    const found = await digestOf(place, name, { signal, onBytes });
    if (found.sha256 !== sha256)
      wrong.push(
        `${name}: ${found.problem ?? `${found.bytes} bytes of sha256 ${found.sha256}, not ${bytes} of ${sha256}`}`,
      );
  }
  if (wrong.length === 0) return;
  throw new ShoalError(
    'FILE_UNREADABLE',
    `${wrong.length} of ${list.length} objects in ${place.name}/ are not what the manifest says ` +
      `(read in ${duration((performance.now() - begunMs) / 1_000)}):\n  ${wrong.slice(0, 20).join('\n  ')}\nremove these, and ` +
      'run the command again: it has them computed anew',
  );
}

async function digestOf(
  place: RunPlace,
  name: string,
  { signal, onBytes }: { readonly signal: AbortSignal; readonly onBytes: (bytes: number) => void },
): Promise<{ sha256?: string; bytes: number; problem?: string }> {
  const hash = createHash('sha256');
  let bytes = 0;
  try {
    const chunks = await place.chunks(name, signal);
    if (chunks === undefined) return { bytes, problem: 'it is gone' };
    for await (const chunk of chunks) {
      hash.update(chunk);
      bytes += chunk.length;
      onBytes(chunk.length);
    }
  } catch (error) {
    signal.throwIfAborted();
    return { bytes, problem: String(error) };
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

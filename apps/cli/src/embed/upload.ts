// `shoal embed -o s3://BUCKET/KEY`: rows become a file in a hidden folder of the working one, by the same writer as every
// file, so that a run that was interrupted goes on with it; once it is whole it is uploaded, and the folder goes. What is
// noted beside it lets the same command upload a file that is whole without computing anything again.

import { readFile, rename, rm, rmdir, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { S3Place } from '@shoal/fetch/s3';
import { idsPath, scalesPath, skippedPath } from '../output/beside.ts';
import { TRIAL_NAME, differences, withOrigin, type RunRequest } from '../output/run-state.ts';
import type { FileTarget } from '../output/target.ts';
import { downloadProgress } from '../progress.ts';
import type { BegunUpload, S3Object } from '../sinks/s3.ts';
import { sayAway, type Terminal } from '../terminal.ts';
import type { Done } from './report.ts';

interface Note {
  readonly v: 1;
  readonly request: RunRequest;
  readonly done: Done;
  /** By what goes behind the key. */
  readonly uploads: Readonly<Record<string, BegunUpload>>;
}

/** What goes behind the name of the file for what may lie beside it. */
const BESIDE = [idsPath, scalesPath, skippedPath].map((named) => named({ path: '' }));

export interface ObjectTarget extends FileTarget {
  readonly upload: S3Place;
}

export function isObject(target: FileTarget): target is ObjectTarget {
  return target.upload !== undefined;
}

/** What a run of this very request has done whose file was not uploaded, or not to its end. */
export async function finishedBefore(target: ObjectTarget, asked: RunRequest): Promise<Done | undefined> {
  const note = await readNote(target);
  if (note === undefined || (await sizeOf(target.path)) === undefined) return undefined;
  const same = withOrigin(asked, note.request.options[TRIAL_NAME] !== undefined);
  return differences(note.request, same).length === 0 ? { ...note.done, rowsBefore: note.done.rows } : undefined;
}

/** To be called before the file gets its name: from then on there is nothing to compute. */
export function noteFinished(target: ObjectTarget, request: RunRequest, done: Done): Promise<void> {
  return writeNote(target, { v: 1, request, done, uploads: {} });
}

/** Nothing of an earlier run is left. */
export async function forgetFinished(target: ObjectTarget): Promise<void> {
  for (const path of [target.path, ...BESIDE.map((suffix) => target.path + suffix), notePath(target)])
    await rm(path, { force: true });
}

/**
 * The file and what lies beside it become objects, the file last; then nothing is left of them here. FILE_UNWRITABLE as
 * `S3Object` says, and whatever came stays.
 */
export async function uploadFinished(
  terminal: Terminal,
  target: ObjectTarget,
  object: S3Object,
  { isQuiet }: { readonly isQuiet: boolean },
): Promise<void> {
  let note = (await readNote(target))!;
  const suffixes = [...BESIDE, ''];
  for (const suffix of suffixes) {
    const path = target.path + suffix;
    const bytes = await sizeOf(path);
    if (bytes === undefined) continue;
    const bar = downloadProgress(terminal, `${target.upload.name}${suffix}`, !isQuiet);
    try {
      await object.upload(path, suffix, {
        signal: terminal.signal,
        begun: note.uploads[suffix],
        onBegun: async (begun) => {
          note = { ...note, uploads: { ...note.uploads, [suffix]: begun } };
          await writeNote(target, note);
        },
        onProgress: (sent) => bar.update(sent, bytes),
        onAway: sayAway(terminal),
      });
    } finally {
      bar.stop();
    }
  }
  await forgetFinished(target);
}

/** Takes the hidden folder away where nothing is in it. */
export async function removeFolder(target: ObjectTarget): Promise<void> {
  await rmdir(dirname(target.path)).catch(() => undefined);
}

function notePath({ path }: FileTarget): string {
  return join(dirname(path), '.upload.json');
}

async function readNote(target: ObjectTarget): Promise<Note | undefined> {
  const text = await readFile(notePath(target), 'utf8').catch(() => undefined);
  if (text === undefined) return undefined;
  const note = JSON.parse(text) as Note;
  return note.v === 1 ? note : undefined;
}

async function writeNote(target: ObjectTarget, note: Note): Promise<void> {
  const path = notePath(target);
  await writeFile(`${path}.new`, JSON.stringify(note), { flush: true });
  await rename(`${path}.new`, path);
}

function sizeOf(path: string): Promise<number | undefined> {
  return stat(path).then(
    ({ size }) => size,
    () => undefined,
  );
}

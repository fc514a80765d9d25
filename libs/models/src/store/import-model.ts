// A model that a person brings, as a folder or as an .onnx file: its files are copied, checked in the copy and placed
// whole, with a digest of each, or refused by name with nothing left behind. What the files must be stands in
// import-files.ts.

import { mkdir, rm, stat } from 'node:fs/promises';
import { basename, dirname, extname, join, resolve } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { withLock } from '@shoal/fetch';
import { collectFiles, type ImportSource } from './import-files.ts';
import { checkModelName, describeImported, findImported, type ImportedModel } from './imported-models.ts';
import { KNOWN_MODELS } from './known-models.ts';
import { placeFolderIn } from './place-folder.ts';
import type { StoredModel } from './stored-model.ts';
import { storing } from './storing.ts';

export interface ImportOptions {
  readonly cacheDir: string;
  /** Default: the name of the folder or file, in lower case, with "-" for what a name cannot have. */
  readonly name?: string;
  /** Replace an imported model of this name. */
  readonly force?: boolean;
}

export interface ImportReport {
  readonly model: StoredModel;
  /** What was assumed because the files do not say it. */
  readonly notes: readonly string[];
}

/** FILE_UNREADABLE, USAGE for its name, MODEL_CORRUPT for what is in it. Doing it twice is doing it once. */
export async function importModel(path: string, options: ImportOptions): Promise<ImportReport> {
  const { cacheDir } = options;
  const source = await findSource(resolve(path));
  const name = checkModelName(options.name ?? defaultName(path));
  if (KNOWN_MODELS.some((known) => known.name === name))
    throw nameTaken(name, 'Shoal knows a model of this name. Choose another with --name');
  return storing(cacheDir, async () => {
    await mkdir(join(cacheDir, 'models'), { recursive: true, mode: 0o700 });
    return withLock(join(cacheDir, 'models', '.import.lock'), () => place(source, name, options));
  });
}

async function place(
  source: ImportSource,
  name: string,
  { cacheDir, force = false }: ImportOptions,
): Promise<ImportReport> {
  const parent = join(cacheDir, 'models', name);
  const earlier = await findImported(name, cacheDir);
  const collected: { model: ImportedModel; notes: readonly string[] }[] = [];
  const folder = await placeFolderIn(parent, async (temporary) => {
    const { model, notes } = await collectFiles(temporary, source, name);
    if (earlier !== undefined && earlier.revision !== model.revision && !force) {
      throw nameTaken(
        name,
        `other files were imported under this name before (revision ${earlier.revision}). Choose another with ` +
          '--name, or replace them with --force',
      );
    }
    collected.push({ model, notes });
    return model.revision;
  });
  const { model, notes } = collected[0]!;
  if (earlier !== undefined && earlier.revision !== model.revision)
    await rm(join(parent, earlier.revision), { recursive: true, force: true });
  return { model: await describeImported(model, folder), notes };
}

async function findSource(path: string): Promise<ImportSource> {
  const found = await stat(path).catch((cause: Error) => {
    throw new ShoalError('FILE_UNREADABLE', `${path} cannot be read: ${cause.message}`, { path }, cause);
  });
  if (found.isDirectory()) return { folder: path, graph: undefined };
  if (found.isFile() && extname(path) === '.onnx') return { folder: dirname(path), graph: path };
  throw new ShoalError('FILE_UNREADABLE', `${path} is neither a folder with a model's files nor an .onnx file`, {
    path,
  });
}

function defaultName(path: string): string {
  return basename(resolve(path), '.onnx')
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, '-')
    .replaceAll(/^-+|-+$/g, '')
    .slice(0, 64);
}

function nameTaken(name: string, why: string): ShoalError {
  return new ShoalError('USAGE', `the model cannot be called ${JSON.stringify(name)}: ${why}`, { name });
}

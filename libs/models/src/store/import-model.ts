// A model that a person brings, as a folder or as an .onnx file: its files are copied, checked in the copy, run on one
// text where the caller can, and placed whole, with a digest of each, or refused by name with nothing left behind. What
// the files must be stands in import-files.ts.

import { lstat, mkdir, rm, stat } from 'node:fs/promises';
import { basename, dirname, extname, join, resolve } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { withLock } from '@shoal/fetch';
import type { HubOrigin } from '../hub/hub-origin.ts';
import { collectFiles, type ImportChoices, type ImportSource, type ProveModel } from './import-files.ts';
import { checkModelName, describeImported, importedRevision, type ImportedModel } from './imported-models.ts';
import { KNOWN_MODELS } from './known-models.ts';
import { placeFolderIn } from './place-folder.ts';
import type { StoredModel } from './stored-model.ts';
import { expectWritable, modelsFolder, type StoreOptions } from './store-folders.ts';
import { storing } from './storing.ts';

export interface ImportOptions extends ImportChoices, StoreOptions {
  /**
   * Runs the model on one text before it gets its place. Without it nothing proves that the graph runs, and workers
   * have no canary for it.
   */
  readonly prove?: ProveModel | undefined;
  /** Default: the name of the folder or file, in lower case, with "-" for what a name cannot have. */
  readonly name?: string;
  /** Replace an imported model of this name. */
  readonly force?: boolean;
  /** Set for files that were fetched from a hub. */
  readonly hub?: HubOrigin | undefined;
  /** What was assumed before the import; kept with what it assumes. */
  readonly hubNotes?: readonly string[] | undefined;
}

export interface ImportReport {
  readonly model: StoredModel;
  /** What was assumed because the files do not say it. */
  readonly notes: readonly string[];
}

/** FILE_UNREADABLE, USAGE for its name, MODEL_CORRUPT for what is in it. Doing it twice is doing it once. */
export async function importModel(path: string, options: ImportOptions): Promise<ImportReport> {
  const models = modelsFolder(options);
  const source = { ...(await findSource(resolve(path))), hub: options.hub };
  const name = checkModelName(options.name ?? defaultName(path));
  refuseTakenName(name);
  expectWritable(options, `${name} cannot be imported`);
  return storing(options.modelsDir ?? options.cacheDir, async () => {
    await mkdir(models, { recursive: true, mode: 0o700 });
    return withLock(join(models, '.import.lock'), () => place(source, name, options));
  });
}

/** USAGE for the name of a model that Shoal brings itself. */
export function refuseTakenName(name: string): string {
  if (KNOWN_MODELS.some((known) => known.name === name))
    throw nameTaken(name, 'Shoal knows a model of this name. Choose another with --name');
  return name;
}

async function place(
  source: ImportSource,
  name: string,
  { force = false, prove, pooling, normalize, task, prompts, hubNotes, ...folders }: ImportOptions,
): Promise<ImportReport> {
  const parent = join(modelsFolder(folders), name);
  const earlier = await importedRevision(name, modelsFolder(folders));
  const collected: { model: ImportedModel; notes: readonly string[] }[] = [];
  const folder = await placeFolderIn(parent, async (temporary) => {
    const { model, notes } = await collectFiles(temporary, source, {
      name,
      prove,
      notes: hubNotes,
      choices: { pooling, normalize, task, prompts },
    });
    if (earlier !== undefined && earlier !== model.revision && !force) {
      throw nameTaken(
        name,
        `other files were imported under this name before (revision ${earlier}). Choose another with ` +
          '--name, or replace them with --force',
      );
    }
    collected.push({ model, notes });
    return model.revision;
  });
  const { model, notes } = collected[0]!;
  if (earlier !== undefined && earlier !== model.revision)
    await rm(join(parent, earlier), { recursive: true, force: true });
  return { model: await describeImported(model, folder), notes };
}

async function findSource(path: string): Promise<ImportSource> {
  const found = await stat(path).catch((cause: Error) => {
    throw new ShoalError('FILE_UNREADABLE', `${path} cannot be read: ${cause.message}`, { path }, cause);
  });
  if (found.isDirectory()) return { folder: path, graph: undefined };
  if (found.isFile() && extname(path) === '.onnx') return { folder: await folderOfGraph(path), graph: path };
  throw new ShoalError('FILE_UNREADABLE', `${path} is neither a folder with a model's files nor an .onnx file`, {
    path,
  });
}

/** Exporters put graphs into onnx/ and leave config and tokenizer one folder up. */
async function folderOfGraph(graph: string): Promise<string> {
  const [beside, above] = [dirname(graph), dirname(dirname(graph))];
  const isBeside = (await has(beside, 'config.json')) || (await has(beside, 'tokenizer.json'));
  if (isBeside || (await has(beside, 'modules.json'))) return beside;
  return (await has(above, 'config.json')) || (await has(above, 'modules.json')) ? above : beside;
}

async function has(folder: string, file: string): Promise<boolean> {
  return (await lstat(join(folder, file)).catch(() => undefined)) !== undefined;
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

// Models by name: open (fetching what is absent), pull, verify, list. Each lies whole and verified in
// <cacheDir>/models/<name>/<revision>/ with its licence beside it, or not at all: one process fetches under a lock
// while the others wait, and the folder gets its name last. Refuses names it does not know and bytes that are not the
// pinned ones.

import { createHash } from 'node:crypto';
import { copyFile, mkdir, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ShoalError, isShoalError, mainQueue, queueOf, type ModelKind } from '@shoal/contract';
import { makeOpenFolder, withLock, type OnProgress, type RetryTerms } from '@shoal/fetch';
import { keptGraphs, type KeptGraph } from '../graph/open-graph.ts';
import { NO_DIGEST } from './kept-digest.ts';
import { QUANTIZER_VERSION } from '../graph/quantize.ts';
import { findHubModel, findPulledAs } from '../hub/find-hub-model.ts';
import { isHubName, parseHubName, storeNameOf } from '../hub/hub-name.ts';
import { pullFromHub, type FetchedFacts } from '../hub/pull-hub-model.ts';
import { knownCanary } from './canaries.ts';
import type { ProveModel } from './import-files.ts';
import type { ImportReport } from './import-model.ts';
import { derivedIsMade } from './derived-facts.ts';
import { describeImported, findImported, importedNames } from './imported-models.ts';
import {
  KNOWN_MODELS,
  generatedFiles,
  pinnedFiles,
  unknownModel,
  type DownloadedModel,
  type GeneratedModel,
  type KnownModel,
} from './known-models.ts';
import { expectFiles, verifyFiles } from './model-files.ts';
import { fetchModelFiles, type Environment } from './model-sources.ts';
import { placeFolder } from './place-folder.ts';
import { whereReadable } from './readable.ts';
import { REVISION_DIGITS, describeModel, readModelFile, type StoredModel } from './stored-model.ts';
import { expectWritable, isReadOnly, modelsFolder, type StoreOptions } from './store-folders.ts';
import { storing } from './storing.ts';

export type { StoreOptions } from './store-folders.ts';

export interface PullOptions extends StoreOptions {
  /** Bytes that have arrived and, where known, how many there will be. */
  readonly onProgress?: OnProgress;
  /** Fetch and replace even what is stored and whole. */
  readonly force?: boolean;
  /** Default: that of this process. HF_ENDPOINT, HF_HUB_OFFLINE and pip's own variables are read. */
  readonly environment?: Environment;
  /** Ends fetching, or waiting for another process that fetches, with the signal's reason; nothing of it stays. */
  readonly signal?: AbortSignal | undefined;
}

export interface HubOptions {
  /** Runs a model of the hub before it gets its place. Without it, none is fetched. */
  readonly prove?: ProveModel | undefined;
  /** What to call a model of the hub; default: as its queue. */
  readonly name?: string | undefined;
  /** Whose adapter is merged, of a model that has one for each task: part of its name unless `name` says another. */
  readonly task?: string | undefined;
  /** Look for a newer commit than the one that is stored. */
  readonly update?: boolean | undefined;
  /** Told once, when fetching from the hub begins. */
  readonly onStart?: ((facts: FetchedFacts) => void) | undefined;
  /** Told before each wait for the hub. */
  readonly onWait?: ((why: string, waitMs: number) => void) | undefined;
  readonly retries?: RetryTerms | undefined;
}

export interface OpenOptions extends Omit<PullOptions, 'force'>, Omit<HubOptions, 'name' | 'task' | 'update'> {
  /** False: an absent model is MODEL_UNAVAILABLE instead of being fetched. Default true. */
  readonly allowFetch?: boolean;
}

export interface ModelListing {
  readonly name: string;
  readonly kind: ModelKind;
  readonly description: string;
  readonly licence: string;
  readonly revision: string;
  /** Of all its files. */
  readonly bytes: number;
  readonly isStored: boolean;
  /** Made by Shoal for tests; not worth showing to people who look for a model. */
  readonly isForTests: boolean;
  /** It has no files of its own but those of this model. */
  readonly filesOf?: string;
  /** What its import assumed, or does in another way than its files say. */
  readonly notes?: readonly string[];
  /** ORG/NAME@commit, of a model that was pulled from the hub. */
  readonly hub?: string;
  /** Why it cannot be opened; the other facts are then empty. */
  readonly problem?: string;
}

export interface VerifiedModel {
  readonly model: StoredModel;
  readonly files: readonly { readonly path: string; readonly bytes: number; readonly sha256: string }[];
  /** Its graphs in the cache; one that an earlier version built has no digest and is built again when it is needed. */
  readonly graphs: readonly KeptGraph[];
}

const LICENCE_TEXTS: Readonly<Record<string, string>> = {
  'Apache-2.0': fileURLToPath(new URL('../../licences/Apache-2.0.txt', import.meta.url)),
};

/**
 * The model of this name, fetched or generated if it is absent. Cheap when it is present: files are not hashed again.
 */
export async function openModel(name: string, options: OpenOptions): Promise<StoredModel> {
  if (isHubName(name)) return (await openHubModel(name, options)).model;
  return openKnown(await findModel(name, options), options);
}

/** As `openModel`, for a model outside the list of known ones. */
export async function openKnown(known: KnownModel, options: OpenOptions): Promise<StoredModel> {
  const folder = folderOf(known, options);
  if (await isFolder(folder)) {
    await expectFiles(known.name, folder, pinnedFiles(known), options);
    return describe(known, folder);
  }
  if (options.allowFetch === false && known.origin !== 'generated') throw notStored(known, folder);
  return pullKnown(known, options);
}

/**
 * The model of ORG/NAME or ORG/NAME@REVISION: from the store, where the commit of its first pull stays, else fetched,
 * which takes a `prove`. `force` fetches again; notes are of what was fetched now.
 */
export async function openHubModel(
  name: string,
  options: OpenOptions & HubOptions & Pick<PullOptions, 'force'>,
): Promise<ImportReport> {
  const asked = parseHubName(name);
  const { prove, force, update, task, environment = process.env } = options;
  const models = modelsFolder(options);
  const named = options.name ?? (task === undefined ? undefined : storeNameOf(asked, task));
  const stored =
    named !== undefined
      ? await findPulledAs(named, asked, models)
      : await findHubModel(asked, models).catch((error: unknown) => {
          if (force === true || update === true) return undefined;
          throw error;
        });
  const isOther = task !== undefined && stored?.hub.task !== task;
  if (stored !== undefined && force !== true && update !== true && !isOther)
    return { model: await openKnown(stored, { ...options, allowFetch: false }), notes: [] };
  if (options.allowFetch === false || prove === undefined)
    throw new ShoalError(
      'MODEL_UNAVAILABLE',
      `${asked.repository} is not in ${models}: shoal model pull ${name} fetches it`,
      { name, folder: models },
    );
  const { model, notes } = await pullFromHub(asked, {
    ...options,
    name: named ?? stored?.name,
    task: task ?? stored?.hub.task,
    prove,
    environment,
  });
  const pulled = await findModel(model.name, options);
  return { model: await openKnown(pulled, { ...options, allowFetch: false }), notes };
}

/** Fetches the model unless it is stored and whole, or in any case with `force`. */
export async function pullModel(name: string, options: PullOptions & HubOptions): Promise<StoredModel> {
  if (isHubName(name)) return (await openHubModel(name, options)).model;
  const known = await findModel(name, options);
  if (known.origin === 'imported' && known.derived !== undefined && (options.force === true || options.update === true))
    throw derivedIsMade(known.name, known.derived);
  const hub = known.origin === 'imported' ? known.hub : undefined;
  if (hub === undefined || (options.force !== true && options.update !== true)) return pullKnown(known, options);
  return (await openHubModel(`${hub.repository}@${hub.asked}`, { ...options, name: known.name })).model;
}

/** As `pullModel`, for a model outside the list of known ones. */
export async function pullKnown(known: KnownModel, options: PullOptions): Promise<StoredModel> {
  if (known.origin === 'quantized') return describe(known, (await pullKnown(known.base, options)).folder);
  const folder = folderOf(known, options);
  if (known.origin === 'imported') {
    if (options.force === true)
      throw new ShoalError(
        'MODEL_UNAVAILABLE',
        `${known.name} was imported and can be fetched from nowhere: shoal model import … --name ${known.name} --force`,
        { name: known.name },
      );
    return openKnown(known, { ...options, allowFetch: false }); // it may have been taken away since its name was found
  }
  const place = async (): Promise<StoredModel> => {
    if (options.force !== true && (await isFolder(folder)))
      await expectFiles(known.name, folder, pinnedFiles(known), options);
    else await placeFolder(folder, (temporary) => fillFolder(known, temporary, options));
    return describe(known, folder);
  };
  if (options.force !== true && isReadOnly(options) && (await isFolder(folder))) return openKnown(known, options);
  expectWritable(options, `${known.name} cannot be fetched`);
  return storing(options.modelsDir ?? options.cacheDir, async () => {
    await makeOpenFolder(dirname(folder)); // else the lock makes it, for this user alone
    return lockUnlessAborted(join(dirname(folder), '.lock'), place, options.signal);
  });
}

/** As `withLock`; a wait for the lock ends with the signal, the work itself ends in its own way. */
async function lockUnlessAborted<T>(path: string, work: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return withLock(path, work);
  signal.throwIfAborted();
  const aborted = Promise.withResolvers<never>();
  const fail = (): void => aborted.reject(signal.reason);
  signal.addEventListener('abort', fail, { once: true });
  const done = withLock(path, async () => {
    signal.throwIfAborted(); // nobody waits for it any more: given back as soon as it is had
    signal.removeEventListener('abort', fail);
    return work();
  });
  return Promise.race([done, aborted.promise]).finally(() => signal.removeEventListener('abort', fail));
}

/**
 * Hashes every file again, and the graphs made from them. MODEL_CORRUPT names those that differ; MODEL_UNAVAILABLE when
 * the model is not stored.
 */
export async function verifyModel(name: string, options: StoreOptions): Promise<VerifiedModel> {
  const known = await findModel(name, options);
  const folder = folderOf(known, options);
  if (!(await isFolder(folder))) throw notStored(known, folder);
  const pins = pinnedFiles(known);
  await verifyFiles(known.name, folder, pins, options);
  const graphs = await keptGraphs(known.name, options.cacheDir);
  const damaged = graphs.filter(({ problem }) => problem !== undefined && problem !== NO_DIGEST);
  if (damaged.length > 0)
    throw new ShoalError(
      'MODEL_CORRUPT',
      `the files of ${name} are whole, but not what was built from them:` +
        `${damaged.map(({ path, problem }) => `\n  ${path} ${problem}`).join('')}\nThe next start that needs it ` +
        'builds it again; or delete it',
      { name, graphs: damaged },
    );
  const files = Object.entries(pins).map(([path, pin]) => ({ path, ...pin }));
  return { model: await describe(known, folder), files, graphs };
}

/** Every known model and whether it is stored, then those that were imported, also those that cannot be opened. */
export async function listModels(options: StoreOptions): Promise<readonly ModelListing[]> {
  const known = await Promise.all(
    KNOWN_MODELS.map((model) => listing(model, options).catch((error: unknown) => unopenable(model.name, error))),
  );
  const imported = await Promise.all(
    (await importedNames(modelsFolder(options))).map((name) =>
      findModel(name, options)
        .then((model) => listing(model, options))
        .catch((error: unknown) => unopenable(name, error)),
    ),
  );
  return [...known, ...imported];
}

async function listing(model: KnownModel, options: StoreOptions): Promise<ModelListing> {
  const { name, description, licence } = model;
  return {
    name,
    description,
    licence,
    kind: model.origin === 'imported' ? model.kind : 'embedder',
    revision: await revisionOf(model),
    bytes: Object.values(pinnedFiles(model)).reduce((sum, pin) => sum + pin.bytes, 0),
    isStored: await isFolder(folderOf(model, options)),
    isForTests: model.origin === 'generated',
    ...(model.origin === 'quantized' && { filesOf: model.base.name }),
    ...(model.origin === 'imported' && { notes: model.notes }),
    ...(model.origin === 'imported' && model.hub && { hub: `${model.hub.repository}@${model.hub.commit}` }),
  };
}

function unopenable(name: string, error: unknown): ModelListing {
  if (!isShoalError(error)) throw error;
  const nothing = { kind: 'embedder' as const, description: '', licence: 'unknown', revision: 'unknown', bytes: 0 };
  return { name, ...nothing, isStored: false, isForTests: false, problem: error.message };
}

/** The queue of a model by its name in the store or on the hub; of one that nobody knows, as of an embedder. */
export async function queueOfNamed(name: string, options: StoreOptions): Promise<string> {
  const known = await findModel(name, options).catch((error: unknown) => {
    if (!isShoalError(error)) throw error;
    return undefined;
  });
  if (known === undefined) return mainQueue(name);
  return queueOf({ name: known.name, kind: known.origin === 'imported' ? known.kind : 'embedder' });
}

/** A model by its name in the store or on the hub, stored or not. MODEL_UNKNOWN with those that there are. */
export async function findModel(name: string, options: StoreOptions): Promise<KnownModel> {
  const models = modelsFolder(options);
  const found = isHubName(name)
    ? await findHubModel(parseHubName(name), models)
    : (KNOWN_MODELS.find((known) => known.name === name) ?? (await findImported(name, models)));
  if (found === undefined && isHubName(name))
    throw new ShoalError('MODEL_UNAVAILABLE', `${name} is not in ${models}: shoal model pull ${name} fetches it`, {
      name,
    });
  if (found === undefined)
    throw unknownModel(name, [...KNOWN_MODELS.map((known) => known.name), ...(await importedNames(models))]);
  return found;
}

async function fillFolder(
  known: DownloadedModel | GeneratedModel,
  folder: string,
  options: PullOptions,
): Promise<void> {
  let source = 'generated';
  if (known.origin === 'download') source = await fetchModelFiles(known, folder, options);
  else await writeGenerated(known, folder);
  await verifyFiles(known.name, folder, pinnedFiles(known)); // the bytes on the disk, whatever was checked on the way
  await writeLicence(known, folder, source);
}

async function writeGenerated(known: GeneratedModel, folder: string): Promise<void> {
  for (const [path, bytes] of generatedFiles(known).contents) {
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await writeFile(join(folder, path), bytes);
  }
}

async function writeLicence(known: KnownModel, folder: string, source: string): Promise<void> {
  const text = LICENCE_TEXTS[known.licence];
  if (text !== undefined) await copyFile(text, join(folder, 'LICENSE'));
  await writeFile(
    join(folder, 'NOTICE'),
    `${known.attribution}\nLicence: ${known.licence}, see LICENSE.\nFetched from ${source}; files unchanged.\n`,
  );
}

async function describe(known: KnownModel, folder: string): Promise<StoredModel> {
  if (known.origin === 'imported') return describeImported(known, folder);
  const { name, licence, prompts } = known;
  const revision = await revisionOf(known);
  const canary = knownCanary(name, revision);
  const given = { name, folder, licence, prompts, weightsSha256: weightsOf(known), revision, canary };
  return describeModel(
    known.origin === 'quantized' ? { ...given, dtype: 'int8', calibration: known.calibration } : given,
  );
}

/** Where its files lie, or would. */
export function folderOf(known: KnownModel, options: StoreOptions): string {
  const models = modelsFolder(options);
  if (known.origin === 'imported') return join(models, known.name, known.revision);
  const { name } = known.origin === 'quantized' ? known.base : known;
  return join(models, name, weightsOf(known).slice(0, REVISION_DIGITS));
}

/** Results of one revision are taken for results of the same request, so whatever changes vectors changes it. */
async function revisionOf(known: KnownModel): Promise<string> {
  if (known.origin === 'imported') return known.revision;
  if (known.origin !== 'quantized') return weightsOf(known).slice(0, REVISION_DIGITS);
  const facts = [weightsOf(known), 'int8', QUANTIZER_VERSION, await readModelFile(known.calibration)].join();
  return createHash('sha256').update(facts).digest('hex').slice(0, REVISION_DIGITS);
}

function weightsOf(known: KnownModel): string {
  const weights = pinnedFiles(known)['model.safetensors'];
  if (weights === undefined) throw new ShoalError('MODEL_CORRUPT', `the model ${known.name} is known without weights`);
  return weights.sha256;
}

/** FILE_UNREADABLE where this user may not look. */
export async function isFolder(path: string): Promise<boolean> {
  return (await whereReadable(path, (each) => stat(each)))?.isDirectory() === true;
}

export function notStored(known: KnownModel, folder: string): ShoalError {
  const cure =
    known.origin !== 'imported'
      ? `shoal model pull ${known.name} fetches it`
      : known.hub === undefined
        ? `shoal model import … --name ${known.name} brings it back`
        : `shoal model pull ${known.hub.repository} fetches it`;
  return new ShoalError(
    'MODEL_UNAVAILABLE',
    `the model ${JSON.stringify(known.name)} is not stored in ${folder}: ${cure}`,
    { name: known.name, folder },
  );
}

// A model of the hub into the store: its commit is found out, its files chosen, fetched beside the models and imported
// as a folder of a person is (import-model.ts), proof and canary included. What has arrived stays when the connection,
// the disk or this process ends it, and the same command goes on; what cannot be used goes. From then on the store knows
// the commit, and nothing asks the hub again unless told to.

import { mkdir, mkdtemp, readFile, readdir, rm, rmdir, stat, statfs } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ShoalError, isShoalError } from '@shoal/contract';
import { withLock, type OnProgress, type RetryTerms } from '@shoal/fetch';
import { CheckedJson } from '../checked-json.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import { refuseBySmallFiles, type ProveModel } from '../store/import-files.ts';
import { importModel, refuseTakenName, type ImportOptions, type ImportReport } from '../store/import-model.ts';
import { hasAdapters } from '../store/merge-adapter.ts';
import { isStaticConfig } from '../store/module-layout.ts';
import { checkModelName, describeImported, findImported } from '../store/imported-models.ts';
import { expectWritable, modelsFolder, type StoreOptions } from '../store/store-folders.ts';
import { storing } from '../store/storing.ts';
import { chooseFiles, type ChosenFiles, type Repository } from './choose-files.ts';
import { HubClient, type HubFile, type HubRevision } from './hub-client.ts';
import { storeNameOf, type HubName } from './hub-name.ts';
import { HubSettings, type Environment } from './hub-settings.ts';
import { knownHubModel } from './known-hub-models.ts';

export interface FetchedFacts {
  readonly repository: string;
  readonly commit: string;
  readonly licence: string;
  /** Of all files that are taken, and of those, what is still to come. */
  readonly bytes: number;
  readonly bytesLeft: number;
}

export interface HubPullOptions extends StoreOptions {
  /** What to call it in the store; default: the hub's name in lower case, "/" as "--", all else "-". */
  readonly name?: string | undefined;
  /** Whose adapter is merged, of a model that has one for each task. */
  readonly task?: string | undefined;
  /** Replace another model of this name. */
  readonly force?: boolean | undefined;
  /** Look for a newer commit than the one that is stored, or that Shoal knows. */
  readonly update?: boolean | undefined;
  readonly prove: ProveModel | undefined;
  readonly environment: Environment;
  readonly onProgress?: OnProgress | undefined;
  /** Told once, before the first large file. */
  readonly onStart?: ((facts: FetchedFacts) => void) | undefined;
  readonly onWait?: ((why: string, waitMs: number) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly retries?: RetryTerms | undefined;
}

/** Longer than any download takes; the lock of a process that died is taken over at once. */
const LOCK_TIMEOUT_MS = 24 * 3_600_000;
const PULLS = '.pull';

/**
 * Fetches and imports, replacing what is stored under the name. MODEL_UNAVAILABLE says what the hub refused,
 * MODEL_CORRUPT what in the files cannot be used, FILE_UNWRITABLE that there is no room; nothing is stored then.
 */
export async function pullFromHub(asked: HubName, options: HubPullOptions): Promise<ImportReport> {
  const name = refuseTakenName(checkModelName(options.name ?? storeNameOf(asked, options.task)));
  const settings = await HubSettings.read(options.environment);
  if (settings.isOffline)
    throw new ShoalError(
      'MODEL_UNAVAILABLE',
      `${asked.repository} is not in the store, and HF_HUB_OFFLINE keeps the hub out: unset it, or copy the folder of ` +
        'the models from a machine that has it',
      { repository: asked.repository },
    );
  expectWritable(options, `${asked.repository} cannot be fetched`);
  const pulls = join(modelsFolder(options), PULLS);
  return storing(options.modelsDir ?? options.cacheDir, async () => {
    await mkdir(pulls, { recursive: true, mode: 0o700 });
    const lock = join(pulls, `${name}.lock`);
    try {
      return await withLock(lock, () => pull(asked, { ...options, name, settings, pulls }), {
        timeoutMs: LOCK_TIMEOUT_MS,
        signal: options.signal,
      });
    } finally {
      await rmdir(pulls).catch(() => undefined); // only when nothing is in it
    }
  });
}

interface Pull extends HubPullOptions {
  readonly name: string;
  readonly settings: HubSettings;
  readonly pulls: string;
}

async function pull(asked: HubName, options: Pull): Promise<ImportReport> {
  const { settings, signal, retries, onWait, name, pulls } = options;
  const client = new HubClient({ settings, signal, retries, onWait });
  const notes: string[] = [];
  const known = knownHubModel(asked.repository);
  const wanted = asked.revision ?? (options.update === true ? undefined : known?.commit) ?? 'main';
  let revision = await client.revision(asked.repository, wanted);
  const there = await findThere(revision, options);
  if (there !== undefined) return there;
  const folderFor = ({ commit }: HubRevision): string => join(pulls, `${name}@${commit}`);
  const look = async (): Promise<ChosenFiles> => {
    const label = `${revision.repository}@${revision.commit.slice(0, 12)}`;
    const repository = { label, files: await client.files(revision.repository, revision.commit) };
    return chooseIn(folderFor(revision), repository, (file, destination) =>
      client.fetchFile(revision, file, { destination }),
    );
  };
  let chosen: ChosenFiles;
  try {
    chosen = await look();
  } catch (error) {
    await rmdirs(folderFor(revision), error);
    if (!isWithoutWeights(error) || asked.revision !== undefined || wanted === 'main') throw error;
    revision = await client.revision(asked.repository, 'main');
    notes.push(
      `the commit that Shoal knows, ${wanted.slice(0, 12)}, has no weights that can be read: main is taken instead`,
    );
    chosen = await look();
  }
  const folder = folderFor(revision);
  const report = await fetchAndImport({ client, revision, chosen, folder, notes, wanted }, options);
  await removePulls(pulls, name);
  return report;
}

/**
 * This commit, where somebody else fetched it meanwhile. USAGE where the name is another model's: two names of the hub may
 * give one name in the store, and one queue, and are never mixed.
 */
async function findThere({ repository, commit }: HubRevision, options: Pull): Promise<ImportReport | undefined> {
  if (options.force === true) return undefined;
  const models = modelsFolder(options);
  const there = await findImported(options.name, models);
  if (there === undefined) return undefined;
  const isIt = there.derived === undefined && there.hub?.repository.toLowerCase() === repository.toLowerCase();
  if (isIt && there.hub?.task === options.task) {
    if (there.hub?.commit !== commit) return undefined; // to be replaced
    return { model: await describeImported(there, join(models, there.name, there.revision)), notes: [] };
  }
  throw new ShoalError(
    'USAGE',
    `${repository} would be called ${options.name}, and so would its queue, but that is ${there.description}` +
      `${there.hub?.task === undefined ? '' : ` with the adapter of ${there.hub.task}`}. Choose ` +
      `another name with --name (shoal model pull ${repository} --name …), or replace it with --force`,
    { name: options.name, repository, there: there.hub?.repository },
  );
}

/** A commit whose files are of no use is not kept, and what may be used later is. */
async function rmdirs(folder: string, error: unknown): Promise<void> {
  if (isShoalError(error, 'MODEL_CORRUPT') || isWithoutWeights(error))
    await rm(folder, { recursive: true, force: true });
}

function isWithoutWeights(error: unknown): boolean {
  return isShoalError(error, 'MODEL_UNAVAILABLE') && 'found' in error.fields;
}

/** Everything that this name has begun to fetch; also what no pull will ask for again. */
export async function removePulls(pulls: string, name: string): Promise<void> {
  for (const entry of await readdir(pulls).catch(() => []))
    if (entry.startsWith(`${name}@`)) await rm(join(pulls, entry), { recursive: true, force: true });
}

/** Where unfinished pulls of a store lie. */
export function pullsFolder(options: StoreOptions): string {
  return join(modelsFolder(options), PULLS);
}

async function chooseIn(
  folder: string,
  repository: Repository,
  fetchTo: (file: HubFile, destination: string) => Promise<void>,
): Promise<ChosenFiles> {
  const read = async (file: HubFile): Promise<string> => {
    const destination = await placeFor(folder, file);
    await fetchTo(file, destination);
    return readFile(destination, 'utf8');
  };
  return chooseFiles(repository, read, undescribed);
}

/** Why no graph of ours computes this config; undefined where one does. */
function undescribed(text: string, where: string): string | undefined {
  try {
    const json = CheckedJson.parse(text, where);
    // adapters are refused by what an import does with them, a static model is read with its tensors
    if (!hasAdapters(json) && !isStaticConfig(json)) describeEncoder(json);
    return undefined;
  } catch (error) {
    if (isShoalError(error)) return error.message;
    throw error;
  }
}

async function placeFor(folder: string, { path }: HubFile): Promise<string> {
  const destination = join(folder, ...path.split('/'));
  await mkdir(dirname(destination), { recursive: true, mode: 0o700 });
  return destination;
}

interface Found {
  readonly client: HubClient;
  readonly revision: HubRevision;
  readonly chosen: ChosenFiles;
  readonly folder: string;
  readonly notes: string[];
  readonly wanted: string;
}

async function fetchAndImport(found: Found, options: Pull): Promise<ImportReport> {
  const { client, revision, chosen, folder, notes, wanted } = found;
  const { name, task, onProgress, onStart } = options;
  const bytes = chosen.files.reduce((sum, file) => sum + file.bytes, 0);
  const bytesLeft = bytes - (await bytesOf(folder));
  await expectRoom(found, bytesLeft, options);
  const { repository, commit, licence } = revision;
  onStart?.({ repository, commit, licence, bytes, bytesLeft });
  let before = 0;
  const fetchAll = async (files: readonly HubFile[]): Promise<void> => {
    for (const file of files.toSorted((a, b) => a.bytes - b.bytes)) {
      await client.fetchFile(revision, file, {
        destination: await placeFor(folder, file),
        onProgress: (arrived) => onProgress?.(before + arrived, bytes),
      });
      before += file.bytes;
    }
  };
  await fetchAll(chosen.files.filter((file) => !isWeights(file)));
  await inWordsOf(revision, folder, async () => {
    const rehearsal = await mkdtemp(join(options.pulls, `${name}@rehearsal-`));
    await refuseBySmallFiles(folder, rehearsal, options.task).finally(() => rm(rehearsal, { recursive: true }));
  });
  await fetchAll(chosen.files.filter(isWeights));
  const prompts = await conventionalPrompts(repository, folder, notes);
  const taken: ImportOptions = {
    cacheDir: options.cacheDir,
    modelsDir: options.modelsDir,
    name,
    prove: options.prove,
    force: true,
    task,
    hub: { repository, commit, asked: wanted, licence, files: chosen.files, ...(task !== undefined && { task }) },
    hubNotes: notes,
    ...(prompts && { prompts }),
  };
  return inWordsOf(revision, folder, () =>
    importModel(chosen.graph === undefined ? folder : join(folder, chosen.graph), taken),
  );
}

function isWeights({ path }: HubFile): boolean {
  return /\.(?:safetensors|onnx|onnx_data|onnx\.data)$/.test(path);
}

/** Runs what reads the fetched files. Its refusals name the repository: the folder is nothing that a person knows, and gone. */
async function inWordsOf<T>({ repository, commit }: HubRevision, folder: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    await rmdirs(folder, error);
    if (!isShoalError(error)) throw error;
    const message = error.message.replaceAll(folder, `${repository}@${commit.slice(0, 12)}`);
    throw new ShoalError(error.code, message, { ...error.fields, folder: repository }, error.cause);
  }
}

/** Those of the table of known models, where the files name none. */
async function conventionalPrompts(
  repository: string,
  folder: string,
  notes: string[],
): Promise<ImportOptions['prompts']> {
  const known = knownHubModel(repository)?.prompts;
  if (known === undefined) return undefined;
  const path = join(folder, 'config_sentence_transformers.json');
  const text = await readFile(path, 'utf8').catch(() => '{}');
  const json = CheckedJson.parse(text, path);
  if (
    json.has('prompts') &&
    json
      .object('prompts')
      .keys()
      .some((key) => json.object('prompts').string(key) !== '')
  )
    return undefined;
  notes.push(
    `its files name no prompts; by its authors' convention ${Object.entries(known)
      .map(([kind, prompt]) => `--prompt ${kind} is ${JSON.stringify(prompt)}`)
      .join(' and ')}`,
  );
  return known;
}

/** FILE_UNWRITABLE before anything large is fetched, where it would not fit. */
async function expectRoom({ revision, chosen }: Found, bytesLeft: number, options: Pull): Promise<void> {
  const models = modelsFolder(options);
  const { bavail, bsize } = await statfs(models);
  const isOneDisk = (await stat(models)).dev === (await stat(options.cacheDir).catch(() => undefined))?.dev;
  const weights = chosen.files.filter(({ path }) => path.endsWith('.safetensors'));
  // a graph holds its weights once more, in the cache folder
  const graphBytes = isOneDisk ? weights.reduce((sum, file) => sum + file.bytes, 0) : 0;
  const [needBytes, freeBytes] = [bytesLeft + graphBytes, bavail * bsize];
  if (needBytes <= freeBytes) return;
  throw new ShoalError(
    'FILE_UNWRITABLE',
    `${revision.repository} needs ${megabytes(needBytes)} in ${models} (${megabytes(bytesLeft)} to fetch, ` +
      `${megabytes(graphBytes)} for the graph made of it), and ${megabytes(freeBytes)} are free: free some space, or ` +
      'choose another folder with modelsDir (SHOAL_MODELS_DIR) or cacheDir (SHOAL_CACHE_DIR)',
    { path: models, reason: 'ENOSPC', needBytes, freeBytes },
  );
}

async function bytesOf(folder: string): Promise<number> {
  let bytes = 0;
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []))
    if (entry.isFile()) bytes += (await stat(join(entry.parentPath, entry.name))).size;
  return bytes;
}

function megabytes(bytes: number): string {
  return `${Math.ceil(bytes / 1e6).toLocaleString('en')} MB`;
}

// Models that a person brought: read back from their own folders. What they are made of stands in import.json beside
// the files, with a digest of each, so that opening and verifying them is the same as for models that Shoal knows by
// itself.

import { createHash } from 'node:crypto';
import { readFile, readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { ShoalError, type ModelKind } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import { parseHubOrigin, type HubOrigin } from '../hub/hub-origin.ts';
import { canaryText, parseCanary, type Canary } from './canaries.ts';
import type { ModelFacts } from './model-facts.ts';
import { derivedEntry, parseDerived, type DerivedFacts } from './derived-facts.ts';
import type { Pins } from './model-files.ts';
import { whereReadable } from './readable.ts';
import { describeModel, type OnnxFacts, type StoredModel } from './stored-model.ts';

export interface ImportedModel extends ModelFacts {
  readonly origin: 'imported';
  /** Left out of import.json by those who knew embedders alone. */
  readonly kind: ModelKind;
  /** A hash of the digests of all files. */
  readonly revision: string;
  readonly files: Pins;
  /** Set for a model that came as a graph. */
  readonly onnx?: OnnxFacts;
  /** What its import assumed, or does in another way than its files say. */
  readonly notes: readonly string[];
  /** What it gave for one text when it was imported. */
  readonly canary?: Canary;
  /** Set for a model that was made of another one by keeping its weights smaller. */
  readonly derived?: DerivedFacts;
  /** Set for a model that was pulled from a hub. */
  readonly hub?: HubOrigin;
}

export const MANIFEST = 'import.json';
/** Beside the weights of an int8 form. */
export const CALIBRATION_FILE = 'calibration.json';
/** The name is a folder and, unchanged, a part of queue names. */
const NAME = /^[a-z0-9](?:[a-z0-9-]{0,94}[a-z0-9])?$/;
/** Queues that end so are the CPU lane, the simulated device and the quarantine of another model. */
const RESERVED_END = /-(?:cpu|sim|quarantine)$/;
/** Raised when an import does what it did not do before: earlier ones are then brought in again. */
const MANIFEST_VERSION = 3;
/** Of forms that earlier versions of Shoal do not know: they would compute what they were made of under their name. */
const LATER_FORMS_VERSION = 4;

/** Throws USAGE unless a model may be called this: its queue would be another model's. */
export function checkModelName(name: string): string {
  const end = RESERVED_END.exec(name)?.[0];
  if (NAME.test(name) && end === undefined) return name;
  const clash =
    end === undefined
      ? ''
      : `: its queue embed-${name} would be that of ${name.slice(0, -end.length)} (${OWNERS[end]})`;
  throw new ShoalError(
    'USAGE',
    `${JSON.stringify(name)} cannot be the name of a model${clash}: up to 96 of a-z, 0-9 and "-", beginning and ` +
      'ending with a letter or digit, not ending in "-cpu", "-sim" or "-quarantine". Choose one with --name',
    { name },
  );
}

const OWNERS: Readonly<Record<string, string>> = {
  '-cpu': 'the lane of CPU workers',
  '-sim': 'the one of simulated devices',
  '-quarantine': 'its quarantine, whose jobs a worker would delete',
};

/** The revision under which files were imported under this name in this folder, whatever version of Shoal did it. */
export async function importedRevision(name: string, models: string): Promise<string | undefined> {
  const parent = join(models, name);
  for (const revision of (await readdir(parent).catch(() => [])).filter((entry) => !entry.startsWith('.')))
    if ((await stat(join(parent, revision, MANIFEST)).catch(() => undefined)) !== undefined) return revision;
  return undefined;
}

/** The imported model of this name in this folder of models, or undefined; FILE_UNREADABLE where it is closed. */
export async function findImported(name: string, models: string): Promise<ImportedModel | undefined> {
  if (!NAME.test(name)) return undefined;
  const parent = join(models, name);
  const entries = (await whereReadable(parent, (path) => readdir(path))) ?? [];
  for (const revision of entries.filter((entry) => !entry.startsWith('.'))) {
    const path = join(parent, revision, MANIFEST);
    const text = await whereReadable(path, (each) => readFile(each, 'utf8'));
    if (text !== undefined) return parseManifest(text, path, { name, revision });
  }
  return undefined;
}

/** Names in a folder of models that hold an imported one. */
export async function importedNames(models: string): Promise<readonly string[]> {
  const names: string[] = [];
  for (const name of await readdir(models).catch(() => [])) {
    const entries = NAME.test(name) ? await readdir(join(models, name), { recursive: true }).catch(() => []) : [];
    if (entries.some((entry) => /^[^./\\][^/\\]*[/\\]import\.json$/.test(entry))) names.push(name);
  }
  return names.sort();
}

export function describeImported(model: ImportedModel, folder: string): Promise<StoredModel> {
  const { name, kind, licence, prompts, defaultPrompt, revision, files, onnx, canary, derived } = model;
  const weightsSha256 = weightsDigest(files);
  if (weightsSha256 === undefined)
    throw new ShoalError('MODEL_CORRUPT', `${join(folder, MANIFEST)} names no weights: import the model again`, {
      folder,
    });
  return describeModel({
    name,
    kind,
    folder,
    licence,
    prompts,
    revision,
    files,
    weightsSha256,
    ...(defaultPrompt !== undefined && { defaultPrompt }),
    ...(onnx && { onnx }),
    ...(canary && { canary }),
    ...(derived && { dtype: derived.dtype }),
    ...(derived?.dtype === 'int8' && { calibration: join(folder, CALIBRATION_FILE) }),
  });
}

/** Of the one file of weights; of several a digest of their names and digests. Undefined where there are none. */
function weightsDigest(files: Pins): string | undefined {
  const single = files['model.safetensors'] ?? files['model.onnx'];
  if (single !== undefined) return single.sha256;
  const shards = Object.entries(files).filter(([path]) => /^[^/]+\.safetensors$/.test(path));
  if (shards.length === 0) return undefined;
  const facts = shards.map(([path, { sha256 }]) => [path, sha256]).sort();
  return createHash('sha256').update(JSON.stringify(facts)).digest('hex');
}

export function manifestText(model: ImportedModel): string {
  const { canary, derived, ...facts } = model;
  const manifest = {
    version: derived?.dtype === 'f16' ? LATER_FORMS_VERSION : MANIFEST_VERSION,
    ...facts,
    ...(canary && { canary: canaryText(canary) }),
    ...(derived && derivedEntry(derived)),
  };
  return `${JSON.stringify(manifest, null, 1)}\n`;
}

function parseManifest(
  text: string,
  path: string,
  given: { readonly name: string; readonly revision: string },
): ImportedModel {
  const json = CheckedJson.parse(text, path);
  if (json.integer('version') !== (json.has('f16') ? LATER_FORMS_VERSION : MANIFEST_VERSION))
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${path} was written by another version of Shoal, which looked at fewer of a model's files: import the model ` +
        `again, shoal model import … --name ${given.name} --force`,
      { path },
    );
  const [files, prompts] = [json.object('files'), json.object('prompts')];
  const pins = Object.fromEntries(
    files
      .keys()
      .map((file) => [
        file,
        { bytes: files.object(file).integer('bytes'), sha256: files.object(file).string('sha256') },
      ]),
  );
  const derived = parseDerived(json, given.name);
  const facts = {
    description: json.string('description'),
    licence: json.string('licence'),
    attribution: json.string('attribution'),
    prompts: Object.fromEntries(prompts.keys().map((prompt) => [prompt, prompts.string(prompt)])),
    ...(json.has('defaultPrompt') && { defaultPrompt: json.string('defaultPrompt') }),
  };
  return {
    ...given,
    ...facts,
    origin: 'imported',
    kind: parseKind(json),
    files: pins,
    notes: json.list('notes').map(String),
    ...(json.has('canary') && { canary: parseCanary(json.object('canary')) }),
    ...(json.has('onnx') && { onnx: parseOnnx(json.object('onnx')) }),
    ...(derived && { derived }),
    ...(json.has('hub') && { hub: parseHubOrigin(json.object('hub')) }),
  };
}

function parseKind(json: CheckedJson): ModelKind {
  const kind = json.has('kind') ? json.string('kind') : 'embedder';
  if (kind === 'embedder' || kind === 'reranker') return kind;
  throw new ShoalError(
    'MODEL_CORRUPT',
    `${json.where}: "kind" is ${JSON.stringify(kind)}; this version serves "embedder" and "reranker"`,
    { where: json.where },
  );
}

function parseOnnx(json: CheckedJson): OnnxFacts {
  const precision = (['fp32', 'fp16', 'int8'] as const).find((known) => known === json.string('precision')) ?? 'fp32';
  return {
    dims: json.integer('dims', 1),
    isNormalized: json.boolean('isNormalized'),
    positions: json.integer('positions', 1),
    vocabularySize: json.integer('vocabularySize', 1),
    precision,
  };
}

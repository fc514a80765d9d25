// Makes NAME-int8 or NAME-f16 of the imported model NAME: the same files, with calibration.json beside those of int8, a name, a
// revision and a queue of its own. The frozen passages run through both, and how near the vectors come is written into
// import.json. Where they do not come near enough nothing is stored. What differs from one form to another: derived-forms.ts.
// Runs no graph itself: whoever calls brings the engine.

import { createHash } from 'node:crypto';
import { copyFile, link, mkdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { sha256File, withLock } from '@shoal/fetch';
import { dataPath, graphPaths, openGraph } from '../graph/open-graph.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import type { DerivedFacts } from './derived-facts.ts';
import { DERIVED_FORMS, type WeightDtype } from './derived-forms.ts';
import type { ProveModel } from './import-files.ts';
import { refuseTakenName } from './import-model.ts';
import {
  CALIBRATION_FILE,
  MANIFEST,
  checkModelName,
  describeImported,
  findImported,
  manifestText,
  type ImportedModel,
} from './imported-models.ts';
import { calibrationOf, type RowsOf, type RunGraph } from './int8-calibration.ts';
import { nearnessOf } from './likeness.ts';
import { verifyFiles, type Pins } from './model-files.ts';
import { placeFolderIn } from './place-folder.ts';
import { expectWritable, modelsFolder, type StoreOptions } from './store-folders.ts';
import { REVISION_DIGITS, readDescription, type StoredModel } from './stored-model.ts';
import { storing } from './storing.ts';

export interface DerivedOptions extends StoreOptions {
  readonly runGraph: RunGraph;
  /** As for an import: what it gives for one text is asked of every device that serves it. */
  readonly prove?: ProveModel | undefined;
  /** Replace an imported model of this name that was not made of this one. */
  readonly force?: boolean | undefined;
  /** Told before the minutes that it may take. */
  readonly onStart?: ((facts: { readonly name: string; readonly texts: number }) => void) | undefined;
  /** What the two are compared on; default: the frozen passages. */
  readonly passages?: readonly string[] | undefined;
}

export interface DerivedReport {
  readonly model: StoredModel;
  readonly facts: DerivedFacts;
}

const CALIBRATION = new URL('../../calibration/', import.meta.url);
/** Calibrating a model of billions of weights on a slow machine takes hours, and another process may wait for it. */
const LOCK_TIMEOUT_MS = 24 * 3_600_000;

/**
 * The form `dtype` of the imported model `base`, made if it is not there. MODEL_UNAVAILABLE where it has none: its vectors
 * would be too far from the model's (with the figures), or it came as a graph; USAGE for its name and for models that
 * Shoal brings itself. Nothing is stored then.
 */
export async function importDerived(
  base: StoredModel,
  dtype: WeightDtype,
  options: DerivedOptions,
): Promise<DerivedReport> {
  const models = modelsFolder(options);
  const known = await expectBase(base, dtype, models);
  const name = refuseTakenName(checkModelName(`${base.name}-${dtype}`));
  const before = await earlier(name, models);
  const there = before?.derived?.dtype === dtype && before.derived.base === base.name ? before.derived : undefined;
  if (before !== undefined && there === undefined && options.force !== true)
    throw new ShoalError(
      'USAGE',
      `the ${dtype} form of ${base.name} would be called ${name}, and another model has this name (${before.description}): ` +
        `import ${base.name} under another name with --name, or replace ${name} with --force`,
      { name },
    );
  if (before !== undefined && there?.baseRevision === base.revision && options.force !== true) {
    const folder = join(models, name, before.revision);
    if ((await stat(folder).catch(() => undefined)) !== undefined)
      return { model: await describeImported(before, folder), facts: there };
  }
  expectWritable(options, `${name} cannot be made`);
  return storing(options.modelsDir ?? options.cacheDir, () =>
    withLock(join(models, `.${name}.lock`), () => make({ known, base, dtype, name }, options), {
      timeoutMs: LOCK_TIMEOUT_MS,
    }),
  );
}

async function expectBase(base: StoredModel, dtype: WeightDtype, models: string): Promise<ImportedModel> {
  const unavailable = (why: string): ShoalError =>
    new ShoalError('MODEL_UNAVAILABLE', `${base.name} has no ${dtype} form: ${why}`, { name: base.name });
  if (base.kind !== 'embedder') throw unavailable(`it is a reranker, and ${dtype} is for embedders`);
  if (base.graphKind === 'imported')
    throw unavailable(`it came as a graph, and ${dtype} is made from weights. Import a folder with model.safetensors`);
  const known = await findImported(base.name, models);
  const made = known?.derived;
  if (made !== undefined) throw unavailable(`it is the ${made.dtype} form of ${made.base} already`);
  if (known !== undefined) {
    const { layers } = await readDescription(base.folder);
    if (layers === 0) throw unavailable('it has no layers: a table of rows, which are added up in fp32 as they are');
    return known;
  }
  const other =
    base.name === 'minilm' && dtype === 'int8' ? `; minilm's is the model minilm-int8, which Shoal knows` : '';
  throw new ShoalError('USAGE', `${dtype} forms are made of models that were imported or pulled from a hub${other}`, {
    name: base.name,
  });
}

/** What has this name; one of another version of Shoal is as good as absent. */
function earlier(name: string, models: string): Promise<ImportedModel | undefined> {
  return findImported(name, models).catch((error: unknown) => {
    if (error instanceof ShoalError && error.code === 'MODEL_CORRUPT') return undefined;
    throw error;
  });
}

interface Making {
  readonly known: ImportedModel;
  readonly base: StoredModel;
  readonly dtype: WeightDtype;
  readonly name: string;
}

async function make(making: Making, options: DerivedOptions): Promise<DerivedReport> {
  const { known, base, name } = making;
  const models = modelsFolder(options);
  const before = await earlier(name, models);
  const graphsBefore = await graphPaths(name, options.cacheDir);
  const parent = join(models, name);
  const made: { model: ImportedModel; facts: DerivedFacts }[] = [];
  try {
    const folder = await placeFolderIn(parent, async (temporary) => {
      for (const path of Object.keys(known.files)) await take(join(base.folder, path), join(temporary, path));
      const one = await fill(temporary, making, options);
      made.push(one);
      return one.model.revision;
    });
    const { model, facts } = made[0]!;
    if (before !== undefined && before.revision !== model.revision)
      await rm(join(parent, before.revision), { recursive: true, force: true });
    return { model: await describeImported(model, folder), facts };
  } catch (error) {
    for (const path of await graphPaths(name, options.cacheDir))
      if (!graphsBefore.includes(path))
        for (const file of [path, dataPath(path)])
          for (const gone of [file, `${file}.sha256`]) await rm(gone, { force: true });
    throw error;
  }
}

/** One file under two names where the disk can: nobody writes into files of the store. */
async function take(from: string, to: string): Promise<void> {
  await mkdir(dirname(to), { recursive: true });
  await link(from, to).catch(() => copyFile(from, to));
}

async function fill(
  folder: string,
  { known, base, dtype, name }: Making,
  options: DerivedOptions,
): Promise<{ readonly model: ImportedModel; readonly facts: DerivedFacts }> {
  const { inWords, quantizer, leastCosine } = DERIVED_FORMS[dtype];
  const texts = dtype === 'int8' ? await readTexts('texts.json') : [];
  const passages = options.passages ?? (await readTexts('passages.json'));
  options.onStart?.({ name, texts: texts.length + passages.length });
  const rowsOf = await encoderOf(base);
  if (dtype === 'int8') {
    const given = { runGraph: options.runGraph, inFolder: folder };
    await writeFile(join(folder, CALIBRATION_FILE), await calibrationOf(base, texts, rowsOf, given));
  }
  const files: Pins = {
    ...known.files,
    ...(dtype === 'int8' && { [CALIBRATION_FILE]: await pinOf(join(folder, CALIBRATION_FILE)) }),
  };
  const { prompts, defaultPrompt } = known;
  const revision = createHash('sha256')
    .update(JSON.stringify([files, prompts, defaultPrompt ?? null, dtype, quantizer]))
    .digest('hex')
    .slice(0, REVISION_DIGITS);
  const unmeasured = { dtype, base: base.name, baseRevision: base.revision, quantizer };
  const { canary: _, ...facts } = known;
  const plain: ImportedModel = {
    ...facts,
    name,
    revision,
    files,
    description: `${known.description}, ${inWords}`,
    derived: { ...unmeasured, passages: passages.length, meanCosine: 0, leastCosine: 0, recallAt10: 0 },
  };
  const described = await describeImported(plain, folder);
  const derived = { ...unmeasured, ...(await compare(base, described, rowsOf(passages), options)) };
  if (!(derived.leastCosine >= leastCosine)) throw tooFar(name, derived);
  const whole = { ...plain, derived, ...(options.prove && { canary: await options.prove(described) }) };
  await writeFile(join(folder, MANIFEST), manifestText(whole));
  await verifyFiles(name, folder, files);
  return { model: whole, facts: derived };
}

function tooFar(name: string, { dtype, base, meanCosine, leastCosine, passages }: DerivedFacts): ShoalError {
  const { inWords, leastCosine: asked } = DERIVED_FORMS[dtype];
  return new ShoalError(
    'MODEL_UNAVAILABLE',
    `${name} is not made: ${inWords}, the vectors of ${base} come to lie too far from its own. Over ` +
      `${passages} passages the least cosine is ${leastCosine.toFixed(4)} (mean ${meanCosine.toFixed(4)}), and at least ` +
      `${asked} is asked for. Nothing is stored; ${base} is served in fp32`,
    { name, base, leastCosine, meanCosine },
  );
}

async function readTexts(file: string): Promise<readonly string[]> {
  const list = JSON.parse(await readFile(new URL(file, CALIBRATION), 'utf8')) as (string | { readonly text: string })[];
  return list.map((entry) => (typeof entry === 'string' ? entry : entry.text));
}

async function pinOf(path: string): Promise<Pins[string]> {
  return { bytes: (await stat(path)).size, sha256: await sha256File(path) };
}

/** Token ids of texts; the model's prompts, and none, go before one text after the other. */
async function encoderOf(model: StoredModel): Promise<RowsOf> {
  const tokenizer = await openTokenizer(model);
  const prompts = [...new Set(['', ...Object.values(model.prompts)])];
  return (texts) => texts.map((text, at) => [...tokenizer.encode(prompts[at % prompts.length]! + text).ids]);
}

async function compare(
  base: StoredModel,
  made: StoredModel,
  rows: readonly (readonly number[])[],
  { runGraph, cacheDir }: DerivedOptions,
): Promise<Omit<DerivedFacts, 'dtype' | 'base' | 'baseRevision' | 'quantizer'>> {
  const vectorsOf = async (model: StoredModel): Promise<readonly Float32Array[]> => {
    const { dims, precision } = model;
    const vectors: Float32Array[] = [];
    const graph = { path: await openGraph(model, { cacheDir }), dims, precision };
    for await (const vector of runGraph(graph, rows)) vectors.push(vector);
    return vectors;
  };
  const { meanCosine, leastCosine, recallAt10 } = nearnessOf(await vectorsOf(base), await vectorsOf(made));
  return {
    passages: rows.length,
    meanCosine: floored(meanCosine),
    leastCosine: floored(leastCosine),
    recallAt10: floored(recallAt10),
  };
}

/** Downwards: a figure that is written is never better than what was measured. */
function floored(value: number): number {
  return Math.floor(value * 1e6) / 1e6;
}

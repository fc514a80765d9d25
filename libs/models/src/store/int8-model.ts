// Makes NAME-int8 of the imported model NAME: the same files and calibration.json beside them, a name, a revision and a
// queue of its own. The calibration texts of this project run through the model in fp32, with its own tokenizer and
// prompts, and show how large each input of a linear layer becomes (SmoothQuant, Xiao et al. 2023, arXiv 2211.10438); then
// the frozen passages run through both, and how near the vectors come is written into import.json. Where they do not
// come near enough nothing is stored. Runs no graph itself: whoever calls brings the engine.

import { createHash } from 'node:crypto';
import { copyFile, link, mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { sha256File, withLock } from '@shoal/fetch';
import type { Precision } from '@shoal/core';
import { calibrationGraph, type ObservedInput } from '../graph/calibration-graph.ts';
import { useTensors } from '../graph/named-tensors.ts';
import { dataPath, graphPaths, openGraph } from '../graph/open-graph.ts';
import { QUANTIZER_VERSION } from '../graph/quantize.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import type { ProveModel } from './import-files.ts';
import { refuseTakenName } from './import-model.ts';
import {
  MANIFEST,
  checkModelName,
  describeImported,
  findImported,
  manifestText,
  type ImportedModel,
} from './imported-models.ts';
import { CALIBRATION_FILE, type Int8Facts } from './int8-facts.ts';
import { nearnessOf } from './likeness.ts';
import { verifyFiles, type Pins } from './model-files.ts';
import { placeFolderIn } from './place-folder.ts';
import { expectWritable, modelsFolder, type StoreOptions } from './store-folders.ts';
import { REVISION_DIGITS, readDescription, type StoredModel } from './stored-model.ts';
import { storing } from './storing.ts';

/**
 * Below it no text's vector may come to lie. A vector further from its own fp32 one than this is no nearer to it than
 * passages on like matters are to each other, and its neighbours are others; it is what the benches ask of minilm-int8,
 * whose least is 0.998.
 */
export const INT8_LEAST_COSINE = 0.99;

/** Runs rows of token ids through the graph in this file, each alone; gives `dims` values of each, in order. */
export type RunGraph = (
  graph: { readonly path: string; readonly dims: number; readonly precision: Precision },
  rows: readonly (readonly number[])[],
) => AsyncIterable<Float32Array>;

export interface Int8Options extends StoreOptions {
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

export interface Int8Report {
  readonly model: StoredModel;
  readonly facts: Int8Facts;
}

const CALIBRATION = new URL('../../calibration/', import.meta.url);
/** So many calibration texts are also one long one. */
const NEIGHBOURS = 8;
/** Calibrating a model of billions of weights on a slow machine takes hours, and another process may wait for it. */
const LOCK_TIMEOUT_MS = 24 * 3_600_000;

/**
 * The int8 form of the imported model `base`, made if it is not there. MODEL_UNAVAILABLE where it has none: its vectors
 * would be too far from the model's (with the figures), or it came as a graph; USAGE for its name and for models that
 * Shoal brings itself. Nothing is stored then.
 */
export async function importInt8(base: StoredModel, options: Int8Options): Promise<Int8Report> {
  const models = modelsFolder(options);
  const known = await expectBase(base, models);
  const name = refuseTakenName(checkModelName(`${base.name}-int8`));
  const before = await earlier(name, models);
  if (before !== undefined && before.int8?.base !== base.name && options.force !== true)
    throw new ShoalError(
      'USAGE',
      `the int8 form of ${base.name} would be called ${name}, and another model has this name (${before.description}): ` +
        `import ${base.name} under another name with --name, or replace ${name} with --force`,
      { name },
    );
  const isThere =
    before?.int8 !== undefined &&
    before.int8.baseRevision === base.revision &&
    (await stat(join(models, name, before.revision)).catch(() => undefined)) !== undefined;
  if (isThere && options.force !== true)
    return { model: await describeImported(before, join(models, name, before.revision)), facts: before.int8! };
  expectWritable(options, `${name} cannot be made`);
  return storing(options.modelsDir ?? options.cacheDir, () =>
    withLock(join(models, `.${name}.lock`), () => make(known, base, name, options), { timeoutMs: LOCK_TIMEOUT_MS }),
  );
}

async function expectBase(base: StoredModel, models: string): Promise<ImportedModel> {
  const unavailable = (why: string): ShoalError =>
    new ShoalError('MODEL_UNAVAILABLE', `${base.name} has no int8 form: ${why}`, { name: base.name });
  if (base.kind !== 'embedder') throw unavailable('it is a reranker, and int8 is for embedders');
  if (base.graphKind === 'imported')
    throw unavailable('it came as a graph, and int8 is made from weights. Import a folder with model.safetensors');
  if (base.graphKind !== 'fused-fp32') throw unavailable(`it is computed in ${base.precision} already`);
  const known = await findImported(base.name, models);
  if (known !== undefined) {
    const { layers } = await readDescription(base.folder);
    if (layers === 0) throw unavailable('it has no layers, whose products are what int8 makes faster');
    return known;
  }
  const other = base.name === 'minilm' ? `; minilm's is the model minilm-int8, which Shoal knows` : '';
  throw new ShoalError('USAGE', `int8 forms are made of models that were imported or pulled from a hub${other}`, {
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

async function make(known: ImportedModel, base: StoredModel, name: string, options: Int8Options): Promise<Int8Report> {
  const models = modelsFolder(options);
  const before = await earlier(name, models);
  const graphsBefore = await graphPaths(name, options.cacheDir);
  const parent = join(models, name);
  const made: { model: ImportedModel; facts: Int8Facts }[] = [];
  try {
    const folder = await placeFolderIn(parent, async (temporary) => {
      for (const path of Object.keys(known.files)) await take(join(base.folder, path), join(temporary, path));
      const one = await fill(temporary, known, base, name, options);
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
  known: ImportedModel,
  base: StoredModel,
  name: string,
  options: Int8Options,
): Promise<{ readonly model: ImportedModel; readonly facts: Int8Facts }> {
  const texts = await readTexts('texts.json');
  const passages = options.passages ?? (await readTexts('passages.json'));
  options.onStart?.({ name, texts: texts.length + passages.length });
  const rowsOf = await encoderOf(base);
  const long = texts.flatMap((_, at) => (at % NEIGHBOURS === 0 ? [texts.slice(at, at + NEIGHBOURS).join(' ')] : []));
  const maxima = await calibrate(base, rowsOf([...texts, ...long]), { runGraph: options.runGraph, inFolder: folder });
  const calibration = calibrationText(base, texts, maxima);
  await writeFile(join(folder, CALIBRATION_FILE), calibration);
  const files: Pins = { ...known.files, [CALIBRATION_FILE]: await pinOf(join(folder, CALIBRATION_FILE)) };
  const { prompts, defaultPrompt } = known;
  const revision = createHash('sha256')
    .update(JSON.stringify([files, prompts, defaultPrompt ?? null, 'int8', QUANTIZER_VERSION]))
    .digest('hex')
    .slice(0, REVISION_DIGITS);
  const unmeasured = { base: base.name, baseRevision: base.revision, quantizer: QUANTIZER_VERSION };
  const { canary: _, ...facts } = known;
  const plain: ImportedModel = {
    ...facts,
    name,
    revision,
    files,
    description: `${known.description}, in whole numbers of 8 bits`,
    int8: { ...unmeasured, passages: passages.length, meanCosine: 0, leastCosine: 0, recallAt10: 0 },
  };
  const described = await describeImported(plain, folder);
  const int8 = { ...unmeasured, ...(await compare(base, described, rowsOf(passages), options)) };
  if (!(int8.leastCosine >= INT8_LEAST_COSINE)) throw tooFar(name, int8);
  const whole = { ...plain, int8, ...(options.prove && { canary: await options.prove(described) }) };
  await writeFile(join(folder, MANIFEST), manifestText(whole));
  await verifyFiles(name, folder, files);
  return { model: whole, facts: int8 };
}

function tooFar(name: string, { base, meanCosine, leastCosine, passages }: Int8Facts): ShoalError {
  return new ShoalError(
    'MODEL_UNAVAILABLE',
    `${name} is not made: in whole numbers of 8 bits the vectors of ${base} come to lie too far from its own. Over ` +
      `${passages} passages the least cosine is ${leastCosine.toFixed(4)} (mean ${meanCosine.toFixed(4)}), and at least ` +
      `${INT8_LEAST_COSINE} is asked for. Nothing is stored; ${base} is served in fp32`,
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
async function encoderOf(model: StoredModel): Promise<(texts: readonly string[]) => readonly (readonly number[])[]> {
  const tokenizer = await openTokenizer(model);
  const prompts = [...new Set(['', ...Object.values(model.prompts)])];
  return (texts) => texts.map((text, at) => [...tokenizer.encode(prompts[at % prompts.length]! + text).ids]);
}

// ---- calibration ------------------------------------------------------------------------------------------------

type Maxima = ReadonlyMap<ObservedInput['key'], Float32Array>;

/** The largest |activation| of each input of every linear layer that is smoothed, over these rows in fp32. */
async function calibrate(
  model: StoredModel,
  rows: readonly (readonly number[])[],
  { runGraph, inFolder }: { readonly runGraph: RunGraph; readonly inFolder: string },
): Promise<Maxima> {
  const encoder = await readDescription(model.folder);
  const folder = await mkdtemp(join(inFolder, '.calibration-')); // as large as the model: not where room may be short
  try {
    const path = join(folder, 'calibration.onnx');
    const { observed, dims } = await useTensors(model.folder, async (tensors) => {
      const made = calibrationGraph(encoder, tensors);
      await made.graph.write(path, { data: { path: dataPath(path), name: 'calibration.onnx.data' } });
      return made;
    });
    const maxima = new Map(observed.map(({ key, channels }) => [key, new Float32Array(channels)]));
    for await (const largest of runGraph({ path, dims, precision: 'fp32' }, rows)) {
      let start = 0;
      for (const { key, channels } of observed) {
        widen(maxima.get(key)!, largest.subarray(start, start + channels));
        start += channels;
      }
    }
    return maxima;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function widen(most: Float32Array, values: Float32Array): void {
  for (let at = 0; at < most.length; at++) most[at] = Math.max(most[at]!, values[at]!);
}

/** Three significant digits: processors differ in the seventh. */
function calibrationText({ weightsSha256 }: StoredModel, texts: readonly string[], maxima: Maxima): string {
  const rounded = [...maxima].map(([key, values]) => [key, Array.from(values, (most) => Number(most.toPrecision(3)))]);
  return `${JSON.stringify({
    about: 'Largest |activation| per input of each linear layer in fp32, over the calibration texts of Shoal.',
    weightsSha256,
    textsSha256: createHash('sha256').update(JSON.stringify(texts)).digest('hex'),
    maxima: Object.fromEntries(rounded) as unknown,
  })}\n`;
}

// ---- how near it comes ------------------------------------------------------------------------------------------

async function compare(
  base: StoredModel,
  made: StoredModel,
  rows: readonly (readonly number[])[],
  { runGraph, cacheDir }: Int8Options,
): Promise<Omit<Int8Facts, 'base' | 'baseRevision' | 'quantizer'>> {
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

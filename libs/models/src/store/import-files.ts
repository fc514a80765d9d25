// The files of a model to import, brought into the one layout that the store has: config.json, tokenizer.json, weights
// or graph, modules.json with a folder for each module, sentence_bert_config.json. What the source says in other places
// or words (module-layout.ts, embedder-config.ts, tokenizer-config.ts) is written as it is meant, so that whoever opens
// the model reads it in one place; what is assumed or done differently is a note. Everything is checked in the copy before
// anyone may open it: architecture, tensors and shapes, tokenizer, pooling; last, the caller's proof runs it on a text.
// Refuses by name.

import { createHash } from 'node:crypto';
import { mkdir, readFile, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join, posix } from 'node:path';
import { ShoalError, isShoalError } from '@shoal/contract';
import { sha256File } from '@shoal/fetch';
import { CheckedJson } from '../checked-json.ts';
import type { HubOrigin } from '../hub/hub-origin.ts';
import { adaptOnnx } from '../graph/adapt-onnx.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import { describeScoreHead } from '../encoder/score-head.ts';
import { encoderGraph } from '../graph/encoder-graph.ts';
import { WEIGHTS_FILE, useTensors } from '../graph/named-tensors.ts';
import { rerankerGraph } from '../graph/reranker-graph.ts';
import {
  checkHeadWeights,
  givesUnitVectors,
  headDims,
  type Pooling,
  type SentenceHead,
} from '../graph/sentence-head.ts';
import { checkTable } from '../graph/table-rows.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { modelKindOf, positionsOf, readEmbedder, readLimits, readReranker, type Embedder } from './embedder-config.ts';
import { missingFiles, usualGraph, weightFiles } from './find-weights.ts';
import { MANIFEST, describeImported, manifestText, type ImportedModel } from './imported-models.ts';
import { mergeAdapter, mergeSmallFiles } from './merge-adapter.ts';
import { verifyFiles, type Pins } from './model-files.ts';
import { expectPooling, isStaticConfig, readLayout, type ModuleLayout } from './module-layout.ts';
import { SourceFolder } from './source-folder.ts';
import { placeModules, storedModulePath } from './place-modules.ts';
import { pooledWidth, readModules, readPoolings, MODULE_WEIGHTS } from './sentence-modules.ts';
import { REVISION_DIGITS, SAVED_BESIDE, type OnnxFacts, type StoredModel } from './stored-model.ts';
import type { Canary } from './canaries.ts';
import { readStaticModel, refuseOtherStaticConfig, staticTokenizer } from './static-model.ts';
import { effectiveTokenizer } from './tokenizer-config.ts';
import { VOCABULARY, tokenizerOfVocabulary } from './vocabulary-file.ts';

export interface ImportSource {
  readonly folder: string;
  /** The folder that a person gave, where the files were written anew into another. */
  readonly called?: string | undefined;
  /** The .onnx file of a model that comes as a graph. */
  readonly graph: string | undefined;
  /** Files that were fetched from a hub, for this and nothing else. */
  readonly hub?: HubOrigin | undefined;
}

/** What a person says of a model whose files do not. */
export interface ImportChoices {
  readonly pooling?: Pooling | undefined;
  /** Vectors are brought to length 1 even where the files do not say so. */
  readonly normalize?: boolean | undefined;
  /** Whose adapter is merged into the weights, of a model that has adapters; "none" for no adapter. */
  readonly task?: string | undefined;
  /** Instead of what the files say; '' for none. */
  readonly prompts?: Readonly<Partial<Record<'query' | 'passage', string>>> | undefined;
}

export interface CollectOptions {
  readonly name: string;
  readonly choices: ImportChoices;
  /** What was assumed before. */
  readonly notes?: readonly string[] | undefined;
  /** Runs the model on one text: what it gives is kept and asked of every device that serves it. */
  readonly prove?: ProveModel | undefined;
}

export type ProveModel = (model: StoredModel) => Promise<Canary>;

export interface Collected {
  readonly model: ImportedModel;
  /** What was assumed, or is done in another way than the files say. */
  readonly notes: readonly string[];
}

/** As they are called in the store. */
const FILE = {
  config: 'config.json',
  tokenizer: 'tokenizer.json',
  graph: 'model.onnx',
  pooling: '1_Pooling/config.json',
  limits: 'sentence_bert_config.json',
  readme: 'README.md',
  licence: 'LICENSE',
} as const;
/** Beside the tokenizer, where they are there. */
const BESIDE_TOKENIZER = {
  config: 'tokenizer_config.json',
  specialTokens: 'special_tokens_map.json',
  addedTokens: 'added_tokens.json',
} as const;
const OF_THE_MODEL = ['modules.json', 'config_sentence_transformers.json', FILE.readme, FILE.licence];
/** Node reads files of at most 2 GiB at once, and protobuf has the same limit. */
const MAX_GRAPH_BYTES = 2 ** 31 - 1;

/** Fills `folder`, which is empty. Errors name the files of the source: the copy is gone when they are read. */
export async function collectFiles(folder: string, given: ImportSource, options: CollectOptions): Promise<Collected> {
  const { task } = options.choices;
  if (given.graph !== undefined && task !== undefined)
    throw new ShoalError('USAGE', `--task ${task} is for a folder with weights, and ${given.graph} is a graph`, {});
  if (given.graph !== undefined) return collectSource(folder, given, options);
  const merged = join(dirname(folder), `.merged-${basename(folder)}`);
  return inNameOf(given.folder, merged, async () => {
    const notes = await mergeAdapter(await SourceFolder.open(given.folder), task, merged);
    if (notes === undefined) return collectSource(folder, given, options);
    const whole = { ...given, folder: merged, called: given.folder };
    return collectSource(folder, whole, { ...options, notes: [...(options.notes ?? []), ...notes] });
  });
}

/** Runs what reads a folder that it makes of `folder`, and takes that away. Its refusals name the folder that was given. */
async function inNameOf<T>(folder: string, merged: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!isShoalError(error)) throw error;
    const message = error.message.replaceAll(merged, folder);
    throw new ShoalError(error.code, message, { ...error.fields, folder }, error.cause);
  } finally {
    await rm(merged, { recursive: true, force: true });
  }
}

async function collectSource(folder: string, given: ImportSource, options: CollectOptions): Promise<Collected> {
  const isOurs = given.hub !== undefined || given.called !== undefined;
  const source = await SourceFolder.open(given.folder, { isOurs });
  const layout = await readLayout(source);
  const found = given.graph === undefined ? await usualGraph(source, layout.encoder) : undefined;
  const graph = found === undefined ? given.graph : join(given.folder, found.path);
  const notes = [...(options.notes ?? []), ...(found === undefined ? [] : [found.note])];
  try {
    const weights = graph === undefined ? await weightFiles(source, layout.encoder) : [];
    return await collect(folder, { given: { ...given, graph }, source, layout, weights }, { ...options, notes });
  } catch (error) {
    if (!isShoalError(error)) throw error;
    const inSource = layout.modules.reduce(
      (text, module, at) =>
        text.replaceAll(join(folder, storedModulePath(module, at)), join(given.folder, module.path)),
      error.message,
    );
    throw new ShoalError(
      error.code,
      inSource.replaceAll(folder, join(given.folder, layout.encoder)),
      { ...error.fields, folder: given.folder },
      error.cause,
    );
  }
}

/**
 * Refuses what an import would refuse for its small files alone (layout, architecture, prompts, tokenizer's settings),
 * so that nobody fetches the large ones for nothing. `empty` is a folder to write to. Errors name the files of `folder`.
 */
export async function refuseBySmallFiles(folder: string, empty: string, task: string | undefined): Promise<void> {
  const merged = join(empty, 'merged');
  await inNameOf(folder, merged, async () => {
    const begun = await mergeSmallFiles(await SourceFolder.open(folder), task, merged);
    await refuseSmallFiles(begun === undefined ? folder : merged, empty);
  });
}

async function refuseSmallFiles(folder: string, empty: string): Promise<void> {
  const source = await SourceFolder.open(folder);
  const layout = await readLayout(source);
  const tokenizer = (await hasVocabularyAlone(source, layout)) ? VOCABULARY : FILE.tokenizer;
  const needed = (layout.isStatic ? [FILE.tokenizer] : [FILE.config, tokenizer]).map((path) =>
    posix.join(layout.encoder, path),
  );
  const missing: string[] = [];
  for (const path of needed) if (!(await source.has(path))) missing.push(path);
  if (missing.length > 0) throw await missingFiles(source, layout.encoder, missing);
  if (layout.isStatic) {
    await readEmbedder(source);
    staticTokenizer(await source.readText(needed[0]!), join(folder, needed[0]!));
    const config = posix.join(layout.encoder, FILE.config);
    const json = (await source.has(config)) ? await source.readJson(config) : undefined;
    if (json !== undefined && isStaticConfig(json)) refuseOtherStaticConfig(json);
    return;
  }
  const config = await source.readJson(posix.join(layout.encoder, FILE.config));
  const kind = await modelKindOf(source, layout.encoder, config, layout.pooling !== undefined);
  if (kind === 'embedder') {
    expectPooling(source, layout);
    await readEmbedder(source);
  } else {
    describeScoreHead(config, describeEncoder(config), await savedBeside(source, layout));
    await readReranker(source);
  }
  await placeTokenizer(empty, { given: { folder, graph: undefined }, source, layout, weights: [] }, config, []);
}

interface Sources {
  readonly given: ImportSource;
  readonly source: SourceFolder;
  readonly layout: ModuleLayout;
  /** Paths of the files that hold tensors; none of a graph. */
  readonly weights: readonly string[];
}

async function collect(
  folder: string,
  sources: Sources,
  { name, choices, prove, notes: earlier = [] }: CollectOptions,
): Promise<Collected> {
  const { given, source, layout } = sources;
  await expectFiles(sources);
  const notes = [...earlier];
  for (const path of [FILE.readme, FILE.licence])
    if (await source.has(path)) await source.copy(path, join(folder, path));
  const place = layout.isStatic ? placeStatic : placeEncoder;
  const { config, kind, said, placed } = await place(folder, sources, choices, notes);
  const onnx =
    given.graph === undefined || placed === undefined
      ? undefined
      : await placeGraph(sources, given.graph, { folder, config, ...placed, notes });
  if (placed !== undefined && !givesUnitVectors(placed.head)) notes.push(lengthsNote(layout, onnx));
  const files = await pin(folder);
  const { defaultPrompt } = said;
  const prompts = promptsOf(said.prompts, choices.prompts);
  const model: ImportedModel = {
    name,
    // prompts are a part of what a text becomes, and in none of the files
    revision: createHash('sha256')
      .update(JSON.stringify([files, prompts, defaultPrompt ?? null]))
      .digest('hex')
      .slice(0, REVISION_DIGITS),
    files,
    origin: 'imported',
    kind,
    description: originOf(given),
    licence: given.hub?.licence ?? (await readLicence(folder)),
    attribution: given.hub === undefined ? 'its authors' : `the authors of ${given.hub.repository}`,
    prompts,
    ...(defaultPrompt !== undefined && { defaultPrompt }),
    notes,
    ...(onnx && { onnx }),
    ...(given.hub && { hub: given.hub }),
  };
  const described = await check(model, folder, config);
  const whole = prove === undefined ? model : { ...model, canary: await prove(described) };
  await writeFile(join(folder, MANIFEST), manifestText(whole));
  await verifyFiles(name, folder, files);
  return { model: whole, notes };
}

interface PlacedModel {
  readonly config: CheckedJson;
  readonly kind: ImportedModel['kind'];
  /** What the folder says of prompts. */
  readonly said: Embedder;
  /** Undefined of a reranker. */
  readonly placed: PlacedHead | undefined;
}

/** Config, head, tokenizer, limits and weights of a model with an encoder. */
async function placeEncoder(
  folder: string,
  sources: Sources,
  choices: ImportChoices,
  notes: string[],
): Promise<PlacedModel> {
  const { given, source, layout } = sources;
  const inEncoder = posix.join(layout.encoder, FILE.config);
  const config = await source.readJson(inEncoder);
  const kind = await modelKindOf(source, layout.encoder, config, (layout.pooling ?? choices.pooling) !== undefined);
  const said = await (kind === 'reranker' ? expectReranker(sources, choices) : readEmbedder(source));
  notes.push(...said.notes);
  await write(folder, FILE.config, await source.readText(inEncoder));
  const placed = kind === 'embedder' ? await placeHead(folder, sources, choices, notes) : undefined;
  if (kind === 'reranker' && (await savedBeside(source, layout)) !== undefined)
    await source.copy(SAVED_BESIDE, join(folder, SAVED_BESIDE));
  const tokenizerLimit = await placeTokenizer(folder, sources, config, notes);
  const positions = given.graph === undefined ? describeEncoder(config).rowLimit : positionsOf(config);
  const limits = await readLimits(source, layout.encoder, { positions, tokenizerLimit, kind });
  notes.push(...limits.notes);
  await writeLimits(folder, limits.maxTokens, limits.lowercases);
  await placeWeights(folder, sources);
  return { config, kind, said, placed };
}

/** The same of a static model: sizes are read in its tensors. */
async function placeStatic(
  folder: string,
  sources: Sources,
  { pooling = 'mean', normalize = false }: ImportChoices,
  notes: string[],
): Promise<PlacedModel> {
  const { given, source, layout } = sources;
  if (given.graph !== undefined)
    throw new ShoalError('USAGE', `${given.folder} is a static model: import the folder, not ${given.graph}`, {
      folder: given.folder,
    });
  if (pooling !== 'mean')
    throw new ShoalError('USAGE', `--pooling ${pooling} was asked for, and a static model is the mean of its rows`, {
      folder: given.folder,
    });
  await placeWeights(folder, sources);
  const [config, tokenizer] = [FILE.config, FILE.tokenizer].map((path) => posix.join(layout.encoder, path));
  const model = await readStaticModel({
    weights: join(folder, WEIGHTS_FILE),
    tokenizer: await source.readText(tokenizer!),
    where: join(source.path, tokenizer!),
    config: (await source.has(config!)) ? await source.readJson(config!) : undefined,
    modules: layout.hasModules ? await readModules(source, layout.modules, () => '') : undefined,
  });
  const said = await readEmbedder(source);
  notes.push(...said.notes, ...model.notes);
  const modules = [...model.modules];
  if (normalize && modules.at(-1)?.kind !== 'normalize') modules.push({ kind: 'normalize' });
  const text = JSON.stringify(model.config);
  await write(folder, FILE.config, `${text}\n`);
  await write(folder, FILE.tokenizer, model.tokenizer);
  await writeLimits(folder, model.maxTokens, false);
  const head = await placeModules(folder, source, { poolings: ['mean'], modules }, model.width);
  const stored = CheckedJson.parse(text, join(folder, FILE.config));
  return { config: stored, kind: 'embedder', said, placed: { head, width: model.width } };
}

async function placeWeights(folder: string, { source, weights }: Sources): Promise<void> {
  for (const path of weights) await source.copy(path, join(folder, basename(path)));
}

function writeLimits(folder: string, maxTokens: number, lowercases: boolean): Promise<void> {
  const limits = JSON.stringify({ max_seq_length: maxTokens, do_lower_case: lowercases });
  return write(folder, FILE.limits, `${limits}\n`);
}

function originOf({ graph, folder, called = folder, hub }: ImportSource): string {
  return hub === undefined
    ? `imported from ${basename(graph ?? called)}`
    : `${hub.repository} of the hub, commit ${hub.commit}`;
}

/** All that is missing is named at once, and so is all that is not there but a pointer. */
async function expectFiles({ given: { graph, folder }, source, layout, weights }: Sources): Promise<void> {
  const inEncoder = (path: string): string => posix.join(layout.encoder, path);
  const tokenizer = (await hasVocabularyAlone(source, layout)) ? VOCABULARY : FILE.tokenizer;
  const tensors = graph === undefined && weights.length === 0 ? [inEncoder(WEIGHTS_FILE)] : weights;
  const config = layout.isStatic && layout.hasModules ? [] : [inEncoder(FILE.config)];
  const needed = [...config, inEncoder(tokenizer), ...tensors];
  const missing: string[] = [];
  for (const path of needed) if (!(await source.has(path))) missing.push(path);
  if (missing.length > 0) throw await missingFiles(source, layout.encoder, missing);
  await source.refusePointers([
    ...needed,
    ...Object.values(BESIDE_TOKENIZER).map(inEncoder),
    inEncoder(FILE.limits),
    ...(layout.pooling === undefined ? [] : [layout.pooling]),
    ...layout.modules.map(({ path }) => posix.join(path, MODULE_WEIGHTS)),
    ...OF_THE_MODEL,
    ...(graph === undefined ? [] : [posix.relative(folder, graph)]),
  ]);
}

/** "document" is another word for "passage", in either direction. */
function promptsOf(
  named: Readonly<Record<string, string>>,
  chosen: ImportChoices['prompts'] = {},
): Readonly<Record<string, string>> {
  const { passage } = chosen;
  const hasOther = passage !== undefined && Object.hasOwn(named, 'document');
  return { ...named, ...chosen, ...(hasOther && { document: passage }) };
}

/** What sentence-transformers saved of a whole model, which it reads only beside a modules.json. */
async function savedBeside(source: SourceFolder, { hasModules }: ModuleLayout): Promise<CheckedJson | undefined> {
  return hasModules && (await source.has(SAVED_BESIDE)) ? source.readJson(SAVED_BESIDE) : undefined;
}

/** What a reranker's files say besides its layers. USAGE for choices that only an embedder has. */
async function expectReranker(
  { given: { graph, folder }, source }: Sources,
  { pooling, normalize = false, prompts = {} }: ImportChoices,
): Promise<Embedder> {
  const chosen = [
    ...(pooling === undefined ? [] : [`--pooling ${pooling}`]),
    ...(normalize ? ['--normalize'] : []),
    ...Object.keys(prompts).map((name) => `--${name}-prompt`),
  ];
  if (chosen.length > 0)
    throw new ShoalError(
      'USAGE',
      `${folder} is a reranker, whose rows are pairs of texts and get scores: leave ${chosen.join(' and ')} out`,
      { folder },
    );
  if (graph !== undefined)
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${graph} is the graph of a reranker, and rerankers are served from their weights alone: put model.safetensors ` +
        'beside config.json and import the folder',
      { path: graph },
    );
  return { prompts: {}, defaultPrompt: undefined, ...(await readReranker(source)) };
}

interface PlacedHead {
  readonly head: SentenceHead;
  /** Values of a token that the pooling was made for, where it says so. */
  readonly width: number | undefined;
}

/** The head of an embedder, its files in their places; in the words of sentence-transformers since 5.4. */
async function placeHead(
  folder: string,
  { source, layout }: Sources,
  { pooling: chosen, normalize = false }: ImportChoices,
  notes: string[],
): Promise<PlacedHead> {
  expectPooling(source, layout);
  const json = layout.pooling === undefined ? undefined : await source.readJson(layout.pooling);
  const found = json === undefined ? undefined : readPoolings(json);
  if (chosen !== undefined && found !== undefined && chosen !== found.join())
    throw new ShoalError(
      'USAGE',
      `--pooling ${chosen} was asked for, and ${join(source.path, layout.pooling!)} says ${found.join(' + ')}: ` +
        'leave it out',
      { folder: source.path },
    );
  if (found === undefined)
    notes.push(
      `no ${FILE.pooling}: ${POOLING_WORDS[chosen ?? 'mean']} is taken` +
        (chosen === undefined ? ', as sentence-transformers does' : ''),
    );
  const width = json === undefined ? undefined : pooledWidth(json);
  const modules = [...(await readModules(source, layout.modules, () => ''))];
  const given = { poolings: found ?? [chosen ?? 'mean'], modules };
  if (normalize && !givesUnitVectors(given)) modules.push({ kind: 'normalize' });
  if (width !== undefined) headDims(given, width);
  return { head: await placeModules(folder, source, given, width), width };
}

function lengthsNote({ hasModules, isStatic }: ModuleLayout, onnx: OnnxFacts | undefined): string {
  if (isStatic)
    return 'nothing says that vectors are brought to length 1: every vector has its own length; import with --normalize, or ask a job for normalize, to have length 1';
  const found = hasModules ? 'modules.json has no Normalize at its end' : 'no modules.json';
  if (onnx?.isNormalized === true) return `${found}: vectors have length 1 all the same, as the graph makes them`;
  return (
    `${found}: every vector has its own length, as in sentence-transformers; import with --normalize, or ask a job ` +
    'for normalize, to have length 1'
  );
}

const POOLING_WORDS: Readonly<Record<Pooling, string>> = {
  cls: 'the first token',
  max: 'the largest of each value',
  mean: 'the mean over all tokens',
  mean_sqrt_len_tokens: 'the sum of all tokens, divided by the root of their number,',
  weightedmean: 'the mean over all tokens, later ones counting more,',
  lasttoken: 'the last token',
};

/** Resolves to the longest row that tokenizer_config.json allows, where it says one. */
async function placeTokenizer(
  folder: string,
  { source, layout }: Sources,
  config: CheckedJson,
  notes: string[],
): Promise<number | undefined> {
  const beside = async (path: string): Promise<CheckedJson | undefined> => {
    const inside = posix.join(layout.encoder, path);
    return (await source.has(inside)) ? source.readJson(inside) : undefined;
  };
  const isVocabulary = await hasVocabularyAlone(source, layout);
  const path = posix.join(layout.encoder, isVocabulary ? VOCABULARY : FILE.tokenizer);
  const where = join(source.path, path);
  const tokenizerConfig = await beside(BESIDE_TOKENIZER.config);
  const text = await (isVocabulary ? source.readPlainText(path) : source.readText(path));
  if (isVocabulary) notes.push(`no ${FILE.tokenizer}: the tokenizer is built from ${VOCABULARY}, as transformers does`);
  const tokenizer = effectiveTokenizer({
    text: isVocabulary ? tokenizerOfVocabulary({ text, where, config: tokenizerConfig, model: config }) : text,
    where,
    config: tokenizerConfig,
    specialTokens: await beside(BESIDE_TOKENIZER.specialTokens),
    addedTokens: await beside(BESIDE_TOKENIZER.addedTokens),
    modelTokenizerClass: config.has('tokenizer_class') ? config.string('tokenizer_class') : undefined,
  });
  notes.push(...tokenizer.notes);
  await write(folder, FILE.tokenizer, tokenizer.text);
  return tokenizer.limit;
}

async function hasVocabularyAlone(source: SourceFolder, { encoder, isStatic }: ModuleLayout): Promise<boolean> {
  return (
    !isStatic && !(await source.has(posix.join(encoder, FILE.tokenizer))) && source.has(posix.join(encoder, VOCABULARY))
  );
}

async function placeGraph(
  { source, given }: Sources,
  graph: string,
  { folder, config, head, width, notes }: PlacedHead & { folder: string; config: CheckedJson; notes: string[] },
): Promise<OnnxFacts> {
  const { size } = await stat(graph);
  if (size > MAX_GRAPH_BYTES)
    throw new ShoalError('MODEL_CORRUPT', `${graph} has ${size} bytes; ONNX files end at ${MAX_GRAPH_BYTES}`, {
      path: graph,
    });
  const placed = join(folder, FILE.graph);
  await source.copy(posix.relative(given.folder, graph), placed);
  const adapted = await adaptOnnx(await readFile(placed), graph, head);
  await rm(placed); // it may be a second name of the file that was fetched
  await writeFile(placed, adapted.bytes);
  if (adapted.isWrapped) notes.push(`mask${adapted.isPooled ? '' : ', pooling'} and norm were put around the graph`);
  const found = adapted.width ?? config.integer('hidden_size', 1);
  const expected = width === undefined || !adapted.isPooled ? width : headDims(head, width);
  if (expected !== undefined && expected !== found)
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${source.path}: its pooling is made for ${expected} dimensions, and its graph gives ${found}`,
      { folder: source.path },
    );
  return {
    dims: adapted.isPooled ? found : headDims(head, found),
    isNormalized: !adapted.isWrapped || givesUnitVectors(head),
    positions: positionsOf(config),
    vocabularySize: config.integer('vocab_size', 1),
    precision: adapted.precision,
  };
}

/**
 * Everything that would be refused later is refused now: names and shapes of tensors, the tokenizer, its vocabulary.
 */
async function check(model: ImportedModel, folder: string, config: CheckedJson): Promise<StoredModel> {
  const described = await describeImported(model, folder);
  if (described.kind === 'embedder') await checkHeadWeights(described.head);
  await openTokenizer(described);
  if (model.onnx !== undefined) return described;
  const encoder = describeEncoder(CheckedJson.parse(await readFile(join(folder, FILE.config), 'utf8'), config.where));
  await useTensors(folder, async (tensors) => {
    if (described.kind === 'reranker')
      return void rerankerGraph({ encoder, head: described.head }, tensors, 'fused-fp32');
    encoderGraph(encoder, tensors, { head: described.head, kind: 'fused-fp32' });
    if (encoder.table !== undefined) await checkTable(encoder, encoder.table, tensors);
  });
  return described;
}

/** All that lies there so far. */
async function pin(folder: string): Promise<Pins> {
  const pins: Record<string, Pins[string]> = {};
  for (const entry of (await readdir(folder, { recursive: true })).sort()) {
    const full = join(folder, entry);
    const found = await stat(full);
    if (found.isFile()) pins[entry.replaceAll('\\', '/')] = { bytes: found.size, sha256: await sha256File(full) };
  }
  return pins;
}

/** From the head of a model card; "unknown" otherwise. */
async function readLicence(folder: string): Promise<string> {
  const card = await readFile(join(folder, FILE.readme), 'utf8').catch(() => '');
  return /^---\n[\s\S]*?^license:\s*["']?([\w.+-]+)/m.exec(card.slice(0, 10_000))?.[1] ?? 'unknown';
}

async function write(folder: string, path: string, text: string): Promise<void> {
  await mkdir(dirname(join(folder, path)), { recursive: true });
  await writeFile(join(folder, path), text);
}

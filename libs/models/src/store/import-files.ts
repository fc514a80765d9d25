// The files of a model to import, copied into an empty folder and made complete: what sentence-transformers keeps
// beside a model is taken when it is there and assumed, with a note, when it is not. Everything is checked in the copy
// before anyone may open it: architecture, tensors and shapes, tokenizer, pooling. Refuses by name and runs nothing.

import { createHash } from 'node:crypto';
import { constants, copyFile, mkdir, readFile, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { ShoalError, isShoalError } from '@shoal/contract';
import { sha256File } from '@shoal/fetch';
import { CheckedJson } from '../checked-json.ts';
import { adaptOnnx } from '../graph/adapt-onnx.ts';
import { parseBertConfig } from '../graph/bert-config.ts';
import { bertGraph } from '../graph/bert-graph.ts';
import { Safetensors } from '../graph/safetensors.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { MANIFEST, describeImported, manifestText, type ImportedModel } from './imported-models.ts';
import { verifyFiles, type Pins } from './model-files.ts';
import { REVISION_DIGITS, readPooling, type OnnxFacts } from './stored-model.ts';

export interface ImportSource {
  readonly folder: string;
  /** The .onnx file of a model that comes as a graph. */
  readonly graph: string | undefined;
}

export interface Collected {
  readonly model: ImportedModel;
  /** What was assumed. */
  readonly notes: readonly string[];
}

const FILE = {
  config: 'config.json',
  tokenizer: 'tokenizer.json',
  weights: 'model.safetensors',
  graph: 'model.onnx',
  pooling: '1_Pooling/config.json',
  limits: 'sentence_bert_config.json',
  prompts: 'config_sentence_transformers.json',
  modules: 'modules.json',
  readme: 'README.md',
  licence: 'LICENSE',
} as const;
const OPTIONAL = [FILE.pooling, FILE.limits, FILE.prompts, FILE.modules, FILE.readme, FILE.licence];
/** What sentence-transformers puts after one another and our graphs have in them. */
const MODULE_TYPES = /(?:^|\.)(?:Transformer|Pooling|Normalize)$/;
/** Node reads files of at most 2 GiB at once, and protobuf has the same limit. */
const MAX_GRAPH_BYTES = 2 ** 31 - 1;

/** Fills `folder`, which is empty. Errors name the files of the source: the copy is gone when they are read. */
export async function collectFiles(folder: string, source: ImportSource, name: string): Promise<Collected> {
  try {
    return await collect(folder, source, name);
  } catch (error) {
    if (!isShoalError(error)) throw error;
    throw new ShoalError(
      error.code,
      error.message.replaceAll(folder, source.folder),
      { ...error.fields, folder: source.folder },
      error.cause,
    );
  }
}

async function collect(folder: string, source: ImportSource, name: string): Promise<Collected> {
  await copyFiles(source, folder);
  const notes = await complete(folder);
  const onnx = source.graph === undefined ? undefined : await placeGraph(source.graph, folder, notes);
  const files = await pin(folder, onnx === undefined ? [FILE.weights, ...OPTIONAL] : [FILE.graph, ...OPTIONAL]);
  const revision = createHash('sha256').update(JSON.stringify(files)).digest('hex').slice(0, REVISION_DIGITS);
  const model: ImportedModel = {
    name,
    revision,
    files,
    origin: 'imported',
    description: `imported from ${basename(source.graph ?? source.folder)}`,
    licence: await readLicence(folder),
    attribution: 'its authors',
    prompts: await readPrompts(folder),
    ...(onnx && { onnx }),
  };
  await check(model, folder);
  await writeFile(join(folder, MANIFEST), manifestText(model));
  await verifyFiles(name, folder, files);
  return { model, notes };
}

/** All that is missing is named at once. */
async function copyFiles({ folder, graph }: ImportSource, to: string): Promise<void> {
  const needed: string[] = [FILE.config, FILE.tokenizer, ...(graph === undefined ? [FILE.weights] : [])];
  const missing: string[] = [];
  for (const path of needed) if (!(await isFile(join(folder, path)))) missing.push(path);
  if (missing.length > 0) throw await missingFiles(folder, missing);
  for (const path of [...needed, ...OPTIONAL]) {
    if (!(await isFile(join(folder, path)))) continue;
    await mkdir(dirname(join(to, path)), { recursive: true });
    await copyFile(join(folder, path), join(to, path), constants.COPYFILE_FICLONE);
  }
}

async function missingFiles(folder: string, missing: readonly string[]): Promise<ShoalError> {
  const other = ['model.safetensors.index.json', 'pytorch_model.bin'];
  const found: string[] = [];
  for (const path of other) if (await isFile(join(folder, path))) found.push(path);
  const hint = found.length === 0 ? '' : `. There is ${found.join(' and ')}: save the model as one safetensors file`;
  return new ShoalError('MODEL_CORRUPT', `${folder} has no ${missing.join(', no ')}${hint}`, { folder, missing });
}

/** Refuses modules that no graph of ours has; writes what is assumed. */
async function complete(folder: string): Promise<string[]> {
  const notes: string[] = [];
  if (await isFile(join(folder, FILE.modules))) {
    if (!(await checkModules(join(folder, FILE.modules))))
      notes.push('modules.json has no Normalize: vectors are normalized to length 1 all the same');
  } else notes.push('no modules.json: vectors are normalized to length 1');
  notes.push(...(await promptNotes(join(folder, FILE.prompts))));
  const path = join(folder, FILE.config);
  const config = CheckedJson.parse(await readFile(path, 'utf8'), path);
  if (!(await isFile(join(folder, FILE.pooling)))) {
    notes.push(`no ${FILE.pooling}: the mean over all tokens is taken`);
    await mkdir(dirname(join(folder, FILE.pooling)), { recursive: true });
    await writeFile(join(folder, FILE.pooling), '{ "pooling_mode_mean_tokens": true }\n');
  }
  if (!(await isFile(join(folder, FILE.limits)))) {
    const positions = config.integer('max_position_embeddings', 1);
    notes.push(`no ${FILE.limits}: rows of up to ${positions} tokens, all that the model has positions for`);
    await writeFile(join(folder, FILE.limits), `{ "max_seq_length": ${positions} }\n`);
  }
  return notes;
}

/** Whether the vectors are normalized by one of the modules. */
async function checkModules(path: string): Promise<boolean> {
  // the file is a list
  const modules = CheckedJson.parse(`{ "modules": ${await readFile(path, 'utf8')} }`, path).list('modules');
  const types = modules.map((value, at) => CheckedJson.of(value, `${path}: module ${at}`).string('type'));
  for (const type of types) {
    if (!MODULE_TYPES.test(type))
      throw new ShoalError(
        'MODEL_CORRUPT',
        `${path}: a module of type ${type} is not supported, only Transformer, Pooling and Normalize`,
        { path, type },
      );
  }
  return types.some((type) => type.endsWith('Normalize'));
}

/** sentence-transformers puts a default prompt before every text; here a job asks for its prompt. */
async function promptNotes(path: string): Promise<string[]> {
  if (!(await isFile(path))) return [];
  const json = CheckedJson.parse(await readFile(path, 'utf8'), path);
  if (!json.has('default_prompt_name')) return [];
  return [
    `its default prompt ${JSON.stringify(json.string('default_prompt_name'))} is put before no text unless the ` +
      'job asks for a prompt',
  ];
}

async function placeGraph(graph: string, folder: string, notes: string[]): Promise<OnnxFacts> {
  const { size } = await stat(graph);
  if (size > MAX_GRAPH_BYTES)
    throw new ShoalError('MODEL_CORRUPT', `${graph} has ${size} bytes; ONNX files end at ${MAX_GRAPH_BYTES}`, {
      path: graph,
    });
  const poolingPath = join(folder, FILE.pooling);
  const adapted = await adaptOnnx(
    await readFile(graph),
    graph,
    readPooling(CheckedJson.parse(await readFile(poolingPath, 'utf8'), poolingPath)),
  );
  await writeFile(join(folder, FILE.graph), adapted.bytes);
  if (adapted.isWrapped) notes.push('mask, pooling and norm were put around the graph');
  const configPath = join(folder, FILE.config);
  const config = CheckedJson.parse(await readFile(configPath, 'utf8'), configPath);
  return {
    dims: adapted.dims ?? config.integer('hidden_size', 1),
    positions: config.integer('max_position_embeddings', 1),
    vocabularySize: config.integer('vocab_size', 1),
    precision: adapted.precision,
  };
}

/**
 * Everything that would be refused later is refused now: names and shapes of tensors, the tokenizer, its vocabulary.
 */
async function check(model: ImportedModel, folder: string): Promise<void> {
  const described = await describeImported(model, folder);
  await openTokenizer(described);
  if (model.onnx !== undefined) return;
  const path = join(folder, FILE.config);
  const config = parseBertConfig(await readFile(path, 'utf8'), path);
  await Safetensors.use(
    join(folder, FILE.weights),
    async (weights) => void bertGraph(config, weights, { pooling: described.pooling, kind: 'fused-fp32' }),
  );
}

async function pin(folder: string, paths: readonly string[]): Promise<Pins> {
  const pins: Record<string, Pins[string]> = {};
  for (const path of [FILE.config, FILE.tokenizer, ...paths]) {
    const full = join(folder, path);
    if (await isFile(full)) pins[path] = { bytes: (await stat(full)).size, sha256: await sha256File(full) };
  }
  return pins;
}

/** As config_sentence_transformers.json says; "document" is another word for "passage". */
async function readPrompts(folder: string): Promise<ImportedModel['prompts']> {
  const path = join(folder, FILE.prompts);
  if (!(await isFile(path))) return { query: '', passage: '' };
  const json = CheckedJson.parse(await readFile(path, 'utf8'), path);
  if (!json.has('prompts')) return { query: '', passage: '' };
  const prompts = json.object('prompts');
  const find = (...keys: string[]): string =>
    keys.filter((key) => prompts.has(key)).map((key) => prompts.string(key))[0] ?? '';
  return { query: find('query'), passage: find('passage', 'document') };
}

/** From the head of a model card; "unknown" otherwise. */
async function readLicence(folder: string): Promise<string> {
  const card = await readFile(join(folder, FILE.readme), 'utf8').catch(() => '');
  return /^---\n[\s\S]*?^license:\s*["']?([\w.+-]+)/m.exec(card.slice(0, 10_000))?.[1] ?? 'unknown';
}

async function isFile(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined))?.isFile() === true;
}

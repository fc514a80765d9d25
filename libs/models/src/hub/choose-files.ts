// Which files of a repository make the model, by what its own small files say: modules.json, config.json, the index of
// shards. Weights are safetensors; a graph (ONNX) is taken instead where the architecture is not known here, or where
// there is nothing else. Never taken: pickles (pytorch_model.bin runs code when it is read), files of other frameworks,
// programs. Whatever is named and not there is said before a large file is fetched.

import { posix } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import type { HubFile } from './hub-client.ts';

/** Reads a small file of the repository, which is in its list. */
export type ReadSmall = (file: HubFile) => Promise<string>;

/** Why a config.json is of no architecture that is computed here; undefined where it is. */
export type Undescribed = (config: string, where: string) => string | undefined;

export interface ChosenFiles {
  readonly files: readonly HubFile[];
  /** Path of the graph, where the model is one. */
  readonly graph: string | undefined;
}

export interface Repository {
  /** ORG/NAME@commit, for messages. */
  readonly label: string;
  readonly files: readonly HubFile[];
}

/** Of the model as a whole; licences are kept beside what they are about. */
const OF_THE_MODEL = /^(?:modules\.json|config_sentence_transformers\.json|README\.md)$/;
/** In the encoder's folder; the name has the architecture in it. */
const LIMITS = /^sentence_[\w-]+_config\.json$/;
const LICENCES = /^(?:LICEN[CS]E|NOTICE)(?:\.md|\.txt)?$/i;
/** Beside the encoder's config.json, and in the folder of a module. */
const OF_AN_ENCODER = [
  'config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'vocab.txt',
  'vocab.json',
  'merges.txt',
  'sentencepiece.bpe.model',
  'tokenizer.model',
  'spiece.model',
];
const OF_A_MODULE = ['config.json', 'model.safetensors', 'tokenizer.json'];
const WEIGHTS = 'model.safetensors';
const INDEX = 'model.safetensors.index.json';
const GRAPHS = ['onnx/model.onnx', 'model.onnx'];
/** What a person may have expected to be taken. */
const OTHER_WEIGHTS = /(?:\.(?:bin|pt|pth|ckpt|h5|msgpack|gguf|ot|tflite|mlmodel|onnx|safetensors)|\.index\.json)$/;
const MOST_SMALL_BYTES = 100_000_000;

/** MODEL_UNAVAILABLE for a repository without weights that can be read, MODEL_CORRUPT for one that contradicts itself. */
export async function chooseFiles(
  repository: Repository,
  read: ReadSmall,
  undescribed: Undescribed,
): Promise<ChosenFiles> {
  const tree = new Tree(repository);
  const modules = await readModules(tree, read);
  const encoder = modules[0] ?? '';
  const named = OF_AN_ENCODER.map((name) => posix.join(encoder, name));
  const beside = modules.flatMap((folder) => OF_A_MODULE.map((name) => posix.join(folder, name)));
  const small = repository.files.filter(
    ({ path }) =>
      OF_THE_MODEL.test(path) ||
      LICENCES.test(path) ||
      named.includes(path) ||
      (LIMITS.test(posix.basename(path)) && isIn(path, encoder)) ||
      (beside.includes(path) && !isIn(path, encoder)) ||
      (modules.length === 0 && path === '1_Pooling/config.json'),
  );
  for (const { path, bytes } of small)
    if (!path.endsWith(WEIGHTS) && bytes > MOST_SMALL_BYTES)
      throw corrupt(repository, `${path} has ${bytes} bytes; one of at most ${MOST_SMALL_BYTES} is taken`, path);
  const weights = await chooseWeights(tree, encoder, { read, undescribed });
  return { files: [...new Set([...small, ...weights.files])], graph: weights.graph };
}

class Tree {
  readonly repository: Repository;
  readonly #byPath: ReadonlyMap<string, HubFile>;

  constructor(repository: Repository) {
    this.repository = repository;
    this.#byPath = new Map(repository.files.map((file) => [file.path, file]));
  }

  find(path: string): HubFile | undefined {
    return this.#byPath.get(path);
  }

  /** MODEL_CORRUPT unless it is there. */
  get(path: string, whoNames: string): HubFile {
    const file = isPlainPath(path) ? this.find(path) : undefined;
    if (file === undefined) throw corrupt(this.repository, `${whoNames} names ${path}, which is not there`, path);
    return file;
  }
}

/** Folders of the modules, the encoder's first; none without modules.json. */
async function readModules(tree: Tree, read: ReadSmall): Promise<readonly string[]> {
  const file = tree.find('modules.json');
  if (file === undefined) return [];
  const where = `${tree.repository.label}: modules.json`;
  const list = CheckedJson.parse(`{ "modules": ${await read(file)} }`, where).list('modules');
  return list.map((value, at) => {
    const path = CheckedJson.of(value, `${where}: module ${at}`).string('path');
    if (path === '.') return '';
    if (path !== '' && !isPlainPath(path)) throw corrupt(tree.repository, `modules.json names the path ${path}`, path);
    return path;
  });
}

interface Reading {
  readonly read: ReadSmall;
  readonly undescribed: Undescribed;
}

async function chooseWeights(tree: Tree, encoder: string, { read, undescribed }: Reading): Promise<ChosenFiles> {
  const tensors = await safetensorsOf(tree, encoder, read);
  const graph = GRAPHS.map((path) => tree.find(posix.join(encoder, path)) ?? tree.find(path)).find((file) => file);
  const config = tree.find(posix.join(encoder, 'config.json'));
  const why =
    config === undefined || tensors === undefined
      ? undefined
      : undescribed(await read(config), `${tree.repository.label}: ${config.path}`);
  if (tensors !== undefined && why === undefined) return { files: tensors, graph: undefined };
  if (graph !== undefined) return { files: withExternalData(tree, graph), graph: graph.path };
  if (why !== undefined)
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${tree.repository.label} cannot be computed here: ${why}. It has no ONNX graph`,
      {
        repository: tree.repository.label,
      },
    );
  throw withoutWeights(tree.repository);
}

/** One file, or all that the index names; undefined without either. */
async function safetensorsOf(tree: Tree, encoder: string, read: ReadSmall): Promise<readonly HubFile[] | undefined> {
  const one = tree.find(posix.join(encoder, WEIGHTS));
  if (one !== undefined) return [one];
  const index = tree.find(posix.join(encoder, INDEX));
  if (index === undefined) return undefined;
  const map = CheckedJson.parse(await read(index), `${tree.repository.label}: ${index.path}`).object('weight_map');
  const shards = new Set(map.keys().map((tensor) => map.string(tensor)));
  const odd = [...shards].find((shard) => !/^[\w.-]+\.safetensors$/.test(shard));
  if (odd !== undefined)
    throw corrupt(tree.repository, `${index.path} names the shard ${JSON.stringify(odd)}`, index.path);
  return [index, ...[...shards].map((shard) => tree.get(posix.join(encoder, shard), index.path))];
}

/** Weights of a graph that is too large for one file lie beside it under its own name. */
function withExternalData(tree: Tree, graph: HubFile): readonly HubFile[] {
  const data = ['_data', '.data'].map((end) => tree.find(`${graph.path}${end}`)).filter((file) => file !== undefined);
  return [graph, ...data];
}

function withoutWeights({ label, files }: Repository): ShoalError {
  const others = files.map(({ path }) => path).filter((path) => OTHER_WEIGHTS.test(path));
  const found =
    others.length === 0
      ? 'no weights at all'
      : `only ${others.slice(0, 5).join(', ')}${others.length > 5 ? ` and ${others.length - 5} more` : ''}`;
  return new ShoalError(
    'MODEL_UNAVAILABLE',
    `${label} has no model.safetensors and no onnx/model.onnx, but ${found}. Pickles (.bin) run code when they are ` +
      'read and are never fetched: look for a revision with safetensors (its pull requests often have one, ' +
      '@refs/pr/NUMBER), or convert it with save_pretrained of transformers and bring it in with shoal model import',
    { repository: label, found: others },
  );
}

/** Inside the repository on every file system: nothing leads out, and nothing has a name that means something else. */
function isPlainPath(path: string): boolean {
  if (path.length > 500 || /[^\x20-\x7e]|[\\:]/.test(path)) return false;
  return path.split('/').every((part) => part !== '' && part !== '.' && part !== '..');
}

function isIn(path: string, folder: string): boolean {
  return posix.dirname(path) === (folder === '' ? '.' : folder);
}

function corrupt({ label }: Repository, problem: string, path: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${label}: ${problem}`, { repository: label, path });
}

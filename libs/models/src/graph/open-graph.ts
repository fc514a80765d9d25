// The ONNX graph of a stored model as a file: built when it is asked for the first time, found afterwards. Its name
// carries a hash of everything that went into it, so a changed weight, config or builder makes another file and never
// reuses this; beside it lies the digest of what was written, and a file that is something else by now is built again.

import { createHash } from 'node:crypto';
import { readFile, readdir, rename, rm, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { placeAtomically, withLock } from '@shoal/fetch';
import { digestProblem, keepDigest } from '../store/kept-digest.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import { CheckedJson } from '../checked-json.ts';
import { readModelFile, type StoredModel } from '../store/stored-model.ts';
import { storing } from '../store/storing.ts';
import { Calibration } from './calibration.ts';
import { encoderGraph } from './encoder-graph.ts';
import { FORMS, GRAPH_KINDS } from './graph-kind.ts';
import { int8KindHere } from './int8-kind.ts';
import { useTensors } from './named-tensors.ts';
import type { OnnxFile } from './onnx-file.ts';
import { rerankerGraph } from './reranker-graph.ts';
import { headKey } from './sentence-head.ts';

/** Raised whenever the builder writes other bytes for the same model. */
const BUILDER_VERSION = 5;

export interface GraphOptions {
  readonly cacheDir: string;
  /** Default: the model's own. Anything but that may give other vectors than the model's name promises. */
  readonly kind?: StoredModel['graphKind'] | undefined;
  /** Told when a graph of the cache is not used because it is not what was built. */
  readonly log?: Pick<Logger, 'warn'> | undefined;
  /** From here on values lie beside the graph; default where the format ends, 2 GiB. */
  readonly maxGraphBytes?: number | undefined;
}

/**
 * Path of the .onnx file. MODEL_CORRUPT, and no file, when the model's files do not add up to the model they claim to
 * be.
 */
export async function openGraph(model: StoredModel, options: GraphOptions): Promise<string> {
  const { cacheDir, kind = await ownKind(model) } = options;
  if (kind === 'imported') return join(model.folder, 'model.onnx');
  if (model.graphKind === 'imported')
    throw new ShoalError('MODEL_UNAVAILABLE', `${model.name} was imported as a graph; it cannot be had as ${kind}`, {
      name: model.name,
      kind,
    });
  const configPath = join(model.folder, 'config.json');
  const config = await readModelFile(configPath);
  const calibrationPath = FORMS[kind].encoder === 'int8' ? model.calibration : undefined;
  const maxima = calibrationPath === undefined ? Buffer.alloc(0) : await readModelFile(calibrationPath);
  const facts = JSON.stringify([BUILDER_VERSION, kind, model.weightsSha256, keyOf(model)]);
  const hash = createHash('sha256').update(facts).update(config).update(maxima).digest('hex').slice(0, 16);
  const path = join(cacheDir, 'graphs', `${model.name}-${kind}-${hash}.onnx`);
  const before = await graphProblem(path);
  if (before === undefined) return path;
  const build = async (): Promise<void> => {
    const problem = await graphProblem(path);
    if (problem === undefined) return; // by whoever had the lock before
    if (problem !== ABSENT)
      options.log?.warn({ path, reason: problem }, 'a graph of the cache is not what was built, building it again');
    const encoder = describeEncoder(CheckedJson.parse(config.toString(), configPath));
    const calibration =
      calibrationPath === undefined
        ? undefined
        : Calibration.parse(maxima.toString(), calibrationPath, model.weightsSha256);
    await useTensors(model.folder, async (tensors) => {
      const graph =
        model.kind === 'reranker'
          ? rerankerGraph({ encoder, head: model.head }, tensors, kind)
          : encoderGraph(encoder, tensors, { head: model.head, kind, calibration });
      await writeGraph(graph, path, options.maxGraphBytes);
    });
  };
  await storing(cacheDir, () => withLock(`${path}.lock`, build));
  return path;
}

/** What the head does to numbers: the same text is the same graph. */
function keyOf(model: StoredModel): unknown {
  return model.kind === 'reranker' ? ['scores', model.head] : headKey(model.head);
}

/** Values that one file has no room for lie beside it; they are there before the graph is. */
async function writeGraph(graph: OnnxFile, path: string, maxBytes: number | undefined): Promise<void> {
  const beside = dataPath(path);
  const data = { path: `${beside}.part`, name: basename(beside) };
  const write = async (temporary: string): Promise<void> => {
    await rm(data.path, { force: true }); // of a process that was killed
    if (!(await graph.write(temporary, { maxBytes, data }))) return;
    await placeAtomically(beside, (part) => rename(data.path, part), { isLocked: true });
    await keepDigest(beside);
  };
  await placeAtomically(path, write, { isLocked: true }).finally(() => rm(data.path, { force: true }));
  await keepDigest(path);
}

/** Where the values of this graph lie if one file has no room for them. */
export function dataPath(path: string): string {
  return `${path}.data`;
}

/** A graph whose values lie beside it is smaller than this. */
const MOST_REFERRING_BYTES = 64e6;

/** Whether the graph's values lie in a file beside it. */
async function refersToData(path: string): Promise<boolean> {
  if ((await stat(path)).size > MOST_REFERRING_BYTES) return false;
  return (await readFile(path)).includes(basename(dataPath(path)));
}

/** In the form that this processor computes rightly. */
async function ownKind({ graphKind }: StoredModel): Promise<StoredModel['graphKind']> {
  return graphKind === 'int8' ? int8KindHere() : graphKind;
}

const ABSENT = 'is not there';

/** Why it has to be built, or undefined when it is what was built. */
async function graphProblem(path: string): Promise<string | undefined> {
  if (!(await exists(path))) return ABSENT;
  return (await digestProblem(path)) ?? ((await refersToData(path)) ? dataProblem(path) : undefined);
}

async function dataProblem(path: string, options: { readonly again?: boolean } = {}): Promise<string | undefined> {
  const beside = dataPath(path);
  if (!(await exists(beside))) return `has lost its values, which were in ${beside}`;
  const problem = await digestProblem(beside, options);
  return problem === undefined ? undefined : `has its values in ${beside}, which ${problem}`;
}

export interface KeptGraph {
  readonly path: string;
  readonly bytes: number;
  /** Why it is not what was built. */
  readonly problem?: string;
}

/** Paths of the graphs of this model in the cache. */
export async function graphPaths(name: string, cacheDir: string): Promise<readonly string[]> {
  const folder = join(cacheDir, 'graphs');
  const own = new RegExp(`^${name}-(?:${GRAPH_KINDS.join('|')})-[0-9a-f]{16}\\.onnx$`);
  const files = await readdir(folder).catch(() => []);
  return files
    .filter((file) => own.test(file))
    .sort()
    .map((file) => join(folder, file));
}

/** The graphs of this model in the cache, each hashed again. */
export async function keptGraphs(name: string, cacheDir: string): Promise<readonly KeptGraph[]> {
  const graphs: KeptGraph[] = [];
  for (const path of await graphPaths(name, cacheDir)) {
    const hasData = await refersToData(path);
    const again = { again: true };
    const problem = (await digestProblem(path, again)) ?? (hasData ? await dataProblem(path, again) : undefined);
    const data = hasData ? await stat(dataPath(path)).catch(() => undefined) : undefined;
    const bytes = (await stat(path)).size + (data?.size ?? 0);
    graphs.push({ path, bytes, ...(problem !== undefined && { problem }) });
  }
  return graphs;
}

async function exists(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined)) !== undefined;
}

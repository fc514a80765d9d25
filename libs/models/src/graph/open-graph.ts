// The ONNX graph of a stored model as a file: built when it is asked for the first time, found afterwards. Its name
// carries a hash of everything that went into it, so a changed weight, config or builder makes another file and never
// reuses this; beside it lies the digest of what was written, and a file that is something else by now is built again.

import { createHash } from 'node:crypto';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
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

/** Raised whenever the builder writes other bytes for the same model. */
const BUILDER_VERSION = 5;

export interface GraphOptions {
  readonly cacheDir: string;
  /** Default: the model's own. Anything but that may give other vectors than the model's name promises. */
  readonly kind?: StoredModel['graphKind'] | undefined;
  /** Told when a graph of the cache is not used because it is not what was built. */
  readonly log?: Pick<Logger, 'warn'> | undefined;
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
  const facts = JSON.stringify([BUILDER_VERSION, kind, model.weightsSha256, model.pooling]);
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
      const graph = encoderGraph(encoder, tensors, { pooling: model.pooling, kind, calibration });
      await placeAtomically(path, (temporary) => graph.write(temporary), { isLocked: true });
      await keepDigest(path);
    });
  };
  await storing(cacheDir, () => withLock(`${path}.lock`, build));
  return path;
}

/** In the form that this processor computes rightly. */
async function ownKind({ graphKind }: StoredModel): Promise<StoredModel['graphKind']> {
  return graphKind === 'int8' ? int8KindHere() : graphKind;
}

const ABSENT = 'is not there';

/** Why it has to be built, or undefined when it is what was built. */
async function graphProblem(path: string): Promise<string | undefined> {
  return (await exists(path)) ? digestProblem(path) : ABSENT;
}

export interface KeptGraph {
  readonly path: string;
  readonly bytes: number;
  /** Why it is not what was built. */
  readonly problem?: string;
}

/** The graphs of this model in the cache, each hashed again. */
export async function keptGraphs(name: string, cacheDir: string): Promise<readonly KeptGraph[]> {
  const folder = join(cacheDir, 'graphs');
  const own = new RegExp(`^${name}-(?:${GRAPH_KINDS.join('|')})-[0-9a-f]{16}\\.onnx$`);
  const graphs: KeptGraph[] = [];
  for (const entry of (await readdir(folder).catch(() => [])).filter((file) => own.test(file)).sort()) {
    const path = join(folder, entry);
    const problem = await digestProblem(path, { again: true });
    graphs.push({ path, bytes: (await stat(path)).size, ...(problem !== undefined && { problem }) });
  }
  return graphs;
}

async function exists(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined)) !== undefined;
}

// The ONNX graph of a stored model as a file: built when it is asked for the first time, found afterwards. Its name
// carries a hash of everything that went into it, so a changed weight, config or builder makes another file and never
// reuses this.

import { createHash } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { placeAtomically, withLock } from '@shoal/fetch';
import { readModelFile, type StoredModel } from '../store/stored-model.ts';
import { storing } from '../store/storing.ts';
import { parseBertConfig } from './bert-config.ts';
import { bertGraph } from './bert-graph.ts';
import { Calibration } from './calibration.ts';
import { FORMS } from './graph-kind.ts';
import { int8KindHere } from './int8-kind.ts';
import { Safetensors } from './safetensors.ts';

/** Raised whenever the builder writes other bytes for the same model. */
const BUILDER_VERSION = 5;

export interface GraphOptions {
  readonly cacheDir: string;
  /** Default: the model's own. Anything but that may give other vectors than the model's name promises. */
  readonly kind?: StoredModel['graphKind'] | undefined;
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
  if (await exists(path)) return path;
  const build = async (): Promise<void> => {
    if (await exists(path)) return; // by whoever had the lock before
    const parsed = parseBertConfig(config.toString(), configPath);
    const calibration =
      calibrationPath === undefined
        ? undefined
        : Calibration.parse(maxima.toString(), calibrationPath, model.weightsSha256);
    await Safetensors.use(join(model.folder, 'model.safetensors'), async (weights) => {
      const graph = bertGraph(parsed, weights, { pooling: model.pooling, kind, calibration });
      await placeAtomically(path, (temporary) => graph.write(temporary), { isLocked: true });
    });
  };
  await storing(cacheDir, () => withLock(`${path}.lock`, build));
  return path;
}

/** In the form that this processor computes rightly. */
async function ownKind({ graphKind }: StoredModel): Promise<StoredModel['graphKind']> {
  return graphKind === 'int8' ? int8KindHere() : graphKind;
}

async function exists(path: string): Promise<boolean> {
  return (await stat(path).catch(() => undefined)) !== undefined;
}

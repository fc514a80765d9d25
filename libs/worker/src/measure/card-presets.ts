// What is believed of a card before anything was measured on it, by its name and the sizes of the model.

import { stat } from 'node:fs/promises';
import { presetFor, type MemoryPlanOf, type ModelSizes, type Precision, type Preset } from '@shoal/core';
import type { StoredModel } from '@shoal/models';

export interface CardQuestion {
  /** The card's own name, e.g. "NVIDIA H200". */
  readonly name: string;
  readonly precision: Precision;
  readonly totalBytes: number | undefined;
}

/** The preset for the native encoder, which knows its memory: where it begins is what counts. */
export function encoderPreset(
  { name, precision, totalBytes }: CardQuestion,
  sizes: MemoryPlanOf<'exact'>['sizes'],
  maxTokens: number,
): Preset {
  const model = { ...sizes, weightsBytes: 0, maxTokens };
  return presetFor({ deviceName: name, totalBytes, precision, keepsScores: false, model });
}

/** The preset for a graph of ONNX Runtime. */
export async function graphPreset(
  { name, precision, totalBytes }: CardQuestion,
  model: StoredModel,
  graphPath: string,
  maxTokens: number,
): Promise<Preset> {
  const sizes = await graphSizes(model, graphPath, maxTokens);
  return presetFor({ deviceName: name, totalBytes, model: sizes, precision, keepsScores: false });
}

/** The usual proportions of the family: a starting point needs no more. */
export async function graphSizes({ dims }: StoredModel, graphPath: string, maxTokens: number): Promise<ModelSizes> {
  return {
    hiddenSize: dims,
    intermediateSize: 4 * dims,
    heads: Math.max(1, Math.round(dims / 32)),
    weightsBytes: (await stat(graphPath)).size,
    maxTokens,
  };
}

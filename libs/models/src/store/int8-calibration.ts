// The maxima by which an int8 form is smoothed: the calibration texts of this project run through the model in fp32, with
// its own tokenizer and prompts, and show how large each input of a linear layer becomes (SmoothQuant, Xiao et al. 2023,
// arXiv 2211.10438). Runs no graph itself: whoever calls brings the engine.

import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Precision } from '@shoal/core';
import { calibrationGraph, type ObservedInput } from '../graph/calibration-graph.ts';
import { useTensors } from '../graph/named-tensors.ts';
import { dataPath } from '../graph/open-graph.ts';
import { readDescription, type StoredModel } from './stored-model.ts';

/** Runs rows of token ids through the graph in this file, each alone; gives `dims` values of each, in order. */
export type RunGraph = (
  graph: { readonly path: string; readonly dims: number; readonly precision: Precision },
  rows: readonly (readonly number[])[],
) => AsyncIterable<Float32Array>;

/** So many calibration texts are also one long one. */
const NEIGHBOURS = 8;

export interface CalibrationOptions {
  readonly runGraph: RunGraph;
  /** Where the graph may lie meanwhile, which is as large as the model. */
  readonly inFolder: string;
}

/** Token ids of texts, each for itself. */
export type RowsOf = (texts: readonly string[]) => readonly (readonly number[])[];

/** The text of calibration.json, by these texts alone and by several of them as one. */
export async function calibrationOf(
  model: StoredModel,
  texts: readonly string[],
  rowsOf: RowsOf,
  options: CalibrationOptions,
): Promise<string> {
  const long = texts.flatMap((_, at) => (at % NEIGHBOURS === 0 ? [texts.slice(at, at + NEIGHBOURS).join(' ')] : []));
  return calibrationText(model, texts, await calibrate(model, rowsOf([...texts, ...long]), options));
}

type Maxima = ReadonlyMap<ObservedInput['key'], Float32Array>;

/** The largest |activation| of each input of every linear layer that is smoothed, over these rows in fp32. */
async function calibrate(
  model: StoredModel,
  rows: readonly (readonly number[])[],
  { runGraph, inFolder }: CalibrationOptions,
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

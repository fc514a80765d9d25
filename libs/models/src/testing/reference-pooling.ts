// What comes after the last hidden states, in double precision and straight from sentence-transformers' modules: the
// poolings, Dense, LayerNorm, Normalize. For one row; an oracle beside the graph's own poolings.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Safetensors } from '../graph/safetensors.ts';

type Vector = readonly number[];

/** Pooled and then through the modules of the folder's modules.json. */
export class ReferencePooling {
  readonly #steps: readonly ((states: readonly Vector[]) => readonly Vector[])[];

  private constructor(steps: readonly ((states: readonly Vector[]) => readonly Vector[])[]) {
    this.#steps = steps;
  }

  static async open(folder: string): Promise<ReferencePooling> {
    const modules = (await readJson(join(folder, 'modules.json'))) as readonly { type: string; path: string }[];
    const steps: ((states: readonly Vector[]) => readonly Vector[])[] = [];
    for (const { type, path } of modules.slice(1))
      steps.push(await stepOf(type.split('.').at(-1)!, join(folder, path)));
    return new ReferencePooling(steps);
  }

  /** From the states of one row's tokens to its vector. */
  vector(states: readonly Vector[]): Vector {
    return this.#steps.reduce((rows, step) => step(rows), states)[0]!;
  }
}

async function stepOf(kind: string, folder: string): Promise<(states: readonly Vector[]) => readonly Vector[]> {
  if (kind === 'Normalize') return ([row]) => [scaled(row!, 1 / Math.max(Math.hypot(...row!), 1e-12))];
  const json = (await readJson(join(folder, 'config.json'))) as Record<string, unknown>;
  if (kind === 'Pooling') {
    const modes = modesOf(json);
    return (states) => [modes.flatMap((mode) => POOLINGS[mode]!(states))];
  }
  return Safetensors.use(join(folder, 'model.safetensors'), async (file) => {
    if (kind === 'LayerNorm') {
      const [weight, bias] = [await file.read('norm.weight'), await file.read('norm.bias')];
      return ([row]) => [layerNorm(row!, weight, bias)];
    }
    const matrix = await file.read('linear.weight');
    const bias = file.has('linear.bias') ? await file.read('linear.bias') : undefined;
    const isTanh = String(json['activation_function']).endsWith('Tanh');
    return ([row]) => {
      const values = Array.from({ length: matrix.length / row!.length }, (_, at) =>
        row!.reduce((sum, value, k) => sum + value * matrix[at * row!.length + k]!, bias?.[at] ?? 0),
      );
      return [isTanh ? values.map(Math.tanh) : values];
    };
  });
}

const POOLINGS: Readonly<Record<string, (states: readonly Vector[]) => Vector>> = {
  mean: (states) => scaled(total(states), 1 / states.length),
  mean_sqrt_len_tokens: (states) => scaled(total(states), 1 / Math.sqrt(states.length)),
  cls: (states) => states[0]!,
  lasttoken: (states) => states.at(-1)!,
  max: (states) => states[0]!.map((_, k) => Math.max(...states.map((row) => row[k]!))),
  weightedmean: (states) =>
    scaled(total(states.map((row, at) => scaled(row, at + 1))), 2 / (states.length * (states.length + 1))),
};

function modesOf(json: Record<string, unknown>): readonly string[] {
  const named = json['pooling_mode'];
  if (named !== undefined) return [named].flat().map(String);
  return Object.keys(json)
    .filter((key) => key.startsWith('pooling_mode_') && json[key] === true)
    .map((key) => key.slice('pooling_mode_'.length).replace(/(?<!len)_tokens?$/, ''));
}

function total(rows: readonly Vector[]): Vector {
  return rows[0]!.map((_, k) => rows.reduce((sum, row) => sum + row[k]!, 0));
}

function scaled(row: Vector, factor: number): Vector {
  return row.map((value) => value * factor);
}

function layerNorm(row: Vector, weight: Float32Array, bias: Float32Array): Vector {
  const mean = row.reduce((sum, value) => sum + value, 0) / row.length;
  const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / row.length;
  return row.map((value, k) => ((value - mean) / Math.sqrt(variance + 1e-5)) * weight[k]! + bias[k]!);
}

async function readJson(path: string): Promise<unknown> {
  return JSON.parse(await readFile(path, 'utf8'));
}

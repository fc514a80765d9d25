// A BERT encoder in plain loops and double precision, straight from the formulas, for one row at a time: the oracle of
// the graph's structure where no fixture exists. Slow; for tiny models.

import type { BertConfig } from '../graph/bert-config.ts';
import type { Safetensors } from '../graph/safetensors.ts';

type Matrix = number[][];

export async function referenceVector(
  config: BertConfig,
  file: Safetensors,
  prefix: string,
  ids: readonly number[],
  pooling: 'mean' | 'cls',
): Promise<number[]> {
  const vector = async (name: string): Promise<number[]> => [...(await file.read(prefix + name))];
  const rows = async (name: string, width: number): Promise<Matrix> => chunk(await vector(name), width);
  const { hidden, heads, layers, intermediate, layerNormEpsilon } = config;
  const norm = async (x: Matrix, name: string): Promise<Matrix> =>
    layerNorm(x, await vector(`${name}.weight`), await vector(`${name}.bias`), layerNormEpsilon);
  const linear = async (x: Matrix, name: string, inputs: number): Promise<Matrix> =>
    affine(x, await rows(`${name}.weight`, inputs), await vector(`${name}.bias`));

  const [words, places, types] = [
    await rows('embeddings.word_embeddings.weight', hidden),
    await rows('embeddings.position_embeddings.weight', hidden),
    await rows('embeddings.token_type_embeddings.weight', hidden),
  ];
  let x = await norm(
    ids.map((id, at) => words[id]!.map((value, k) => value + places[at]![k]! + types[0]![k]!)),
    'embeddings.LayerNorm',
  );
  for (let layer = 0; layer < layers; layer++) {
    const from = `encoder.layer.${layer}`;
    const [q, k, v] = [
      await linear(x, `${from}.attention.self.query`, hidden),
      await linear(x, `${from}.attention.self.key`, hidden),
      await linear(x, `${from}.attention.self.value`, hidden),
    ];
    const attended = await linear(attention(q, k, v, heads), `${from}.attention.output.dense`, hidden);
    const middle = await norm(add(attended, x), `${from}.attention.output.LayerNorm`);
    const wide = (await linear(middle, `${from}.intermediate.dense`, hidden)).map((row) => row.map(gelu));
    x = await norm(add(await linear(wide, `${from}.output.dense`, intermediate), middle), `${from}.output.LayerNorm`);
  }
  const pooled = pooling === 'cls' ? x[0]! : x[0]!.map((_, k) => x.reduce((sum, row) => sum + row[k]!, 0) / x.length);
  const length = Math.hypot(...pooled);
  return pooled.map((value) => value / length);
}

function attention(q: Matrix, k: Matrix, v: Matrix, heads: number): Matrix {
  const size = q[0]!.length / heads;
  return q.map((query) =>
    query.map((_, column) => {
      const start = Math.floor(column / size) * size;
      const scores = k.map(
        (key) => dot(query.slice(start, start + size), key.slice(start, start + size)) / Math.sqrt(size),
      );
      const largest = Math.max(...scores);
      const weights = scores.map((score) => Math.exp(score - largest));
      const total = weights.reduce((a, b) => a + b, 0);
      return weights.reduce((sum, weight, at) => sum + (weight / total) * v[at]![column]!, 0);
    }),
  );
}

function layerNorm(x: Matrix, weight: number[], bias: number[], epsilon: number): Matrix {
  return x.map((row) => {
    const mean = row.reduce((a, b) => a + b, 0) / row.length;
    const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / row.length;
    return row.map((value, k) => ((value - mean) / Math.sqrt(variance + epsilon)) * weight[k]! + bias[k]!);
  });
}

/** x/2 · (1 + erf(x/√2)); erf by the series without alternating signs, which loses no digits. */
function gelu(x: number): number {
  const z = x / Math.SQRT2;
  let [term, sum] = [z, z];
  for (let n = 1; n < 200; n++) {
    term *= (2 * z * z) / (2 * n + 1);
    sum += term;
  }
  const erf = Math.abs(z) > 6 ? Math.sign(z) : (2 / Math.sqrt(Math.PI)) * Math.exp(-z * z) * sum;
  return 0.5 * x * (1 + erf);
}

function affine(x: Matrix, weight: Matrix, bias: number[]): Matrix {
  return x.map((row) => weight.map((weights, at) => dot(row, weights) + bias[at]!));
}

function add(a: Matrix, b: Matrix): Matrix {
  return a.map((row, at) => row.map((value, k) => value + b[at]![k]!));
}

function dot(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, at) => sum + value * b[at]!, 0);
}

function chunk(values: readonly number[], width: number): Matrix {
  return Array.from({ length: values.length / width }, (_, at) => values.slice(at * width, (at + 1) * width));
}

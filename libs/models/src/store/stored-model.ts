// What a folder with a model's files says about the model. Reads the small files only; weights are read by the graph
// builder, the vocabulary by the tokenizer. Refuses poolings that the graph does not have.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ShoalError, tokenizerHash } from '@shoal/contract';
import type { Precision } from '@shoal/core';
import { CheckedJson } from '../checked-json.ts';
import type { GraphKind } from '../graph/graph-kind.ts';
import type { Pooling } from '../graph/pooling.ts';
import type { Canary } from './canaries.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import type { EncoderDescription } from '../encoder/encoder-description.ts';

export const REVISION_DIGITS = 12;

export interface StoredModel {
  readonly name: string;
  /** 12 hex digits: sha256 of model.safetensors, and for a quantized model of what else makes its vectors. */
  readonly revision: string;
  readonly folder: string;
  /** Length of a vector. */
  readonly dims: number;
  /** Longest row in tokens that the model can take at all. */
  readonly positionLimit: number;
  /** Where the model's authors truncate; tokens, special ones included. */
  readonly defaultMaxTokens: number;
  readonly vocabularySize: number;
  /** First 16 hex digits of sha256 of tokenizer.json. */
  readonly tokenizerHash: string;
  readonly pooling: Pooling;
  /** Put before a text whose job asks for one. */
  readonly prompts: Readonly<Record<'query' | 'passage', string>>;
  /** SPDX identifier. */
  readonly licence: string;
  /** As it was when the files were verified. */
  readonly weightsSha256: string;
  /** Which graph its vectors come from: on a CPU, and for int8 on any device. */
  readonly graphKind: GraphKind | 'imported';
  /** What that graph computes in. */
  readonly precision: Precision;
  /** File with the maxima that an int8 graph is smoothed with. */
  readonly calibration?: string;
  /** What a device has to give for one text before it serves. */
  readonly canary?: Canary;
}

export type ModelGiven = Pick<StoredModel, 'name' | 'folder' | 'weightsSha256' | 'licence' | 'prompts'> & {
  readonly revision?: string;
  /** It is an int8 model. */
  readonly calibration?: string;
  /** It came as a graph, and this is what it takes and gives. */
  readonly onnx?: OnnxFacts;
  readonly canary?: Canary | undefined;
};

/** What an imported graph does not say in the form of a BERT config. */
export interface OnnxFacts {
  readonly dims: number;
  readonly positions: number;
  readonly vocabularySize: number;
  readonly precision: Precision;
}

export async function describeModel(given: ModelGiven): Promise<StoredModel> {
  const {
    name,
    folder,
    weightsSha256,
    licence,
    prompts,
    calibration,
    onnx,
    canary,
    revision = weightsSha256.slice(0, REVISION_DIGITS),
  } = given;
  const read = async (path: string): Promise<Buffer> => readModelFile(join(folder, path));
  const sizes = onnx ?? sizesOf(await readDescription(folder));
  const limits = CheckedJson.parse(
    (await read('sentence_bert_config.json')).toString(),
    join(folder, 'sentence_bert_config.json'),
  );
  const pooling = CheckedJson.parse(
    (await read('1_Pooling/config.json')).toString(),
    join(folder, '1_Pooling/config.json'),
  );
  return {
    name,
    revision,
    folder,
    dims: sizes.dims,
    positionLimit: sizes.positions,
    defaultMaxTokens: Math.min(limits.integer('max_seq_length', 1), sizes.positions),
    vocabularySize: sizes.vocabularySize,
    tokenizerHash: tokenizerHash(await read('tokenizer.json')),
    pooling: readPooling(pooling),
    prompts,
    licence,
    weightsSha256,
    ...computation(given),
    ...(calibration !== undefined && { calibration }),
    ...(canary !== undefined && { canary }),
  };
}

/** What the encoder in this folder computes, by its config.json; MODEL_CORRUPT as describeEncoder. */
export async function readDescription(folder: string): Promise<EncoderDescription> {
  const path = join(folder, 'config.json');
  return describeEncoder(CheckedJson.parse((await readModelFile(path)).toString(), path));
}

function sizesOf({
  hidden,
  rowLimit,
  vocabularySize,
}: EncoderDescription): Pick<OnnxFacts, 'dims' | 'positions' | 'vocabularySize'> {
  return { dims: hidden, positions: rowLimit, vocabularySize };
}

function computation({ calibration, onnx }: ModelGiven): Pick<StoredModel, 'graphKind' | 'precision'> {
  if (onnx !== undefined) return { graphKind: 'imported', precision: onnx.precision };
  return calibration === undefined
    ? { graphKind: 'fused-fp32', precision: 'fp32' }
    : { graphKind: 'int8', precision: 'int8' };
}

/** The bytes of a file that a model must have; MODEL_CORRUPT when it cannot be read. */
export async function readModelFile(path: string): Promise<Buffer> {
  try {
    return await readFile(path);
  } catch (cause) {
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${path} belongs to the model and cannot be read: ${cause instanceof Error ? cause.message : String(cause)}`,
      { path },
      cause,
    );
  }
}

const POOLING_SWITCHES: Readonly<Record<string, string>> = {
  pooling_mode_cls_token: 'cls',
  pooling_mode_max_tokens: 'max',
  pooling_mode_mean_tokens: 'mean',
  pooling_mode_mean_sqrt_len_tokens: 'mean_sqrt_len_tokens',
  pooling_mode_weightedmean_tokens: 'weightedmean',
  pooling_mode_lasttoken: 'lasttoken',
};
const POOLING_KEYS = [
  ...Object.keys(POOLING_SWITCHES),
  'pooling_mode',
  'include_prompt',
  'embedding_dimension',
  'word_embedding_dimension',
];

/** Of a pooling's config.json, as sentence-transformers reads it: by one name since 5.4, by a switch each before. */
export function readPooling(json: CheckedJson): Pooling {
  json.expectKeys(POOLING_KEYS, 'a pooling that does more would give other vectors');
  if (json.has('include_prompt') && !json.boolean('include_prompt')) {
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${json.where}: "include_prompt": false is not supported: the tokens of a prompt are part of every ` +
        'pooling here, and other vectors would come out',
      { where: json.where },
    );
  }
  const chosen = json.has('pooling_mode') ? namedModes(json) : switchedModes(json);
  if (chosen.length === 1 && (chosen[0] === 'mean' || chosen[0] === 'cls')) return chosen[0];
  throw new ShoalError(
    'MODEL_CORRUPT',
    `${json.where}: ${chosen.length === 0 ? 'no pooling' : `the pooling ${chosen.join(' + ')}`} is not supported, ` +
      'only the mean ("mean") or the first token ("cls")',
    { where: json.where },
  );
}

/** The width that the pooling was made for; undefined where it does not say. */
export function pooledWidth(json: CheckedJson): number | undefined {
  const key = ['embedding_dimension', 'word_embedding_dimension'].find((name) => json.has(name));
  return key === undefined ? undefined : json.integer(key, 1);
}

/** One name or a list of them. */
function namedModes(json: CheckedJson): readonly string[] {
  const mode = json.raw('pooling_mode');
  return Array.isArray(mode) ? mode.map(String) : [json.string('pooling_mode')];
}

/** Without any that is on, the mean, unless just that is said to be off. */
function switchedModes(json: CheckedJson): readonly string[] {
  const chosen = Object.keys(POOLING_SWITCHES).filter((key) => json.has(key) && json.boolean(key));
  if (chosen.length === 0 && !json.has('pooling_mode_mean_tokens')) return ['mean'];
  return chosen.map((key) => POOLING_SWITCHES[key]!);
}

// What a folder with a model's files says about the model. Reads the small files only; weights are read by the graph
// builder, the vocabulary by the tokenizer. Refuses poolings that the graph does not have.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ShoalError, tokenizerHash } from '@shoal/contract';
import type { Precision } from '@shoal/core';
import { CheckedJson } from '../checked-json.ts';
import type { GraphKind } from '../graph/graph-kind.ts';
import type { Pooling } from '../graph/pooling.ts';
import { parseBertConfig, type BertConfig } from '../graph/bert-config.ts';

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
}

export type ModelGiven = Pick<StoredModel, 'name' | 'folder' | 'weightsSha256' | 'licence' | 'prompts'> & {
  readonly revision?: string;
  /** It is an int8 model. */
  readonly calibration?: string;
  /** It came as a graph, and this is what it takes and gives. */
  readonly onnx?: OnnxFacts;
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
    revision = weightsSha256.slice(0, REVISION_DIGITS),
  } = given;
  const read = async (path: string): Promise<Buffer> => readModelFile(join(folder, path));
  const sizes = onnx ?? sizesOf(parseBertConfig((await read('config.json')).toString(), join(folder, 'config.json')));
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
  };
}

function sizesOf({
  hidden,
  positions,
  vocabularySize,
}: BertConfig): Pick<OnnxFacts, 'dims' | 'positions' | 'vocabularySize'> {
  return { dims: hidden, positions, vocabularySize };
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

/** Of 1_Pooling/config.json. */
export function readPooling(json: CheckedJson): Pooling {
  if (json.has('include_prompt') && !json.boolean('include_prompt')) {
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${json.where}: "include_prompt": false is not supported: the tokens of a prompt are part of every ` +
        'pooling here, and other vectors would come out',
      { where: json.where },
    );
  }
  const chosen = json.keys().filter((key) => key.startsWith('pooling_mode_') && json.boolean(key));
  if (chosen.length === 1 && chosen[0] === 'pooling_mode_mean_tokens') return 'mean';
  if (chosen.length === 1 && chosen[0] === 'pooling_mode_cls_token') return 'cls';
  throw new ShoalError(
    'MODEL_CORRUPT',
    `${json.where}: ${chosen.join(' + ') || 'no pooling'} is not supported, only the mean or the first token`,
    { where: json.where },
  );
}

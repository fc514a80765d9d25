// What a folder with a model's files says about the model. Reads the small files only; weights are read by the graph
// builder, the vocabulary by the tokenizer. Refuses poolings that the graph does not have.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ShoalError, tokenizerHash, type Precision } from '@shoal/core';
import { CheckedJson } from '../checked-json.ts';
import type { GraphKind } from '../graph/graph-kind.ts';
import type { Pooling } from '../graph/pooling.ts';
import { parseBertConfig } from '../graph/bert-config.ts';

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
  readonly graphKind: GraphKind;
  /** What that graph computes in. */
  readonly precision: Precision;
  /** File with the maxima that an int8 graph is smoothed with. */
  readonly calibration?: string;
}

export type ModelGiven = Pick<StoredModel, 'name' | 'folder' | 'weightsSha256' | 'licence' | 'prompts'> & { readonly revision?: string; readonly calibration?: string };

/** With a calibration it is an int8 model. */
export async function describeModel(given: ModelGiven): Promise<StoredModel> {
  const { name, folder, weightsSha256, licence, prompts, calibration, revision = weightsSha256.slice(0, REVISION_DIGITS) } = given;
  const read = async (path: string): Promise<Buffer> => readModelFile(join(folder, path));
  const config = parseBertConfig((await read('config.json')).toString(), join(folder, 'config.json'));
  const limits = CheckedJson.parse((await read('sentence_bert_config.json')).toString(), join(folder, 'sentence_bert_config.json'));
  const pooling = CheckedJson.parse((await read('1_Pooling/config.json')).toString(), join(folder, '1_Pooling/config.json'));
  return {
    name,
    revision,
    folder,
    dims: config.hidden,
    positionLimit: config.positions,
    defaultMaxTokens: Math.min(limits.integer('max_seq_length', 1), config.positions),
    vocabularySize: config.vocabularySize,
    tokenizerHash: tokenizerHash(await read('tokenizer.json')),
    pooling: readPooling(pooling),
    prompts,
    licence,
    weightsSha256,
    graphKind: calibration === undefined ? 'fused-fp32' : 'int8',
    precision: calibration === undefined ? 'fp32' : 'int8',
    ...(calibration !== undefined && { calibration }),
  };
}

/** The bytes of a file that a model must have; MODEL_CORRUPT when it cannot be read. */
export async function readModelFile(path: string): Promise<Buffer> {
  try {
    return await readFile(path);
  } catch (cause) {
    throw new ShoalError('MODEL_CORRUPT', `${path} belongs to the model and cannot be read: ${cause instanceof Error ? cause.message : String(cause)}`, { path }, cause);
  }
}

function readPooling(json: CheckedJson): Pooling {
  const chosen = json.keys().filter((key) => key.startsWith('pooling_mode_') && json.boolean(key));
  if (chosen.length === 1 && chosen[0] === 'pooling_mode_mean_tokens') return 'mean';
  if (chosen.length === 1 && chosen[0] === 'pooling_mode_cls_token') return 'cls';
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${chosen.join(' + ') || 'no pooling'} is not supported, only the mean or the first token`, { where: json.where });
}

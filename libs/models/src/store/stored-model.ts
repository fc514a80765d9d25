// What a folder with a model's files says about the model. Reads the small files only; weights are read by the graph
// builder, the vocabulary by the tokenizer.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ShoalError, tokenizerHash } from '@shoal/contract';
import type { Precision } from '@shoal/core';
import { CheckedJson } from '../checked-json.ts';
import type { GraphKind } from '../graph/graph-kind.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import type { EncoderDescription } from '../encoder/encoder-description.ts';
import { givesUnitVectors, headDims, plainHead, type SentenceHead } from '../graph/sentence-head.ts';
import type { Canary } from './canaries.ts';
import type { Pins } from './model-files.ts';
import { readLayout } from './module-layout.ts';
import { pooledWidth, readModules, readPoolings } from './sentence-modules.ts';
import { SourceFolder } from './source-folder.ts';

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
  /** What makes a row's vector out of its last hidden states. */
  readonly head: SentenceHead;
  /** Vectors have length 1; else each has its own. */
  readonly isNormalized: boolean;
  /** Put before a text whose job asks for one, by name. */
  readonly prompts: Readonly<Record<string, string>>;
  /** Name of the prompt for texts whose job asks for none. */
  readonly defaultPrompt?: string;
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

export type ModelGiven = Pick<
  StoredModel,
  'name' | 'folder' | 'weightsSha256' | 'licence' | 'prompts' | 'defaultPrompt'
> & {
  readonly revision?: string;
  /** Of an imported model, whose modules.json says what comes after the encoder; others have Pooling and Normalize. */
  readonly files?: Pins;
  /** It is an int8 model. */
  readonly calibration?: string;
  /** It came as a graph, and this is what it takes and gives. */
  readonly onnx?: OnnxFacts;
  readonly canary?: Canary | undefined;
};

/** What an imported graph does not say in the form of a BERT config. */
export interface OnnxFacts {
  /** Length of a vector. */
  readonly dims: number;
  readonly isNormalized: boolean;
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
    defaultPrompt,
    files,
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
  const { head, width } = await readHead(folder, files);
  if (onnx === undefined && width !== undefined && width !== sizes.dims)
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${folder}: its pooling is made for ${width} dimensions, and its encoder gives ${sizes.dims}`,
      { folder },
    );
  return {
    name,
    revision,
    folder,
    dims: onnx?.dims ?? headDims(head, sizes.dims),
    positionLimit: sizes.positions,
    defaultMaxTokens: Math.min(limits.integer('max_seq_length', 1), sizes.positions),
    vocabularySize: sizes.vocabularySize,
    tokenizerHash: tokenizerHash(await read('tokenizer.json')),
    head,
    isNormalized: onnx?.isNormalized ?? givesUnitVectors(head),
    prompts,
    ...(defaultPrompt !== undefined && { defaultPrompt }),
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

async function readHead(
  folder: string,
  files: Pins | undefined,
): Promise<{ readonly head: SentenceHead; readonly width: number | undefined }> {
  const path = join(folder, '1_Pooling/config.json');
  const json = CheckedJson.parse((await readModelFile(path)).toString(), path);
  const [poolings, width] = [readPoolings(json), pooledWidth(json)];
  if (files === undefined) return { head: { ...plainHead('mean'), poolings }, width };
  const source = await SourceFolder.open(folder);
  const { modules } = await readLayout(source);
  return {
    head: { poolings, modules: await readModules(source, modules, (file) => files[file]?.sha256 ?? '') },
    width,
  };
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

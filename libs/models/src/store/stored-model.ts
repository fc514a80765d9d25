// What a folder with a model's files says about the model. Reads the small files only; weights are read by the graph
// builder, the vocabulary by the tokenizer.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ShoalError, invariant, tokenizerHash, type ModelKind } from '@shoal/contract';
import type { Precision } from '@shoal/core';
import { CheckedJson } from '../checked-json.ts';
import type { GraphKind } from '../graph/graph-kind.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import type { EncoderDescription, StaticTexts } from '../encoder/encoder-description.ts';
import { describeScoreHead, type ScoreHead } from '../encoder/score-head.ts';
import { givesUnitVectors, headDims, plainHead, type SentenceHead } from '../graph/sentence-head.ts';
import type { Canary } from './canaries.ts';
import { DERIVED_FORMS, type WeightDtype } from './derived-forms.ts';
import type { Pins } from './model-files.ts';
import { readLayout } from './module-layout.ts';
import { expectOpen } from './readable.ts';
import { pooledWidth, readModules, readPoolings } from './sentence-modules.ts';
import { SourceFolder } from './source-folder.ts';

export const REVISION_DIGITS = 12;
/** What sentence-transformers writes of a whole model, beside config.json. */
export const SAVED_BESIDE = 'config_sentence_transformers.json';

/** What is known of a stored model of either kind. */
export interface StoredFacts {
  readonly name: string;
  /** 12 hex digits: sha256 of model.safetensors, and for a derived model of what else makes its vectors. */
  readonly revision: string;
  readonly folder: string;
  /** Length of a vector; 1 of a reranker, whose rows are pairs and have a score each. */
  readonly dims: number;
  /** Values of a token in its hidden states; undefined of a model that came as a graph. */
  readonly hidden?: number | undefined;
  /** Longest row in tokens that the model can take at all. */
  readonly positionLimit: number;
  /** Where the model's authors truncate; tokens, special ones included. */
  readonly defaultMaxTokens: number;
  readonly vocabularySize: number;
  /** First 16 hex digits of sha256 of tokenizer.json. */
  readonly tokenizerHash: string;
  /** Vectors have length 1; else each has its own. */
  readonly isNormalized: boolean;
  /** Of a static model, whose vector for a text without a token is zeros: what is done to texts. */
  readonly staticTexts?: StaticTexts;
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
  /** What a device has to give for one text, or one pair, before it serves. */
  readonly canary?: Canary;
}

export interface StoredEmbedder extends StoredFacts {
  readonly kind: 'embedder';
  /** What makes a row's vector out of its last hidden states. */
  readonly head: SentenceHead;
}

export interface StoredReranker extends StoredFacts {
  readonly kind: 'reranker';
  /** What makes a pair's score out of its last hidden states. */
  readonly head: ScoreHead;
}

export type StoredModel = StoredEmbedder | StoredReranker;

/** The model, whose rows are texts. MODEL_UNAVAILABLE for a reranker. */
export function expectEmbedder(model: StoredModel): StoredEmbedder {
  if (model.kind === 'embedder') return model;
  throw otherKind(model, 'a reranker, which gives scores of pairs and no vectors of texts: rerank with it');
}

/** The model, whose rows are pairs of texts. MODEL_UNAVAILABLE for an embedder. */
export function expectReranker(model: StoredModel): StoredReranker {
  if (model.kind === 'reranker') return model;
  throw otherKind(model, 'an embedder, which gives vectors of texts and no scores of pairs: embed with it');
}

function otherKind({ name, kind }: StoredModel, what: string): ShoalError {
  return new ShoalError('MODEL_UNAVAILABLE', `${name} is ${what}, or name another model`, { name, kind });
}

export type ModelGiven = Pick<
  StoredModel,
  'name' | 'folder' | 'weightsSha256' | 'licence' | 'prompts' | 'defaultPrompt'
> & {
  readonly revision?: string;
  /** Default: an embedder. */
  readonly kind?: ModelKind;
  /** Of an imported model, whose modules.json says what comes after the encoder; others have Pooling and Normalize. */
  readonly files?: Pins;
  /** What its weights are kept in, if not in fp32. */
  readonly dtype?: WeightDtype;
  /** Of an int8 model. */
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
  const { name, folder, weightsSha256, licence, prompts, defaultPrompt, calibration, onnx, canary } = given;
  const { revision = weightsSha256.slice(0, REVISION_DIGITS), kind = 'embedder' } = given;
  const read = async (path: string): Promise<Buffer> => readModelFile(join(folder, path));
  const encoder = onnx === undefined ? await readDescription(folder) : undefined;
  const sizes = encoder === undefined ? onnx! : sizesOf(encoder);
  const limits = CheckedJson.parse(
    (await read('sentence_bert_config.json')).toString(),
    join(folder, 'sentence_bert_config.json'),
  );
  const facts = {
    name,
    revision,
    folder,
    hidden: encoder?.hidden,
    positionLimit: sizes.positions,
    defaultMaxTokens: Math.min(limits.integer('max_seq_length', 1), sizes.positions),
    vocabularySize: sizes.vocabularySize,
    tokenizerHash: tokenizerHash(await read('tokenizer.json')),
    ...(encoder?.table && { staticTexts: encoder.table.texts }),
    prompts,
    ...(defaultPrompt !== undefined && { defaultPrompt }),
    licence,
    weightsSha256,
    ...computation(given),
    ...(calibration !== undefined && { calibration }),
    ...(canary !== undefined && { canary }),
  };
  if (kind === 'reranker') {
    invariant(encoder !== undefined, 'a reranker comes as weights');
    return { ...facts, kind, dims: 1, isNormalized: false, head: await readScoreHead(folder, encoder) };
  }
  const { head, width } = await readHead(folder, given.files);
  if (onnx === undefined && width !== undefined && width !== sizes.dims)
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${folder}: its pooling is made for ${width} dimensions, and its encoder gives ${sizes.dims}`,
      { folder },
    );
  const dims = onnx?.dims ?? headDims(head, sizes.dims);
  return { ...facts, kind, dims, isNormalized: onnx?.isNormalized ?? givesUnitVectors(head), head };
}

/** What makes scores, by config.json and, where it is there, what sentence-transformers saved beside it. */
async function readScoreHead(folder: string, encoder: EncoderDescription): Promise<ScoreHead> {
  const [path, beside] = [join(folder, 'config.json'), join(folder, SAVED_BESIDE)];
  const config = CheckedJson.parse((await readModelFile(path)).toString(), path);
  const saved = await readFile(beside, 'utf8').catch(() => undefined);
  return describeScoreHead(config, encoder, saved === undefined ? undefined : CheckedJson.parse(saved, beside));
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

function computation({ dtype, onnx }: ModelGiven): Pick<StoredModel, 'graphKind' | 'precision'> {
  if (onnx !== undefined) return { graphKind: 'imported', precision: onnx.precision };
  return dtype === undefined ? { graphKind: 'fused-fp32', precision: 'fp32' } : DERIVED_FORMS[dtype].computation;
}

/** The bytes of a file that a model must have; MODEL_CORRUPT when it cannot be read. */
export async function readModelFile(path: string): Promise<Buffer> {
  try {
    return await readFile(path);
  } catch (cause) {
    expectOpen(path, cause);
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${path} belongs to the model and cannot be read: ${cause instanceof Error ? cause.message : String(cause)}`,
      { path },
      cause,
    );
  }
}

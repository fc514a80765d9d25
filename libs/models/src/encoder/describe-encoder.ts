// config.json of a model as a description of what its encoder computes: one function a model_type, in files by family.
// What is left out is what transformers' config classes take for it. What cannot be computed exactly as the authors do
// is refused by file, key and value before a weight is read; nothing is dropped or guessed.

import { ShoalError } from '@shoal/contract';
import type { CheckedJson } from '../checked-json.ts';
import { BERT_FAMILY } from './bert-family.ts';
import { ConfigReader } from './config-reader.ts';
import type { EncoderDescription } from './encoder-description.ts';
import { LLAMA_FAMILY } from './llama-family.ts';
import { ROPE_BERT_FAMILY } from './rope-bert-family.ts';
import { STATIC_FAMILY, STATIC_TYPE } from './static-family.ts';

/** Reads every key that matters. */
export type DescribeFamily = (config: ConfigReader) => EncoderDescription;

const FAMILIES: ReadonlyMap<string, DescribeFamily> = new Map(
  Object.entries({ ...BERT_FAMILY, ...ROPE_BERT_FAMILY, ...LLAMA_FAMILY, ...STATIC_FAMILY }),
);

/**
 * Whatever the model allows, rows end here: attention keeps the square of a row's tokens, 268 MB for each head in fp32
 * at this length, and so does the table of what a window lets a token see.
 */
export const LONGEST_ROW = 8192;

/** What authors may say in model_type; a static model's config.json is one of Shoal's own. */
export const MODEL_TYPES: readonly string[] = [...FAMILIES.keys()].filter((type) => type !== STATIC_TYPE);

/**
 * MODEL_CORRUPT, naming file, key and value, for a model_type without a description, for a value that is not computed
 * here, and for a key that is not known.
 */
export function describeEncoder(json: CheckedJson): EncoderDescription {
  const config = new ConfigReader(json);
  const describe = FAMILIES.get(json.string('model_type'));
  if (describe === undefined)
    return config.refuse(
      'model_type',
      `only ${MODEL_TYPES.map((type) => JSON.stringify(type)).join(', ')} are supported. Of another one export the ` +
        'model as ONNX and import the .onnx file',
    );
  refuseOtherWeights(config);
  refuseOtherCode(config, json.string('model_type'));
  const description = describe(config);
  config.expectAllRead();
  expectSizes(description, json);
  return withinRows({ ...description, rowLimit: Math.min(description.rowLimit, LONGEST_ROW) });
}

/** A window that no row is longer than is none. */
function withinRows(encoder: EncoderDescription): EncoderDescription {
  const windows = encoder.attention.windows.map((window) =>
    window === undefined || window >= encoder.rowLimit - 1 ? undefined : window,
  );
  return { ...encoder, attention: { ...encoder.attention, windows } };
}

/** Whatever the family: not an encoder, or weights that are not what their names say. */
function refuseOtherWeights(config: ConfigReader): void {
  for (const flag of ['is_decoder', 'add_cross_attention', 'is_encoder_decoder'])
    config.expectNothing(flag, 'only encoders give embeddings, and what was trained as one has it false');
  for (const key of ['quantization_config', 'quantization', 'pruned_heads', 'compression_config'])
    config.expectNothing(
      key,
      'the weights are then not what their names say; take those in F32, F16 or BF16 that these were made from',
    );
}

/** Whose authors' own code is what is described here; transformers has it under another name or not at all. */
const DESCRIBED_CODE = ['nomic_bert', 'new', 'gte', 'eurobert'];

/** Code that comes with a model may compute anything under a name that is known. */
function refuseOtherCode(config: ConfigReader, modelType: string): void {
  const isSaid = config.has('is_causal') || config.has('use_bidirectional_attention'); // what such code is for
  if (DESCRIBED_CODE.includes(modelType) || isSaid) config.ignore('auto_map');
  else
    config.expectNothing(
      'auto_map',
      "code of the model's authors is not run here, and what it computes is not known. Where it comes as ONNX, too, " +
        'import the .onnx file',
    );
}

function expectSizes(description: EncoderDescription, json: CheckedJson): void {
  const { hidden, heads, kvHeads, headSize, attention, layers, attentionPositions } = description;
  const refuse = (problem: string): never => {
    throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem}`, { where: json.where });
  };
  if (!Number.isInteger(headSize)) refuse(`hidden_size ${hidden} cannot be shared by ${heads} heads`);
  if (heads % kvHeads !== 0) refuse(`${heads} heads cannot share ${kvHeads} heads of keys and values`);
  if (attentionPositions.kind === 'rope' && headSize % 2 !== 0)
    refuse(`heads of ${headSize} values have no halves that could be turned`);
  if (attention.windows.length !== layers) refuse(`layer_types should have ${layers} entries`);
}

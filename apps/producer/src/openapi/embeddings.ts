// Bodies of /v1/embeddings, and of what TEI's clients ask beside: /embed, /tokenize, /decode, /info.

import { MAX_USER_CHARACTERS } from '@shoal/contract';
import { MAX_INPUTS, promptNames, type ServedModel } from '../embeddings-request.ts';
import { listOf, object, optional, text, type Schema } from './parts.ts';

/** Of several models everything that one of them takes; which takes what is said by their names in /v1/models. */
export function embeddingsRequest(models: readonly [ServedModel, ...ServedModel[]]) {
  const { tokenRows, rowEnds, truncate } = models[0];
  const dims = Math.max(...models.map((model) => model.dims));
  const vocabularySize = Math.max(...models.map((model) => model.vocabularySize));
  const isNormalized = models.every((model) => model.isNormalized);
  const names = [...new Set(models.flatMap((model) => promptNames(model)))];
  const ids = {
    type: 'array',
    items: { type: 'integer', minimum: 0, maximum: vocabularySize - 1 },
    minItems: 1,
    description:
      tokenRows === 'bare'
        ? 'Token ids of the model’s own tokenizer.'
        : `A whole row as the model’s own tokenizer makes it: ${rowEnds.first} first and ${rowEnds.last} last.`,
  };
  return {
    type: 'object',
    examples: [{ model: models[0].name, input: ['a shoal of fish', 'a school of whales'] }],
    required: ['input', 'model'],
    additionalProperties: false,
    properties: {
      input: {
        description: 'A text, texts, or rows of token ids.',
        oneOf: [
          text,
          { type: 'array', items: text, minItems: 1, maxItems: MAX_INPUTS },
          ids,
          { type: 'array', items: ids, minItems: 1, maxItems: MAX_INPUTS },
        ],
      },
      model: { type: 'string', ...modelNames(models) },
      encoding_format: optional({ type: 'string', default: 'float', description: 'base64: float32, little-endian.' }, [
        'float',
        'base64',
      ]),
      dimensions: optional({
        type: 'integer',
        minimum: 1,
        maximum: dims,
        description: `Keep only the first so many${isNormalized ? ', normalized again' : ''}.`,
      }),
      normalize: optional(
        {
          type: 'boolean',
          description: isNormalized
            ? 'Vectors have length 1 anyhow.'
            : 'true: vectors of length 1; else each has the length that the model gives it. Not in OpenAI’s API.',
        },
        isNormalized ? [true] : [true, false],
      ),
      user: optional({
        type: 'string',
        maxLength: MAX_USER_CHARACTERS,
        description: 'Who of the caller’s own users asks: they share the caller’s turns between them.',
      }),
      prompt: optional(
        {
          type: 'string',
          description:
            names.length > 0
              ? 'Which of the model’s prompts goes before each text; not for token ids.'
              : 'The model has no prompts.',
        },
        names,
      ),
      input_type: optional(
        { type: 'string', description: 'The same by the name that clients of other servers use; not another one.' },
        names,
      ),
      truncate: optional(
        {
          type: 'string',
          default: truncate,
          description: 'What happens to an input with more tokens than the model takes. Not in OpenAI’s API.',
        },
        ['error', 'end'],
      ),
    },
  };
}

export const EMBEDDINGS_RESPONSE = listOf(
  object({
    object: { type: 'string', enum: ['embedding'] },
    index: { type: 'integer' },
    embedding: { oneOf: [{ type: 'array', items: { type: 'number' } }, { type: 'string' }] },
  }),
  {
    model: { type: 'string' },
    usage: object({
      prompt_tokens: { type: 'integer' },
      total_tokens: { type: 'integer' },
      truncated_inputs: { type: 'integer', description: 'Inputs that were cut.' },
    }),
  },
);

/** A model of the hub has a third name, in whatever letters, which no enum lists. */
function modelNames(models: readonly ServedModel[]): Schema {
  const names = models.flatMap(({ name, revision, aliases = [] }) => [name, `${name}@${revision}`, ...aliases]);
  if (!names.some((name) => name.includes('--'))) return { enum: names, description: 'As in /v1/models.' };
  return { examples: names, description: 'As in /v1/models, or ORG/NAME of the hub.' };
}

const texts = {
  description: 'A text, or texts.',
  oneOf: [text, { type: 'array', items: text, minItems: 1, maxItems: MAX_INPUTS }],
};

/** The model of a request that may leave it out, which null says as well. */
export function optionalModel(
  models: readonly ServedModel[],
  description = 'The first of /v1/models when left out.',
): Schema {
  const { enum: names, ...rest } = modelNames(models);
  return {
    ...rest,
    type: ['string', 'null'],
    ...(Array.isArray(names) ? { enum: [...names, null] } : {}),
    description,
  };
}

export function teiEmbedRequest(models: readonly [ServedModel, ...ServedModel[]]): Schema {
  const { dimensions, normalize, prompt } = embeddingsRequest(models).properties;
  return {
    type: 'object',
    examples: [{ inputs: ['a shoal of fish', 'a school of whales'] }],
    required: ['inputs'],
    additionalProperties: false,
    properties: {
      inputs: texts,
      normalize: { ...normalize, description: 'Whether vectors have length 1; true when left out.' },
      truncate: optional({ type: 'boolean', description: 'Whether an input that is too long is cut; else refused.' }),
      truncation_direction: optional({ type: 'string', description: 'Texts are cut at their end.' }, [
        'right',
        'Right',
        'RIGHT',
      ]),
      prompt_name: prompt,
      dimensions,
      model: optionalModel(models),
    },
  };
}

export const TEI_EMBED_RESPONSE: Schema = { type: 'array', items: { type: 'array', items: { type: 'number' } } };

export function tokenizeRequest(models: readonly [ServedModel, ...ServedModel[]]): Schema {
  const { prompt } = embeddingsRequest(models).properties;
  return {
    type: 'object',
    examples: [{ input: 'a shoal of fish' }],
    required: ['input'],
    additionalProperties: false,
    properties: { input: texts, model: optionalModel(models), prompt },
  };
}

export const TOKENIZE_RESPONSE = listOf(
  object({
    object: { type: 'string', enum: ['tokens'] },
    index: { type: 'integer' },
    count: { type: 'integer' },
    tokens: { type: 'array', items: { type: 'integer' }, description: 'As the model takes them, end tokens included.' },
    truncated: { type: 'boolean', description: 'The text has more, which the model would not see.' },
  }),
  { model: { type: 'string' }, max_tokens: { type: 'integer', description: 'The longest row of the model.' } },
);

export function decodeRequest(models: readonly [ServedModel, ...ServedModel[]]): Schema {
  const most = Math.max(...models.map(({ vocabularySize }) => vocabularySize));
  const row = { type: 'array', items: { type: 'integer', minimum: 0, maximum: most - 1 } };
  return {
    type: 'object',
    examples: [{ ids: [101, 7592, 102] }],
    required: ['ids'],
    additionalProperties: false,
    properties: {
      ids: {
        description: 'Token ids of one text, or of several.',
        oneOf: [
          { ...row, minItems: 1 },
          { type: 'array', items: row, minItems: 1, maxItems: MAX_INPUTS },
        ],
      },
      skip_special_tokens: optional({
        type: 'boolean',
        default: true,
        description: 'Whether end tokens, padding and others that stand for no text are left out.',
      }),
      model: optionalModel(models),
    },
  };
}

export const DECODE_RESPONSE: Schema = { type: 'array', items: { type: 'string' } };

export const SERVER_INFO = object({
  model_id: { type: 'string' },
  model_sha: { type: 'string' },
  served_model_name: { type: 'string' },
  model_type: object({ embedding: { type: 'object' } }),
  max_input_length: { type: 'integer' },
  max_client_batch_size: { type: 'integer' },
  max_concurrent_requests: { type: 'integer' },
  auto_truncate: { type: 'boolean' },
  version: { type: 'string' },
});

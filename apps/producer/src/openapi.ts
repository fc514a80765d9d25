// What /openapi.json says. Schemas describe; they check nothing: bodies are checked by embeddings-request.ts and
// similarity-request.ts, which say more exactly what is wrong.

import { MAX_INPUTS } from './embeddings-request.ts';
import { MAX_COSINE_QUERIES, MAX_QUERIES } from './similarity-request.ts';

const error = {
  type: 'object',
  properties: {
    error: {
      type: 'object',
      properties: {
        message: { type: 'string' },
        type: { type: 'string' },
        param: { type: ['string', 'null'] },
        code: { type: ['string', 'null'] },
      },
    },
  },
} as const;

const answers = (...statuses: readonly [number, string][]): Record<number, object> =>
  Object.fromEntries(statuses.map(([status, description]) => [status, { description, ...error }]));

const tokenIds = { type: 'array', items: { type: 'integer', minimum: 0 }, minItems: 1 } as const;
const text = { type: 'string', minLength: 1 } as const;

export const EMBEDDINGS_SCHEMA = {
  summary: 'Vectors of texts',
  tags: ['embeddings'],
  body: {
    type: 'object',
    required: ['input', 'model'],
    additionalProperties: false,
    properties: {
      input: {
        description:
          'A text, texts, or rows of token ids as the model’s own tokenizer makes them, with their end tokens.',
        oneOf: [
          text,
          { type: 'array', items: text, minItems: 1, maxItems: MAX_INPUTS },
          tokenIds,
          { type: 'array', items: tokenIds, minItems: 1, maxItems: MAX_INPUTS },
        ],
      },
      model: { type: 'string', description: 'Name of the model as in /v1/models.' },
      encoding_format: {
        type: 'string',
        enum: ['float', 'base64'],
        default: 'float',
        description: 'base64: float32, little-endian.',
      },
      dimensions: { type: 'integer', minimum: 1, description: 'Keep only the first so many, normalized again.' },
      user: { type: 'string', description: 'Accepted for compatibility; not used yet.' },
      prompt: {
        type: 'string',
        enum: ['query', 'passage', 'document', 'search_query', 'search_document'],
        description: 'Which of the model’s prompts goes before each text; a model without any refuses it.',
      },
      input_type: {
        type: 'string',
        enum: ['query', 'passage', 'document', 'search_query', 'search_document'],
        description: 'The same by the name that clients of other servers use.',
      },
      truncate: {
        type: 'string',
        enum: ['error', 'end'],
        default: 'error',
        description: 'What happens to an input with more tokens than the model takes. Not in OpenAI’s API.',
      },
    },
  },
  response: {
    200: {
      description: 'One vector per input, in order.',
      type: 'object',
      properties: {
        object: { type: 'string', const: 'list' },
        data: {
          type: 'array',
          items: {
            type: 'object',
            properties: {
              object: { type: 'string', const: 'embedding' },
              index: { type: 'integer' },
              embedding: { oneOf: [{ type: 'array', items: { type: 'number' } }, { type: 'string' }] },
            },
          },
        },
        model: { type: 'string' },
        usage: {
          type: 'object',
          properties: { prompt_tokens: { type: 'integer' }, total_tokens: { type: 'integer' } },
        },
      },
    },
    ...answers(
      [400, 'The request is wrong; `param` says where.'],
      [404, 'There is no such model here.'],
      [413, 'The body is too large.'],
      [415, 'The body is not JSON.'],
      [429, 'Too much at a time; see Retry-After.'],
      [500, 'The texts could not be embedded.'],
      [503, 'The queue does not answer, no worker did in time, or this server stops; see Retry-After.'],
    ),
  },
} as const;

// ---- similarity ---------------------------------------------------------------------------------------------------

const vector = { type: 'array', items: { type: 'number' }, minItems: 1 } as const;
const queriesOf = (most: number) => ({
  description: 'Texts, which the served model embeds, or vectors.',
  oneOf: [
    text,
    { type: 'array', items: text, minItems: 1, maxItems: most },
    { type: 'array', items: vector, minItems: 1, maxItems: most },
  ],
});
const collection = {
  type: 'string',
  description: 'Name and version: docs@3, or docs for its newest version.',
} as const;
/** Of answers about a collection. */
const searched = {
  collection: { type: 'string', description: 'Name and version of the collection that was searched.' },
  collection_model: {
    type: ['string', 'null'],
    description:
      'Name and revision of the model that made its rows. Null where that is not known: then nobody checked whether ' +
      'texts among the queries come from the same model.',
  },
} as const;
const metric = { type: 'string', enum: ['cosine', 'dot', 'l2'], default: 'cosine' } as const;
const k = {
  type: 'integer',
  minimum: 1,
  description: 'How many for each; with all queries together at most 1,000,000.',
} as const;

const scoresOf = { type: 'array', items: { type: 'number' } } as const;
const rankingItem = {
  object: { type: 'string', const: 'ranking' },
  index: { type: 'integer' },
  scores: scoresOf,
  ids: {
    type: 'array',
    items: { oneOf: [{ type: 'integer' }, { type: 'string' }] },
    description: 'Row ids or nodes, best first; text where a number would not be exact.',
  },
} as const;
const namedItem = {
  ...rankingItem,
  names: {
    type: 'array',
    items: { type: ['string', 'null'] },
    description: 'With "names": what the rows are called, null where one has no name.',
  },
} as const;
const names = {
  type: 'boolean',
  default: false,
  description: 'Whether the names of rows come beside their ids.',
} as const;
const scoresItem = {
  object: { type: 'string', const: 'scores' },
  index: { type: 'integer' },
  scores: scoresOf,
} as const;

const similaritySchema = <Properties extends object>(
  summary: string,
  required: readonly string[],
  properties: Properties,
  item: object,
) => ({
  summary,
  tags: ['similarity'],
  body: { type: 'object', required, additionalProperties: false, properties },
  response: {
    200: {
      description: 'One item for each query or set of seeds, in order.',
      type: 'object',
      properties: {
        object: { type: 'string', const: 'list' },
        data: { type: 'array', items: { type: 'object', properties: item } },
        ...(Object.hasOwn(properties, 'collection') ? searched : {}),
      },
    },
    ...answers(
      [400, 'The request is wrong; `param` says where.'],
      [404, 'No worker has this collection, version or graph.'],
      [413, 'The body is too large.'],
      [415, 'The body is not JSON.'],
      [429, 'Too much at a time; see Retry-After.'],
      [500, 'It could not be computed.'],
      [503, 'The queue does not answer, no worker did in time, or this server stops; see Retry-After.'],
    ),
  },
});

export const TOPK_SCHEMA = similaritySchema(
  'The k best rows of a collection',
  ['collection', 'queries', 'k'],
  { collection, queries: queriesOf(MAX_QUERIES), k, metric, names },
  namedItem,
);

export const RESCORE_SCHEMA = similaritySchema(
  'The k best of chosen rows',
  ['collection', 'queries', 'candidates', 'k'],
  {
    collection,
    queries: queriesOf(MAX_QUERIES),
    k,
    metric,
    names,
    candidates: {
      description: 'A list of row ids for each query.',
      type: 'array',
      items: { type: 'array', items: { type: 'integer', minimum: 0 }, minItems: 1 },
    },
  },
  namedItem,
);

export const COSINE_SCHEMA = similaritySchema(
  'Every score of queries against a collection or other vectors',
  ['queries'],
  {
    queries: queriesOf(MAX_COSINE_QUERIES),
    collection,
    against: queriesOf(MAX_QUERIES),
    metric,
  },
  scoresItem,
);

export const SPREAD_SCHEMA = similaritySchema(
  'The k nodes that spreading activation reaches most',
  ['graph', 'seeds', 'k'],
  {
    graph: { type: 'string' },
    k,
    seeds: {
      description: 'Sets of nodes, each a number or [number, activation].',
      type: 'array',
      items: { type: 'array', minItems: 1 },
      minItems: 1,
      maxItems: MAX_QUERIES,
    },
    steps: { type: 'integer', minimum: 1, default: 3 },
    decay: { type: 'number', exclusiveMinimum: 0, maximum: 1, default: 0.5 },
    threshold: { type: 'number', minimum: 0, default: 0 },
  },
  rankingItem,
);

// ---- models and operations ----------------------------------------------------------------------------------------

const MODEL = {
  type: 'object',
  properties: {
    id: { type: 'string' },
    object: { type: 'string', const: 'model' },
    created: { type: 'integer' },
    owned_by: { type: 'string' },
    revision: { type: 'string' },
    dimensions: { type: 'integer' },
    max_tokens: { type: 'integer' },
  },
} as const;

export const MODELS_SCHEMA = {
  summary: 'Models this server has',
  tags: ['models'],
  response: {
    200: {
      description: 'All of them.',
      type: 'object',
      properties: { object: { type: 'string', const: 'list' }, data: { type: 'array', items: MODEL } },
    },
  },
} as const;

export const MODEL_SCHEMA = {
  summary: 'One model',
  tags: ['models'],
  params: { type: 'object', properties: { id: { type: 'string' } } },
  response: { 200: { description: 'It is here.', ...MODEL }, ...answers([404, 'There is no such model here.']) },
} as const;

export const HEALTH_SCHEMA = {
  summary: 'Whether this process lives',
  tags: ['operations'],
  response: { 200: { description: 'It does.', type: 'object', properties: { status: { type: 'string' } } } },
} as const;

export const READY_SCHEMA = {
  summary: 'Whether requests can be answered',
  tags: ['operations'],
  response: {
    200: {
      description: 'The queue server answers.',
      type: 'object',
      properties: {
        status: { type: 'string' },
        workers: { type: 'integer' },
        waiting: { type: 'integer' },
        simulated: { type: 'boolean', description: 'There for a trial: vectors are not those of the model.' },
      },
    },
    ...answers([503, 'It does not.']),
  },
} as const;

export const METRICS_SCHEMA = {
  summary: 'Metrics in Prometheus text format',
  tags: ['operations'],
  produces: ['text/plain'],
} as const;

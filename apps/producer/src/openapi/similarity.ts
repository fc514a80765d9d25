// Bodies of questions about similarity.

import { MAX_DIMS, MAX_VALUE } from '@shoal/contract';
import {
  COLLECTION_NAME,
  GRAPH_NAME,
  MAX_COSINE_QUERIES,
  MAX_HITS,
  MAX_QUERIES,
  MAX_STEPS,
  MOST_COMPARED,
} from '../similarity-request.ts';
import type { ServedModel } from '../embeddings-request.ts';
import { optionalModel } from './embeddings.ts';
import { listOf, object, optional, text, type Schema } from './parts.ts';

const vector = {
  type: 'array',
  items: { type: 'number', minimum: -MOST_COMPARED, maximum: MOST_COMPARED },
  minItems: 1,
  maxItems: MAX_DIMS,
};
const queriesOf = (most: number) => ({
  description: 'Texts, which a model embeds first, or vectors, all with the same number of dimensions.',
  oneOf: [
    text,
    { type: 'array', items: text, minItems: 1, maxItems: most },
    { type: 'array', items: vector, minItems: 1, maxItems: most },
  ],
});
const collection = {
  type: 'string',
  pattern: COLLECTION_NAME.source,
  description: 'Name and version: docs@3, or docs for its newest version.',
};
/** Of answers about a collection. */
const searched = {
  collection: { type: 'string', description: 'Name and version of the collection that was searched.' },
  collection_model: {
    type: ['string', 'null'],
    description:
      'Name and revision of the model that made its rows. Null where that is not known: then nobody checked whether ' +
      'texts among the queries come from the same model.',
  },
};
const metric = optional({ type: 'string', default: 'cosine' }, ['cosine', 'dot', 'l2']);
const k = {
  type: 'integer',
  minimum: 1,
  maximum: MAX_HITS,
  description: `How many for each; with all of a request together at most ${MAX_HITS}.`,
};
const names = optional({
  type: 'boolean',
  default: false,
  description: 'Whether the names of rows come beside their ids.',
});
const rowId = { type: 'integer', minimum: 0, maximum: Number.MAX_SAFE_INTEGER };

const ranked = { collection, queries: queriesOf(MAX_QUERIES), k, metric, names };
const body = (
  required: readonly string[],
  properties: Readonly<Record<string, Schema>>,
  rest: Schema = {},
): Schema => ({
  type: 'object',
  required,
  additionalProperties: false,
  properties,
  ...rest,
});

/** What embeds texts among the queries. */
const modelOf = (models: readonly ServedModel[]): Schema =>
  optionalModel(
    models,
    'By which texts among the queries are embedded. Left out: the model of the collection, where it is served, else ' +
      'the first of /v1/models.',
  );

export const topKRequest = (models: readonly ServedModel[]): Schema =>
  body(
    ['collection', 'queries', 'k'],
    { ...ranked, model: modelOf(models) },
    { examples: [{ collection: 'docs', queries: 'how are stalled jobs recovered', k: 3, names: true }] },
  );

export const rescoreRequest = (models: readonly ServedModel[]): Schema =>
  body(['collection', 'queries', 'candidates', 'k'], {
    ...ranked,
    model: modelOf(models),
    candidates: {
      description: 'A list of row ids for each query.',
      type: 'array',
      items: { type: 'array', items: rowId, minItems: 1 },
      minItems: 1,
      maxItems: MAX_QUERIES,
    },
  });

const { description: queriesDescription, oneOf: queriesForms } = queriesOf(MAX_QUERIES);

export const cosineRequest = (models: readonly ServedModel[]): Schema =>
  body(
    ['queries'],
    {
      queries: queriesOf(MAX_COSINE_QUERIES),
      collection: optional(collection),
      against: { description: queriesDescription, oneOf: [...queriesForms, { type: 'null' }] },
      metric,
      model: modelOf(models),
    },
    {
      // either of the two, and the other left out
      oneOf: [
        { required: ['collection'], properties: { collection: { type: 'string' }, against: { type: 'null' } } },
        { required: ['against'], properties: { against: { type: ['string', 'array'] }, collection: { type: 'null' } } },
      ],
    },
  );

export const SPREAD_REQUEST = body(['graph', 'seeds', 'k'], {
  graph: { type: 'string', pattern: GRAPH_NAME.source },
  k,
  seeds: {
    description: 'Sets of nodes, each a number or [number, activation].',
    type: 'array',
    items: {
      type: 'array',
      items: {
        oneOf: [
          rowId,
          {
            type: 'array',
            prefixItems: [rowId, { type: 'number', exclusiveMinimum: 0, maximum: MAX_VALUE }],
            minItems: 2,
            maxItems: 2,
          },
        ],
      },
      minItems: 1,
    },
    minItems: 1,
    maxItems: MAX_QUERIES,
  },
  steps: optional({ type: 'integer', minimum: 1, maximum: MAX_STEPS, default: 3 }),
  decay: optional({ type: 'number', exclusiveMinimum: 0, maximum: 1, default: 0.5 }),
  threshold: optional({ type: 'number', minimum: 0, default: 0 }),
});

const scores = { type: 'array', items: { type: 'number' } };

export const RANKING_LIST = listOf(
  {
    type: 'object',
    required: ['object', 'index', 'scores', 'ids'],
    properties: {
      object: { type: 'string', enum: ['ranking'] },
      index: { type: 'integer' },
      scores,
      ids: {
        type: 'array',
        items: { oneOf: [{ type: 'integer' }, { type: 'string' }] },
        description: 'Row ids or nodes, best first; text where a number would not be exact.',
      },
      names: {
        type: 'array',
        items: { type: ['string', 'null'] },
        description: 'With "names": what the rows are called, null where one has no name.',
      },
    },
  },
  {},
  searched,
);

export const SCORES_LIST = listOf(
  object({ object: { type: 'string', enum: ['scores'] }, index: { type: 'integer' }, scores }),
  {},
  searched,
);

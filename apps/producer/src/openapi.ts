// What /openapi.json says. Schemas describe; they check nothing: bodies are checked by embeddings-request.ts and
// similarity-request.ts, which say more exactly what is wrong. openapi.test.ts holds both against each other. What no
// schema can say (that a row of ids is whole, that vectors have the same dimensions, that k times the queries is within
// bounds) is in the descriptions.

import { invariant } from '@shoal/contract';
import type { ServedModel } from './embeddings-request.ts';
import {
  DECODE_RESPONSE,
  EMBEDDINGS_RESPONSE,
  SERVER_INFO,
  TEI_EMBED_RESPONSE,
  TOKENIZE_RESPONSE,
  decodeRequest,
  embeddingsRequest,
  teiEmbedRequest,
  tokenizeRequest,
} from './openapi/embeddings.ts';
import { content, listOf, object, type Schema } from './openapi/parts.ts';
import { RERANK_REQUEST, RERANK_RESPONSE, TEI_RERANK_REQUEST, TEI_RERANK_RESPONSE } from './openapi/reranking.ts';
import {
  RANKING_LIST,
  SCORES_LIST,
  SPREAD_REQUEST,
  cosineRequest,
  rescoreRequest,
  topKRequest,
} from './openapi/similarity.ts';

/** Names of the schemas that others refer to. */
export type ComponentName =
  | 'Error'
  | 'Model'
  | 'ModelList'
  | 'EmbeddingsRequest'
  | 'EmbeddingsResponse'
  | 'TeiEmbedRequest'
  | 'TeiEmbedResponse'
  | 'TokenizeRequest'
  | 'TokenizeResponse'
  | 'DecodeRequest'
  | 'DecodeResponse'
  | 'ServerInfo'
  | 'RerankRequest'
  | 'RerankResponse'
  | 'TeiRerankRequest'
  | 'TeiRerankResponse'
  | 'TopKRequest'
  | 'RescoreRequest'
  | 'CosineRequest'
  | 'SpreadRequest'
  | 'RankingList'
  | 'ScoresList'
  | 'Collection'
  | 'CollectionList'
  | 'Health'
  | 'Readiness';

const ref = (name: ComponentName): Schema => ({ $ref: `${name}#` });
// ---- components ---------------------------------------------------------------------------------------------------

const ERROR: Schema = {
  type: 'object',
  required: ['error'],
  properties: {
    error: object({
      message: { type: 'string' },
      type: { type: 'string' },
      param: { type: ['string', 'null'] },
      code: { type: ['string', 'null'] },
    }),
    request_id: {
      type: 'string',
      description: 'With status 500: as in the header x-request-id, and in the log of the server.',
    },
  },
};

const simulated = { type: 'boolean', description: 'There for a trial: vectors are not those of the model.' };

const COLLECTION = object({
  id: { type: 'string', description: 'Its name, which stands for its newest version in questions.' },
  object: { type: 'string', enum: ['collection'] },
  created: { type: 'integer', description: 'When its newest version was made, in seconds since 1970.' },
  owner: { type: ['string', 'null'], description: 'The tenant that it belongs to; null: everybody’s.' },
  versions: { type: 'array', items: { type: 'integer' }, description: 'Newest first; docs@3 asks for version 3.' },
  rows: { type: 'integer', description: 'Of the newest version, like what follows.' },
  dimensions: { type: 'integer' },
  dtype: { type: 'string', enum: ['f32', 'f16', 'i8'] },
  model: { type: ['string', 'null'], description: 'name@revision of what made its rows; null: not known.' },
});

const MODEL: Schema = {
  type: 'object',
  required: ['id', 'object', 'created', 'owned_by', 'root', 'revision', 'kind'],
  properties: {
    id: { type: 'string' },
    object: { type: 'string', enum: ['model'] },
    created: { type: 'integer' },
    owned_by: { type: 'string' },
    root: { type: 'string', description: 'The name of the model that an alias stands for, or its own.' },
    aliases: { type: 'array', items: { type: 'string' }, description: 'Of an embedder.' },
    revision: { type: 'string' },
    kind: { type: 'string', enum: ['embedder', 'reranker'], description: 'Whether it gives vectors or scores.' },
    dimensions: { type: 'integer', description: 'Of an embedder.' },
    max_tokens: { type: 'integer', description: 'Of an embedder.' },
    simulated,
  },
};

/** The named schemas, for the models that are served. */
export function components(models: readonly ServedModel[]): readonly Schema[] {
  invariant(models.length > 0, 'a server has a model');
  const all = models as readonly [ServedModel, ...ServedModel[]];
  const schemas: Readonly<Record<ComponentName, Schema>> = {
    Error: ERROR,
    Model: MODEL,
    ModelList: listOf(ref('Model')),
    EmbeddingsRequest: embeddingsRequest(all),
    EmbeddingsResponse: EMBEDDINGS_RESPONSE,
    TeiEmbedRequest: teiEmbedRequest(all),
    TeiEmbedResponse: TEI_EMBED_RESPONSE,
    TokenizeRequest: tokenizeRequest(all),
    TokenizeResponse: TOKENIZE_RESPONSE,
    DecodeRequest: decodeRequest(all),
    DecodeResponse: DECODE_RESPONSE,
    ServerInfo: SERVER_INFO,
    RerankRequest: RERANK_REQUEST,
    RerankResponse: RERANK_RESPONSE,
    TeiRerankRequest: TEI_RERANK_REQUEST,
    TeiRerankResponse: TEI_RERANK_RESPONSE,
    TopKRequest: topKRequest(all),
    RescoreRequest: rescoreRequest(all),
    CosineRequest: cosineRequest(all),
    SpreadRequest: SPREAD_REQUEST,
    RankingList: RANKING_LIST,
    ScoresList: SCORES_LIST,
    Collection: COLLECTION,
    CollectionList: listOf(ref('Collection')),
    Health: object({ status: { type: 'string' } }),
    Readiness: {
      type: 'object',
      required: ['status', 'workers', 'drained', 'paused', 'waiting'],
      properties: {
        status: { type: 'string' },
        workers: { type: 'integer' },
        drained: { type: 'integer' },
        paused: { type: 'boolean' },
        waiting: { type: 'integer' },
        simulated,
      },
    },
  };
  return Object.entries(schemas).map(([$id, schema]) => ({ $id, ...schema }));
}

// ---- operations ---------------------------------------------------------------------------------------------------

export const refusals = (...statuses: readonly [number, string][]): Schema => ({
  ...Object.fromEntries(
    statuses.map(([status, description]) => [status, { description, content: content(ref('Error')) }]),
  ),
  401: { description: 'The API key is missing or wrong.', content: content(ref('Error')) },
  403: { description: 'The key is not for this, or the server has another name.', content: content(ref('Error')) },
  // another method, a server that stops: each route may be answered so
  default: { description: 'Anything else that went wrong.', content: content(ref('Error')) },
});

const asking = (
  operationId: string,
  summary: string,
  tag: string,
  [asked, given]: readonly [ComponentName, ComponentName],
  answer: string,
  unknown: string,
): Schema => ({
  operationId,
  summary,
  tags: [tag],
  body: ref(asked),
  response: {
    200: { description: answer, content: content(ref(given)) },
    ...refusals(
      [400, 'The request is wrong; `param` says where.'],
      [404, unknown],
      [408, 'The body did not arrive in time.'],
      [413, 'The body is too large.'],
      [415, 'The body is not JSON.'],
      [429, 'Too much at a time; see Retry-After.'],
      [500, 'It could not be computed.'],
      [503, 'The queue does not answer, no worker did in time, or this server stops; see Retry-After.'],
    ),
  },
});

const NO_MODEL = 'There is no such model here.';
const NO_ROWS = 'No worker has this collection, version or graph.';
const EACH = 'One item for each query or set of seeds, in order.';

export const EMBEDDINGS_SCHEMA = asking(
  'createEmbeddings',
  'Vectors of texts',
  'embeddings',
  ['EmbeddingsRequest', 'EmbeddingsResponse'],
  'One vector per input, in order.',
  NO_MODEL,
);

export const EMBED_TEI_SCHEMA = asking(
  'embedTexts',
  'The same in the shape of text-embeddings-inference',
  'embeddings',
  ['TeiEmbedRequest', 'TeiEmbedResponse'],
  'One vector per input, in order.',
  NO_MODEL,
);

export const TOKENIZE_SCHEMA = asking(
  'tokenize',
  'Token ids of texts',
  'embeddings',
  ['TokenizeRequest', 'TokenizeResponse'],
  'One row per input, in order.',
  NO_MODEL,
);

export const DECODE_SCHEMA = asking(
  'decode',
  'Texts of token ids, in the shape of text-embeddings-inference',
  'embeddings',
  ['DecodeRequest', 'DecodeResponse'],
  'One text per row of ids, in order.',
  NO_MODEL,
);

const NO_RERANKER = 'No worker serves such a reranker; the message names those that are served.';

export const RERANK_SCHEMA = asking(
  'rerank',
  'How well documents answer a query, in the shape of Cohere’s and Jina’s APIs',
  'reranking',
  ['RerankRequest', 'RerankResponse'],
  'The documents by score, best first.',
  NO_RERANKER,
);

export const TEI_RERANK_SCHEMA = asking(
  'rerankTexts',
  'The same in the shape of text-embeddings-inference',
  'reranking',
  ['TeiRerankRequest', 'TeiRerankResponse'],
  'The texts by score, best first.',
  NO_RERANKER,
);

export const TOPK_SCHEMA = asking(
  'topK',
  'The k best rows of a collection',
  'similarity',
  ['TopKRequest', 'RankingList'],
  EACH,
  NO_ROWS,
);

export const RESCORE_SCHEMA = asking(
  'rescore',
  'The k best of chosen rows',
  'similarity',
  ['RescoreRequest', 'RankingList'],
  EACH,
  NO_ROWS,
);

export const COSINE_SCHEMA = asking(
  'cosine',
  'Every score of queries against a collection or other vectors',
  'similarity',
  ['CosineRequest', 'ScoresList'],
  EACH,
  NO_ROWS,
);

export const SPREAD_SCHEMA = asking(
  'spread',
  'The k nodes that spreading activation reaches most',
  'similarity',
  ['SpreadRequest', 'RankingList'],
  EACH,
  NO_ROWS,
);

const reading = (operationId: string, summary: string, tag: string, rest: Schema): Schema => ({
  operationId,
  summary,
  tags: [tag],
  ...rest,
});

export const MODELS_SCHEMA = reading('listModels', 'Models that are served', 'models', {
  response: { 200: { description: 'All of them.', content: content(ref('ModelList')) }, ...refusals() },
});

export const MODEL_SCHEMA = reading('retrieveModel', 'One model', 'models', {
  params: object({
    id: { type: 'string', description: 'Its name, name@revision, or ORG/NAME of the hub (with %2F).' },
  }),
  response: { 200: { description: 'It is here.', content: content(ref('Model')) }, ...refusals([404, NO_MODEL]) },
});

export const INFO_SCHEMA = reading(
  'serverInfo',
  'What this server has, as text-embeddings-inference tells it',
  'models',
  {
    response: { 200: { description: 'Of its first model.', content: content(ref('ServerInfo')) }, ...refusals() },
  },
);

export const COLLECTIONS_SCHEMA = reading('listCollections', 'Collections that workers answer from', 'similarity', {
  response: { 200: { description: 'All of them.', content: content(ref('CollectionList')) }, ...refusals() },
});

export const COLLECTION_SCHEMA = reading('retrieveCollection', 'One collection', 'similarity', {
  params: object({ id: { type: 'string', description: 'Its name, without a version.' } }),
  response: {
    200: { description: 'It is here.', content: content(ref('Collection')) },
    ...refusals([404, 'No worker has it.']),
  },
});

export const HEALTH_SCHEMA = reading('health', 'Whether this process lives', 'operations', {
  security: [],
  response: { 200: { description: 'It does.', content: content(ref('Health')) }, ...refusals() },
});

export const READY_SCHEMA = reading('readiness', 'Whether requests can be answered', 'operations', {
  security: [],
  response: {
    200: { description: 'Jobs are accepted and kept.', content: content(ref('Readiness')) },
    ...refusals([503, 'They are not; see Retry-After.']),
  },
});

export const METRICS_SCHEMA = reading('metrics', 'Metrics in Prometheus text format', 'operations', {
  response: {
    200: { description: 'All of them.', content: { 'text/plain': { schema: { type: 'string' } } } },
    ...refusals(),
  },
});

// What /openapi.json says. Schemas describe; they check nothing: bodies are checked by embeddings-request.ts and
// similarity-request.ts, which say more exactly what is wrong. openapi.test.ts holds both against each other. What no
// schema can say (that a row of ids is whole, that vectors have the same dimensions, that k times the queries is within
// bounds) is in the descriptions.

import { MAX_DIMS, MAX_VALUE, invariant } from '@shoal/contract';
import { MAX_INPUTS, promptNames, type ServedModel } from './embeddings-request.ts';
import { MAX_DOCUMENTS, MAX_TOP_N } from './rerank-request.ts';
import {
  COLLECTION_NAME,
  GRAPH_NAME,
  MAX_COSINE_QUERIES,
  MAX_HITS,
  MAX_QUERIES,
  MAX_STEPS,
  MOST_COMPARED,
} from './similarity-request.ts';

export type Schema = Readonly<Record<string, unknown>>;

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
export const content = (schema: Schema): Schema => ({ 'application/json': { schema } });
export const object = (properties: Readonly<Record<string, Schema>>, rest: Schema = {}): Schema => ({
  type: 'object',
  required: Object.keys(properties),
  properties,
  ...rest,
});
/** A field that may be left out, which null says as well. */
const optional = (
  { type, ...rest }: Schema & { readonly type: string },
  choices?: readonly (string | boolean)[],
): Schema => ({
  type: [type, 'null'],
  ...(choices === undefined ? {} : { enum: [...choices, null] }),
  ...rest,
});
const listOf = (
  items: Schema,
  rest: Readonly<Record<string, Schema>> = {},
  sometimes: Readonly<Record<string, Schema>> = {},
): Schema => ({
  type: 'object',
  required: ['object', 'data', ...Object.keys(rest)],
  properties: {
    object: { type: 'string', enum: ['list'] },
    data: { type: 'array', items },
    ...rest,
    ...sometimes,
  },
});

// ---- embeddings ---------------------------------------------------------------------------------------------------

const text = { type: 'string', minLength: 1 } as const;

/** Of several models everything that one of them takes; which takes what is said by their names in /v1/models. */
function embeddingsRequest(models: readonly [ServedModel, ...ServedModel[]]) {
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
      user: optional({ type: 'string', description: 'Accepted for compatibility; not used yet.' }),
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

const EMBEDDINGS_RESPONSE = listOf(
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
function optionalModel(models: readonly ServedModel[]): Schema {
  const { enum: names, ...rest } = modelNames(models);
  return {
    ...rest,
    type: ['string', 'null'],
    ...(Array.isArray(names) ? { enum: [...names, null] } : {}),
    description: 'The first of /v1/models when left out.',
  };
}

function teiEmbedRequest(models: readonly [ServedModel, ...ServedModel[]]): Schema {
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

const TEI_EMBED_RESPONSE: Schema = { type: 'array', items: { type: 'array', items: { type: 'number' } } };

function tokenizeRequest(models: readonly [ServedModel, ...ServedModel[]]): Schema {
  const { prompt } = embeddingsRequest(models).properties;
  return {
    type: 'object',
    examples: [{ input: 'a shoal of fish' }],
    required: ['input'],
    additionalProperties: false,
    properties: { input: texts, model: optionalModel(models), prompt },
  };
}

const TOKENIZE_RESPONSE = listOf(
  object({
    object: { type: 'string', enum: ['tokens'] },
    index: { type: 'integer' },
    count: { type: 'integer' },
    tokens: { type: 'array', items: { type: 'integer' }, description: 'As the model takes them, end tokens included.' },
    truncated: { type: 'boolean', description: 'The text has more, which the model would not see.' },
  }),
  { model: { type: 'string' }, max_tokens: { type: 'integer', description: 'The longest row of the model.' } },
);

const SERVER_INFO = object({
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

// ---- reranking ----------------------------------------------------------------------------------------------------

const reranker = {
  type: 'string',
  description:
    'A reranker of /v1/models, as name, name@revision, or ORG/NAME of the hub. Which there are depends on the workers.',
};
const query = { ...text, description: 'What the documents are weighed against.' };
const notPossible = {
  type: 'null',
  description: 'Not possible here: a document is read until the longest row is full.',
};

const RERANK_REQUEST = {
  type: 'object',
  examples: [
    { model: 'ORG/NAME', query: 'how do magnets work', documents: ['iron atoms align', 'buy shoes'], top_n: 1 },
  ],
  required: ['model', 'query', 'documents'],
  additionalProperties: false,
  properties: {
    model: reranker,
    query,
    documents: {
      type: 'array',
      items: {
        oneOf: [
          { type: 'string' },
          {
            type: 'object',
            required: ['text'],
            additionalProperties: false,
            properties: { text: { type: 'string' } },
          },
        ],
      },
      minItems: 1,
      maxItems: MAX_DOCUMENTS,
    },
    top_n: optional({
      type: 'integer',
      minimum: 1,
      maximum: MAX_TOP_N,
      description: 'So many of the best; all when left out.',
    }),
    return_documents: optional({ type: 'boolean', default: false, description: 'Each result has its document.' }),
    truncate: optional(
      {
        type: 'string',
        default: 'end',
        description: 'What happens to a pair with more tokens than the model takes. Not in the API of others.',
      },
      ['end', 'error'],
    ),
    max_tokens_per_doc: notPossible,
    max_chunks_per_doc: notPossible,
  },
};

const RERANK_RESPONSE: Schema = {
  type: 'object',
  required: ['object', 'id', 'model', 'results'],
  properties: {
    object: { type: 'string', enum: ['list'] },
    id: { type: 'string' },
    model: { type: 'string' },
    results: {
      type: 'array',
      description: 'Best first.',
      items: {
        type: 'object',
        required: ['index', 'relevance_score'],
        properties: {
          index: { type: 'integer' },
          relevance_score: { type: 'number' },
          document: object({ text: { type: 'string' } }),
        },
      },
    },
    usage: object({
      prompt_tokens: { type: 'integer' },
      total_tokens: { type: 'integer' },
      truncated_documents: { type: 'integer', description: 'Pairs that were cut.' },
    }),
    meta: object({
      api_version: object({ version: { type: 'string' } }),
      tokens: object({ input_tokens: { type: 'integer' }, output_tokens: { type: 'integer' } }),
    }),
  },
};

const TEI_RERANK_REQUEST = {
  type: 'object',
  examples: [{ query: 'how do magnets work', texts: ['iron atoms align', 'buy shoes'] }],
  required: ['query', 'texts'],
  additionalProperties: false,
  properties: {
    query,
    texts: { type: 'array', items: { type: 'string' }, minItems: 1, maxItems: MAX_DOCUMENTS },
    raw_scores: optional({ type: 'boolean', description: 'Scores are what the model gives by default.' }, [false]),
    return_text: optional({ type: 'boolean', default: false, description: 'Each result has its text.' }),
    truncate: optional({ type: 'boolean', default: true, description: 'Whether a pair that is too long is cut.' }),
    model: optional({ ...reranker, description: 'Needed where several are served. Not in TEI’s API.' }),
  },
};

const TEI_RERANK_RESPONSE: Schema = {
  type: 'array',
  items: {
    type: 'object',
    required: ['index', 'score'],
    properties: { index: { type: 'integer' }, score: { type: 'number' }, text: { type: 'string' } },
  },
};

// ---- similarity ---------------------------------------------------------------------------------------------------

const vector = {
  type: 'array',
  items: { type: 'number', minimum: -MOST_COMPARED, maximum: MOST_COMPARED },
  minItems: 1,
  maxItems: MAX_DIMS,
};
const queriesOf = (most: number) => ({
  description: 'Texts, which the served model embeds, or vectors, all with the same number of dimensions.',
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

const TOPK_REQUEST = body(['collection', 'queries', 'k'], ranked, {
  examples: [{ collection: 'docs', queries: 'how are stalled jobs recovered', k: 3, names: true }],
});

const RESCORE_REQUEST = body(['collection', 'queries', 'candidates', 'k'], {
  ...ranked,
  candidates: {
    description: 'A list of row ids for each query.',
    type: 'array',
    items: { type: 'array', items: rowId, minItems: 1 },
    minItems: 1,
    maxItems: MAX_QUERIES,
  },
});

const { description: queriesDescription, oneOf: queriesForms } = queriesOf(MAX_QUERIES);

const COSINE_REQUEST = body(
  ['queries'],
  {
    queries: queriesOf(MAX_COSINE_QUERIES),
    collection: optional(collection),
    against: { description: queriesDescription, oneOf: [...queriesForms, { type: 'null' }] },
    metric,
  },
  {
    // either of the two, and the other left out
    oneOf: [
      { required: ['collection'], properties: { collection: { type: 'string' }, against: { type: 'null' } } },
      { required: ['against'], properties: { against: { type: ['string', 'array'] }, collection: { type: 'null' } } },
    ],
  },
);

const SPREAD_REQUEST = body(['graph', 'seeds', 'k'], {
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

const RANKING_LIST = listOf(
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

const SCORES_LIST = listOf(
  object({ object: { type: 'string', enum: ['scores'] }, index: { type: 'integer' }, scores }),
  {},
  searched,
);

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
    ServerInfo: SERVER_INFO,
    RerankRequest: RERANK_REQUEST,
    RerankResponse: RERANK_RESPONSE,
    TeiRerankRequest: TEI_RERANK_REQUEST,
    TeiRerankResponse: TEI_RERANK_RESPONSE,
    TopKRequest: TOPK_REQUEST,
    RescoreRequest: RESCORE_REQUEST,
    CosineRequest: COSINE_REQUEST,
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

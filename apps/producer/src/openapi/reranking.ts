// Bodies of reranking, in the shapes of Cohere's and Jina's APIs and of TEI's.

import { MAX_DOCUMENTS, MAX_TOP_N } from '../rerank-request.ts';
import { object, optional, text, type Schema } from './parts.ts';

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

export const RERANK_REQUEST = {
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

export const RERANK_RESPONSE: Schema = {
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

export const TEI_RERANK_REQUEST = {
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

export const TEI_RERANK_RESPONSE: Schema = {
  type: 'array',
  items: {
    type: 'object',
    required: ['index', 'score'],
    properties: { index: { type: 'integer' }, score: { type: 'number' }, text: { type: 'string' } },
  },
};

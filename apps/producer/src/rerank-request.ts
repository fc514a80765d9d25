// POST /v1/rerank and /rerank: their bodies, checked field by field like those of embeddings. The first is what Cohere's
// and Jina's clients send, the second what those of text-embeddings-inference (TEI) do.

import { checkText, checkWhole } from './embeddings-request.ts';
import { checkedBody, list, oneOf, wholeNumber, wrongType } from './body-fields.ts';
import { invalid } from './problem.ts';

export interface RerankRequest {
  /** As it was asked for; undefined: the only one that is served. */
  readonly model: string | undefined;
  readonly query: string;
  readonly documents: readonly string[];
  /** So many of the best are answered; undefined: all. */
  readonly topN: number | undefined;
  /** Each result has its document as well. */
  readonly returnDocuments: boolean;
  readonly truncate: 'end' | 'error';
}

export const MAX_DOCUMENTS = 2_048;
export const MAX_TOP_N = 2 ** 31 - 1;

/** Throws a Problem that names the field. */
export function parseRerankRequest(body: unknown): RerankRequest {
  const fields = checkedBody(body, [
    'model',
    'query',
    'documents',
    'top_n',
    'return_documents',
    'truncate',
    'max_tokens_per_doc',
    'max_chunks_per_doc',
  ]);
  if (fields.model === undefined)
    throw invalid('missing_required_parameter', 'model', '"model" is missing: the name of a reranker, see /v1/models');
  for (const name of ['max_tokens_per_doc', 'max_chunks_per_doc'] as const)
    if (fields[name] !== undefined)
      throw invalid(
        'unknown_parameter',
        name,
        `"${name}" is not possible here: a document is read until the model's longest row is full, and "truncate" says ` +
          'what happens to the rest; leave it out',
      );
  return {
    model: modelOf(fields.model),
    query: queryOf(fields.query),
    documents: documentsOf('documents', fields.documents, documentOf),
    topN: fields.top_n === undefined ? undefined : wholeNumber('top_n', fields.top_n, { from: 1, to: MAX_TOP_N }),
    returnDocuments: flag('return_documents', fields.return_documents),
    truncate: oneOf('truncate', fields.truncate, ['end', 'error']),
  };
}

/** The same in TEI's shape; `model` is our own, for servers with several. */
export function parseTeiRequest(body: unknown): RerankRequest {
  const fields = checkedBody(body, ['query', 'texts', 'raw_scores', 'return_text', 'truncate', 'model']);
  if (flag('raw_scores', fields.raw_scores))
    throw invalid(
      'invalid_value',
      'raw_scores',
      'scores are what the model itself gives by default, with a sigmoid or without; "raw_scores" can only be false',
    );
  return {
    model: fields.model === undefined ? undefined : modelOf(fields.model),
    query: queryOf(fields.query),
    documents: documentsOf('texts', fields.texts, textOf),
    topN: undefined,
    returnDocuments: flag('return_text', fields.return_text),
    truncate: fields.truncate === undefined || flag('truncate', fields.truncate) ? 'end' : 'error',
  };
}

function modelOf(asked: unknown): string {
  if (typeof asked !== 'string') throw wrongType('model', 'a string', asked);
  return asked;
}

function queryOf(asked: unknown): string {
  if (asked === undefined)
    throw invalid('missing_required_parameter', 'query', '"query" is missing: what the documents are weighed against');
  if (typeof asked !== 'string') throw wrongType('query', 'a string', asked);
  return checkText(asked, 'query');
}

function documentsOf(name: string, asked: unknown, read: (one: unknown, param: string) => string): readonly string[] {
  const items = list(name, asked, 'an array of texts', MAX_DOCUMENTS);
  return items.map((one, at) => read(one, `${name}[${at}]`));
}

function documentOf(asked: unknown, param: string): string {
  if (typeof asked !== 'object' || asked === null || Array.isArray(asked))
    return textOf(asked, param, 'a string, or { "text": … }');
  const { text } = checkedBody(asked, ['text'], param);
  return textOf(text, `${param}.text`);
}

/** An empty document is one that answers nothing. */
function textOf(asked: unknown, param: string, wanted = 'a string'): string {
  if (typeof asked !== 'string') throw wrongType(param, wanted, asked);
  return checkWhole(asked, param);
}

function flag(name: string, asked: unknown): boolean {
  if (asked !== undefined && typeof asked !== 'boolean') throw wrongType(name, 'true or false', asked);
  return asked === true;
}

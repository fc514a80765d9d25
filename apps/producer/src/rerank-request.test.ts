// Bodies of POST /v1/rerank and /rerank: what Cohere's, Jina's and TEI's clients send is taken, the rest is refused by
// field.

import { describe, expect, test } from 'vitest';
import { Problem } from './problem.ts';
import { MAX_DOCUMENTS, parseRerankRequest, parseTeiRequest } from './rerank-request.ts';

const asked = { model: 'my-reranker', query: 'how do magnets work', documents: ['iron atoms align', 'buy shoes'] };
const tei = { query: 'how do magnets work', texts: ['iron atoms align'] };

function problemOf(parse: () => unknown): unknown {
  try {
    return parse();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return [error.facts.param, error.facts.code, error.message];
  }
}

describe('a body in the shape of Cohere and Jina', () => {
  test.each([
    ['as it is', {}, {}],
    ['with documents that are objects', { documents: [{ text: 'iron atoms align' }, 'buy shoes'] }, {}],
    ['with the best two and their documents', { top_n: 2, return_documents: true }, { topN: 2, returnDocuments: true }],
    ['with more wanted than there are', { top_n: 1_000 }, { topN: 1_000 }],
    ['with null for what was left out, as LangChain sends it', { top_n: null, max_tokens_per_doc: null }, {}],
    ['with truncate', { truncate: 'error' }, { truncate: 'error' }],
    ['with an empty document', { documents: [''] }, { documents: [''] }],
  ])('is read %s', (_, more, expected) => {
    expect(parseRerankRequest({ ...asked, ...more })).toEqual({
      ...asked,
      topN: undefined,
      returnDocuments: false,
      truncate: 'end',
      ...expected,
    });
  });

  test.each([
    [{ model: undefined }, 'model', 'missing_required_parameter', '"model" is missing: the name of a reranker'],
    [{ model: 3 }, 'model', 'invalid_type', '"model" must be a string, found 3'],
    [{ query: undefined }, 'query', 'missing_required_parameter', '"query" is missing'],
    [{ query: '' }, 'query', 'empty_string', '"query" is an empty string'],
    [{ query: ['a'] }, 'query', 'invalid_type', '"query" must be a string, found an array'],
    [{ query: 'a\ud83d' }, 'query', 'invalid_value', '"query" has half of a surrogate pair'],
    [{ documents: [{ text: '\ud83d' }] }, 'documents[0].text', 'invalid_value', 'has half of a surrogate pair'],
    [{ documents: undefined }, 'documents', 'missing_required_parameter', '"documents" is missing'],
    [{ documents: [] }, 'documents', 'empty_array', '"documents" is an empty array'],
    [{ documents: 'a' }, 'documents', 'invalid_type', '"documents" must be an array of texts, found "a"'],
    [{ documents: ['a', 1] }, 'documents[1]', 'invalid_type', '"documents[1]" must be a string, or { "text": … }'],
    [{ documents: [{}] }, 'documents[0].text', 'invalid_type', '"documents[0].text" must be a string'],
    [
      { documents: [{ text: 'a', title: 'b' }] },
      'documents[0].title',
      'unknown_parameter',
      '"documents[0].title" is not a parameter here; there are text',
    ],
    [
      { documents: Array(MAX_DOCUMENTS + 1).fill('a') },
      'documents',
      'array_above_max_length',
      '"documents" has 2049 items; at most 2048 go into one request',
    ],
    [{ top_n: 0 }, 'top_n', 'integer_below_min_value', '"top_n" must be 1 to'],
    [{ top_n: '2' }, 'top_n', 'invalid_type', '"top_n" must be a whole number, found "2"'],
    [{ return_documents: 1 }, 'return_documents', 'invalid_type', '"return_documents" must be true or false, found 1'],
    [{ truncate: true }, 'truncate', 'invalid_value', '"truncate" must be "end" or "error", found true'],
    [
      { max_tokens_per_doc: 512 },
      'max_tokens_per_doc',
      'unknown_parameter',
      '"max_tokens_per_doc" is not possible here',
    ],
    [{ max_chunks_per_doc: 2 }, 'max_chunks_per_doc', 'unknown_parameter', '"max_chunks_per_doc" is not possible here'],
    [{ rank_fields: ['text'] }, 'rank_fields', 'unknown_parameter', '"rank_fields" is not a parameter here'],
  ])('is refused by field: %j', (more, param, code, message) => {
    expect(problemOf(() => parseRerankRequest({ ...asked, ...more }))).toEqual([
      param,
      code,
      expect.stringContaining(message),
    ]);
  });
});

describe('a body in the shape of TEI', () => {
  test.each([
    [{}, {}],
    [{ raw_scores: false, return_text: true, truncate: true }, { returnDocuments: true }],
    [
      { truncate: false, model: 'my-reranker' },
      { truncate: 'error', model: 'my-reranker' },
    ],
  ])('is read: %j', (more, expected) => {
    expect(parseTeiRequest({ ...tei, ...more })).toEqual({
      model: undefined,
      query: tei.query,
      documents: tei.texts,
      topN: undefined,
      returnDocuments: false,
      truncate: 'end',
      ...expected,
    });
  });

  test.each([
    [{ raw_scores: true }, 'raw_scores', 'invalid_value'],
    [{ texts: [{ text: 'a' }] }, 'texts[0]', 'invalid_type'],
    [{ truncation_direction: 'right' }, 'truncation_direction', 'unknown_parameter'],
    [{ documents: ['a'] }, 'documents', 'unknown_parameter'],
  ])('is refused by field: %j', (more, param, code) => {
    expect(problemOf(() => parseTeiRequest({ ...tei, ...more }))).toEqual([param, code, expect.any(String)]);
  });
});

// Answers of POST /v1/rerank, in the shape that Cohere's and Jina's clients read, and of /rerank, in TEI's. Best first.

import type { RerankResult } from '@shoal/client';
import { JsonList } from './json-stream.ts';
import type { RerankRequest } from './rerank-request.ts';

/** Bytes that an answer holds until it is written: some numbers a result, and texts where they come back. */
export function rerankBytes({ documents, returnDocuments }: RerankRequest): number {
  const texts = returnDocuments ? documents.reduce((sum, text) => sum + text.length, 0) : 0;
  return 2 * (64 * documents.length + texts);
}

/** `model`: as /v1/models calls it. Tokens are left out where nobody knows them. */
export function toRerankResponse(
  { scores, ranked, tokens, truncated }: RerankResult,
  { documents, returnDocuments }: RerankRequest,
  { id, model }: { readonly id: string; readonly model: string },
): JsonList {
  const counted = tokens !== undefined && {
    usage: { prompt_tokens: tokens, total_tokens: tokens, truncated_documents: truncated ?? 0 },
    meta: { api_version: { version: '2' }, tokens: { input_tokens: tokens, output_tokens: 0 } },
  };
  return new JsonList(
    ranked.length,
    (at) => {
      const index = ranked[at]!;
      const document = returnDocuments && { document: { text: documents[index]! } };
      return { index, relevance_score: scores[index]!, ...document };
    },
    { id, model, ...counted },
    'results',
  );
}

export function toTeiResponse(
  { scores, ranked }: RerankResult,
  { documents, returnDocuments }: RerankRequest,
): JsonList {
  return new JsonList(
    ranked.length,
    (at) => {
      const index = ranked[at]!;
      return { index, score: scores[index]!, ...(returnDocuments && { text: documents[index]! }) };
    },
    {},
    'bare',
  );
}

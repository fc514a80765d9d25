// What clients of text-embeddings-inference ask beside /rerank: POST /embed, POST /decode and GET /info. And POST
// /tokenize, in the shape of /v1/embeddings.

import type { FastifyInstance } from 'fastify';
import { isShoalError } from '@shoal/contract';
import type { Around } from '../app-parts.ts';
import { MAX_INPUTS } from '../embeddings-request.ts';
import { JsonList } from '../json-stream.ts';
import { DECODE_SCHEMA, EMBED_TEI_SCHEMA, INFO_SCHEMA, TOKENIZE_SCHEMA } from '../openapi.ts';
import { invalid } from '../problem.ts';
import { answerVectors, takenBody } from '../route-parts.ts';
import { parseDecode, parseTeiEmbed, parseTokenize } from '../tei-request.ts';

/** Of the text that an id stands for, about. */
const BYTES_PER_ID = 16;

export function addTei(app: FastifyInstance, around: Around): void {
  const { catalogue, allowances, gate } = around;
  const config = { scope: 'embed' } as const;
  app.post('/embed', { schema: EMBED_TEI_SCHEMA, config }, async (request, reply) => {
    const body = takenBody(request);
    const served = catalogue.ofBody(body);
    const asked = parseTeiEmbed(body, served.model);
    return answerVectors(
      around,
      served,
      asked,
      { request, reply },
      (result) => new JsonList(result.rows, (at) => [...result.row(at)], {}, 'bare'),
    );
  });
  app.post('/tokenize', { schema: TOKENIZE_SCHEMA, config }, async (request, reply) => {
    const body = takenBody(request);
    const { model, embedder } = catalogue.ofBody(body);
    const { texts, prompt } = parseTokenize(body, model);
    await allowances.take(request, reply, texts.length);
    return gate.inTurn(request, reply, 2 * texts.length * model.maxTokens, async (answering) => {
      const rows = await embedder.tokens(texts, prompt, answering);
      return gate.send(
        reply,
        new JsonList(
          rows.length,
          (index) => {
            const { ids, isTruncated } = rows[index]!;
            return { object: 'tokens', index, count: ids.length, tokens: [...ids], truncated: isTruncated };
          },
          { model: model.name, max_tokens: model.maxTokens },
        ),
      );
    });
  });
  app.post('/decode', { schema: DECODE_SCHEMA, config }, async (request, reply) => {
    const body = takenBody(request);
    const { model, embedder } = catalogue.ofBody(body);
    const { rows, skipsSpecial } = parseDecode(body, model);
    await allowances.take(request, reply, rows.length);
    const bytes = rows.reduce((sum, row) => sum + BYTES_PER_ID * row.length, 0);
    return gate.inTurn(request, reply, bytes, async () => {
      const texts = await embedder.texts(rows, skipsSpecial).catch((error: unknown) => {
        throw isShoalError(error, 'MODEL_CORRUPT') ? invalid('not_decodable', 'model', error.message) : error;
      });
      return gate.send(reply, new JsonList(texts.length, (at) => texts[at]!, {}, 'bare'));
    });
  });
  app.get('/info', { schema: INFO_SCHEMA }, async () => {
    const { name, revision, maxTokens, truncate, aliases = [] } = catalogue.first.model;
    return {
      model_id: name,
      model_sha: revision,
      served_model_name: aliases[0] ?? name,
      model_type: { embedding: {} },
      max_input_length: maxTokens,
      max_client_batch_size: MAX_INPUTS,
      max_concurrent_requests: around.gate.maxOpen,
      auto_truncate: truncate === 'end',
      version: around.version,
    };
  });
}

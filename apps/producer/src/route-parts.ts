// What several routes do alike.

import { setTimeout as after } from 'node:timers/promises';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { EmbedResult } from '@shoal/client';
import type { Around } from './app-parts.ts';
import type { Served } from './catalogue.ts';
import { rowsAsked, type EmbeddingsRequest } from './embeddings-request.ts';
import { answerBytes, type Usage } from './embeddings-response.ts';
import type { JsonList } from './json-stream.ts';

interface Exchange {
  readonly request: FastifyRequest;
  readonly reply: FastifyReply;
}

/** A list of models does not wait for a queue server that hangs. */
export const SERVICE_MS = 1_000;

/** Vectors do not show that they are those of a trial. */
export async function tellTrial(reply: FastifyReply, { service }: Pick<Served, 'service'>): Promise<void> {
  if ((await service?.()) === 'simulation') void reply.header('x-shoal-simulated', '1');
}

/** The same as a field; no part of it where the model is computed. The queue server may be away. */
export async function simulatedNow({ service }: Pick<Served, 'service'>): Promise<{ readonly simulated?: true }> {
  if (service === undefined) return {};
  const found = await Promise.race([service(), after(SERVICE_MS, undefined, { ref: false })]);
  return found === 'simulation' ? { simulated: true } : {};
}

/** Nobody needs what was parsed once the route has read it, and a request may wait long. */
export function takenBody(request: FastifyRequest): unknown {
  const { body } = request;
  request.body = undefined;
  return body;
}

/** Answers with the vectors of what was asked, once there is room, in the form of the route. */
export async function answerVectors(
  around: Around,
  { model, embedder, service }: Served,
  asked: EmbeddingsRequest,
  { request, reply }: Exchange,
  toList: (result: EmbedResult, usage: Usage) => JsonList,
): Promise<object> {
  const { allowances, gate } = around;
  const rows = rowsAsked(asked);
  await allowances.take(request, reply, rows);
  return gate.inTurn(
    request,
    reply,
    answerBytes(rows, asked.dimensions ?? model.dims),
    async (answering) => {
      const { result, ...usage } = await embedder.embed(asked, answering);
      countUsage(around, { request, reply }, { texts: result.rows, ...usage });
      await tellTrial(reply, { service });
      return gate.send(reply, toList(result, usage));
    },
    asked.user,
  );
}

/** What an answer took: for its key, for the metrics, and for the caller where texts were cut. */
export function countUsage(
  { allowances, metrics }: Pick<Around, 'allowances' | 'metrics'>,
  { request, reply }: Exchange,
  { texts, tokens, truncated }: Usage & { readonly texts: number },
): void {
  allowances.spent(request, tokens);
  metrics.count('shoal_http_texts_total', {}, texts);
  metrics.count('shoal_http_tokens_total', {}, tokens);
  if (truncated > 0) void reply.header('x-shoal-truncated', String(truncated));
}

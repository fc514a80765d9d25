// Questions about similarity: POST /v1/similarity/topk, rescore, cosine, spread. Texts among the queries are embedded on
// the way, by the model that the request names; where it names none, by the collection's own where that is served, else
// by the first.

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { ComparisonOptions } from '@shoal/client';
import { callerOf } from '../access/caller.ts';
import type { Around } from '../app-parts.ts';
import type { Catalogue, Served } from '../catalogue.ts';
import type { Answering } from '../gate.ts';
import type { JsonList } from '../json-stream.ts';
import { COSINE_SCHEMA, RESCORE_SCHEMA, SPREAD_SCHEMA, TOPK_SCHEMA } from '../openapi.ts';
import { withPatience } from '../patience.ts';
import { takenBody, tellTrial } from '../route-parts.ts';
import { parseCosine, parseRescore, parseSpread, parseTopK, rowsOf } from '../similarity-request.ts';
import { rankingBytes, toRankings, toScores } from '../similarity-response.ts';
import { refuseOthers } from './collections.ts';

interface Size {
  readonly bytes: number;
  readonly rows: number;
  readonly collection?: string | undefined;
}

type Terms = Pick<Answering, 'tenant'> & Pick<ComparisonOptions, 'signal' | 'trace'>;

export function addSimilarity(app: FastifyInstance, around: Around): void {
  const { catalogue, similarity, allowances, gate } = around;
  const config = { scope: 'similarity' } as const;
  const answerWith = async (
    request: FastifyRequest,
    reply: FastifyReply,
    { bytes, rows, collection }: Size,
    call: (terms: Terms) => Promise<JsonList>,
    { service }: Served = catalogue.first,
  ): Promise<object> => {
    if (collection !== undefined) await refuseOthers(callerOf(request), collection, around);
    await allowances.take(request, reply, rows);
    return gate.inTurn(request, reply, bytes, async ({ gone, leftMs, tenant, trace }) => {
      const list = await withPatience({ ...similarity, timeoutMs: leftMs(), what: 'no answer' }, gone, (signal) =>
        call({ signal, tenant, ...(trace !== undefined && { trace }) }),
      );
      await tellTrial(reply, { service });
      return gate.send(reply, list);
    });
  };
  app.post('/v1/similarity/topk', { schema: TOPK_SCHEMA, config }, async (request, reply) => {
    const body = takenBody(request);
    const { collection, queries, ...options } = parseTopK(body, catalogue.ofBody(body).model);
    const served = await servedFor(around, body, collection);
    const size = { ...ranked(rowsOf(queries), options.k, options.names), collection };
    const call = async (terms: Terms): Promise<JsonList> =>
      toRankings(await served.embedder.textClient.topK(collection, queries, { ...options, ...terms }));
    return answerWith(request, reply, size, call, served);
  });
  app.post('/v1/similarity/rescore', { schema: RESCORE_SCHEMA, config }, async (request, reply) => {
    const body = takenBody(request);
    const { collection, queries, candidates, ...options } = parseRescore(body, catalogue.ofBody(body).model);
    const served = await servedFor(around, body, collection);
    const size = { ...ranked(rowsOf(queries), options.k, options.names), collection };
    const call = async (terms: Terms): Promise<JsonList> =>
      toRankings(await served.embedder.textClient.rescore(collection, queries, candidates, { ...options, ...terms }));
    return answerWith(request, reply, size, call, served);
  });
  app.post('/v1/similarity/cosine', { schema: COSINE_SCHEMA, config }, async (request, reply) => {
    const body = takenBody(request);
    const { queries, others, ...options } = parseCosine(body, catalogue.ofBody(body).model);
    const collection = 'collection' in others ? others.collection : undefined;
    const served = await servedFor(around, body, collection);
    const call = async (terms: Terms): Promise<JsonList> => {
      const scores = await served.embedder.textClient.cosine(queries, others, { ...options, ...terms });
      const list = toScores(scores);
      gate.makeRoom(request, scores.scores.byteLength); // as many as the collection has rows, which only a worker knows
      return list;
    };
    return answerWith(request, reply, { bytes: 0, rows: rowsOf(queries), collection }, call, served);
  });
  app.post('/v1/similarity/spread', { schema: SPREAD_SCHEMA, config }, async (request, reply) => {
    const { graph, seeds, options } = parseSpread(takenBody(request));
    const { textClient: client } = catalogue.first.embedder;
    return answerWith(request, reply, ranked(seeds.length, options.k), async (terms) =>
      toRankings(await client.spread(graph, seeds, { ...options, ...terms })),
    );
  });
}

function ranked(rows: number, k: number, names = false): Size {
  return { bytes: rankingBytes(rows, k, names), rows };
}

/** Whose client asks. While nobody tells which collections there are, the first model's. */
async function servedFor(
  { catalogue, collections }: { readonly catalogue: Catalogue } & Pick<Around, 'collections'>,
  body: unknown,
  collection: string | undefined,
): Promise<Served> {
  const asked: unknown = Reflect.get(Object(body), 'model');
  if (typeof asked === 'string' || collection === undefined || catalogue.all.length === 1)
    return catalogue.ofBody(body);
  const [name] = collection.split('@');
  const known = await collections.all().catch(() => []);
  const { model } = known.find((one) => one.name === name) ?? {};
  return (model === undefined ? undefined : catalogue.find(model)) ?? catalogue.first;
}

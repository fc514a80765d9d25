// The collections that workers answer from: GET /v1/collections, and one of them. Those that belong to another tenant look
// as if they were not there, here and in questions about similarity.

import type { FastifyInstance } from 'fastify';
import type { CollectionFacts } from '@shoal/core/similarity';
import { callerOf, mayUse, type Caller } from '../access/caller.ts';
import type { Around } from '../app-parts.ts';
import { COLLECTIONS_SCHEMA, COLLECTION_SCHEMA } from '../openapi.ts';
import { invalid, type Problem } from '../problem.ts';

export function addCollections(app: FastifyInstance, { collections }: Around): void {
  const config = { scope: 'similarity' } as const;
  app.get('/v1/collections', { schema: COLLECTIONS_SCHEMA, config }, async (request) => {
    const caller = callerOf(request);
    const data = (await collections.all()).filter((one) => isFor(caller, one)).map(shown);
    return { object: 'list', data };
  });
  app.get<{ Params: { id: string } }>('/v1/collections/:id', { schema: COLLECTION_SCHEMA, config }, async (request) => {
    const { id } = request.params;
    const found = (await collections.all()).find(({ name }) => name === id);
    if (found === undefined || !isFor(callerOf(request), found)) throw unknown(id);
    return shown(found);
  });
}

/** Throws a Problem (404) where the collection that is named, with a version or without, is another tenant's. */
export async function refuseOthers(
  caller: Caller,
  asked: string,
  { collections }: Pick<Around, 'collections'>,
): Promise<void> {
  const [name = ''] = asked.split('@');
  if (mayUse(caller, 'admin')) return;
  const found = (await collections.all()).find((one) => one.name === name);
  if (found !== undefined && !isFor(caller, found)) throw unknown(name);
}

function isFor(caller: Caller, { owner }: CollectionFacts): boolean {
  return owner === undefined || owner === caller.tenant || mayUse(caller, 'admin');
}

function unknown(name: string): Problem {
  return invalid(
    'collection_unknown',
    null,
    `no worker has a collection ${name.slice(0, 80)}; GET /v1/collections shows those that there are`,
    404,
  );
}

function shown({ name: id, versions, rows, dims, dtype, createdMs, model, owner }: CollectionFacts): object {
  return {
    id,
    object: 'collection',
    created: Math.floor(createdMs / 1_000),
    owner: owner ?? null,
    versions,
    rows,
    dimensions: dims,
    dtype,
    model: model ?? null,
  };
}

// Made-up requests for an operation of /openapi.json: some that fit its schema, some that almost do.

import * as fc from 'fast-check';
import { partOf, type Schema, type Schemas } from './schema.ts';

/** What callers send by mistake, and what stands at bounds. */
const JUNK = fc.constantFrom<unknown>(
  ...[
    [null, '', 'x', 'docs@3', 'docs', 'minilm', 'minilm@abc123', 'query', 'cosine', 'a\u0000\ud800', true, false],
    [0, -0, -1, 1, 1.5, 64, 65, 384, 385, 30_521, 30_522, 1e6, 1e6 + 1, 2 ** 53, 1e21, 3.4e38, -3.5e38, 5e-324],
    [[], {}, [[]], [null], ['a'], ['a', ''], ['a', 1], [1], [1, 'a'], [1.5], [-1], [['a']], [[1, 2], [3]], [[1, 0]]],
    [[[[1, 2]]], [[[1, 0]]], [[[1, 2, 3]]], [101, 7, 102], [[101, 102], 'a'], { a: 1 }, Array(2_049).fill('a')],
  ].flat(),
);

/** A request that fits, and one in which something was put, left out or added. */
export function requests(schemas: Schemas, schema: Schema): fc.Arbitrary<unknown> {
  const fitting = schemas.values(schema) as fc.Arbitrary<Record<string, unknown>>;
  const fields = Object.keys(partOf(schemas.resolved(schema), 'properties') as object);
  const names = fc.constantFrom(...fields, 'strange', 'constructor');
  const changed = fc.tuple(fitting, names, JUNK).map(([body, name, junk]) => ({ ...body, [name]: junk }));
  const without = fc.tuple(fitting, names).map(([{ ...body }, name]) => {
    Reflect.deleteProperty(body, name);
    return body;
  });
  return fc.oneof(
    { weight: 3, arbitrary: fitting },
    { weight: 6, arbitrary: changed },
    { weight: 2, arbitrary: without },
    { weight: 1, arbitrary: JUNK },
  );
}

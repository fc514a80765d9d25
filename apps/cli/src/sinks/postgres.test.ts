// A real PostgreSQL with pgvector: the one that PyPI's pgserver bundles, fetched in the nightly form.

import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { SkippedList } from '../output/beside.ts';
import { SinkWriter } from '../output/sink-writer.ts';
import { PostgresServer } from '../testing/postgres-server.ts';
import { SINK_FORM, sinkConformance, sinkRow } from '../testing/sink-conformance.ts';
import { newClient } from './pg-client.ts';
import { postgresPlace } from './postgres.ts';
import { SinkAway } from './sink.ts';

test.each(['postgres://h', 'postgres://h/db', 'postgres://h/db/a/b', 'postgres://h/db/x;y', 'postgres://h/db/a.b.c'])(
  'a table is named by its URL alone: %s is none',
  (url) => expect(() => postgresPlace(url)).toThrow('--to needs a database and a table'),
);

test('no password is shown', () => {
  expect(postgresPlace('postgres://me:secret@h:5/db/docs').name).toBe('postgres://h:5/db/docs');
});

test('a server that is not there is away, and no refusal', async () => {
  await expect(postgresPlace('postgres://127.0.0.1:1/db/docs').open(SINK_FORM)).rejects.toThrow(SinkAway);
});

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;

describe.skipIf(!isNightly)('(nightly: PostgreSQL of PyPI’s pgserver)', () => {
  const server = new PostgresServer();
  let tables = 0;

  async function query(text: string): Promise<Record<string, unknown>[]> {
    const client = newClient({ connectionString: server.url });
    await client.connect();
    try {
      return (await client.query<Record<string, unknown>>(text)).rows;
    } finally {
      await client.end();
    }
  }

  const placeOf = (table: string) => postgresPlace(`${server.url}/${table}`);

  async function rowsOf(table: string) {
    const rows = await query(`select id::text, text, embedding::text from ${table}`);
    return new Map(
      rows.map(({ id, text, embedding }) => [
        String(id),
        {
          text: text === null ? null : String(text),
          vector: JSON.parse(String(embedding).replace(/^\{(.*)\}$/, '[$1]')).map(Math.fround),
        },
      ]),
    );
  }

  beforeAll(async () => {
    await server.open();
    await query('create extension vector');
  }, 600_000);

  afterAll(() => server.close());

  sinkConformance('PostgreSQL with pgvector', async () => {
    const table = `t${++tables}`;
    return { place: placeOf(table), rows: () => rowsOf(table) };
  });

  test('an array of floats, another type of ids, halves and bits are taken as the table has them', async () => {
    await query('create table a (id text primary key, text text, embedding real[])');
    const array = await placeOf('a').open({ ...SINK_FORM, creates: false });
    await array.write([sinkRow(1)]);
    await array.close();
    expect((await rowsOf('a')).get('i1')?.vector).toEqual([...sinkRow(1).vector]);
    await query('create schema other; create table other.b (id bigint unique, embedding vector(3))');
    const numbers = await placeOf('other.b').open({ ...SINK_FORM, withText: false, creates: false });
    await numbers.write([{ ...sinkRow(1), id: '9007199254740993' }]);
    await expect(numbers.write([sinkRow(1)])).rejects.toThrow('invalid input syntax for type bigint: "i1"');
    await numbers.close();
    const bits = await placeOf('c').open({ ...SINK_FORM, dtype: 'binary' });
    await bits.write([sinkRow(1)]);
    await bits.close();
    expect(await query('select embedding::text from c')).toEqual([{ embedding: '101' }]);
    const [{ halves } = {}] = await query("select to_regtype('halfvec')::text as halves");
    const half = await placeOf('d')
      .open({ ...SINK_FORM, dtype: 'f16' })
      .then(async (sink) => {
        await sink.write([sinkRow(1)]);
        await sink.close();
        return (await query('select embedding::text from d'))[0]?.['embedding'];
      })
      .catch((error: unknown) => String(error));
    // pgvector has halves since 0.7
    expect(half).toContain(halves === null ? 'older than 0.7 and has no halfvec' : '[1,-0.099975586,0.33325195]');
  });

  test('a table whose ids are not unique is refused with the statement that makes them so', async () => {
    await query('create table loose (id text, text text, embedding vector(3))');
    await expect(placeOf('loose').open({ ...SINK_FORM, creates: false })).rejects.toThrow(
      'alter table "loose" add primary key ("id")',
    );
  });

  test('killed with SIGKILL between two batches and started again: each row is there once', async () => {
    const path = join(server.folder, 'run');
    const away: string[] = [];
    const writer = await SinkWriter.open(
      {
        place: placeOf('killed'),
        form: SINK_FORM,
        skipped: new SkippedList(),
        isRepeatable: true,
        signal: new AbortController().signal,
        target: { kind: 'file', name: 'killed', path, partial: `${path}.to`, state: `${path}.json` },
        onAway: (problem) => away.push(problem),
      },
      {
        v: 1,
        runId: 'r',
        request: { inputs: [], model: 'm@1', options: {} },
        rows: 0,
        position: 0,
        shard: 0,
        bytes: 0,
      },
      false,
    );
    const write = (from: number, to: number) => {
      const rows = Array.from({ length: to - from }, (_, at) => sinkRow(from + at));
      return writer.write({
        records: rows.map(({ id, text }, at) => ({ id, text, index: from + at })),
        dims: 3,
        vectors: Float32Array.from(rows.flatMap(({ vector }) => [...vector])),
        position: to,
      });
    };
    await write(0, 1_024);
    await server.kill('SIGKILL');
    const rest = write(1_024, 3_000);
    await server.start();
    await rest;
    await writer.finish();
    expect(away.length).toBeGreaterThan(0);
    expect(await query('select count(*)::int as rows, count(distinct id)::int as ids from killed')).toEqual([
      { rows: 3_000, ids: 3_000 },
    ]);
  });
});

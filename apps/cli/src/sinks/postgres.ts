// A table of PostgreSQL, with pgvector's types or an array of floats. Rows are added or replaced by their id in one
// statement a batch, so that a batch that was sent twice is there once.

import type { Client } from 'pg';
import { ShoalError, type OutputDtype } from '@shoal/contract';
import { shortestDecimal } from '../output/jsonl.ts';
import { encodeVectors } from '@shoal/worker/files/vector-form';
import { newClient } from './pg-client.ts';
import { SinkAway, type Sink, type SinkCounts, type SinkForm, type SinkPlace, type SinkRow } from './sink.ts';

const NAME = /^[A-Za-z_][A-Za-z0-9_$]{0,62}$/;
/** pgvector's vector has 16,000 dimensions at most, and so has halfvec; bit has 64,000. */
const MOST_DIMS = { f32: 16_000, f16: 16_000, binary: 64_000 } as const;
const CONNECT_MS = 10_000;

/** `postgres://user@host:port/database/table`, or `/database/schema.table`. USAGE for anything else. */
export function postgresPlace(url: string): SinkPlace {
  const parsed = URL.canParse(url) ? new URL(url) : undefined;
  const [database, table, ...rest] = (parsed?.pathname ?? '').split('/').slice(1).map(decodeURIComponent);
  const names = table?.split('.') ?? [];
  if (
    parsed === undefined ||
    database === undefined ||
    database === '' ||
    rest.length > 0 ||
    names.length > 2 ||
    !names.every((one) => NAME.test(one)) ||
    names.length === 0
  )
    throw new ShoalError(
      'USAGE',
      '--to needs a database and a table of letters, digits and _: postgres://HOST/DATABASE/TABLE or …/SCHEMA.TABLE ' +
        '(a password goes into PGPASSWORD or ~/.pgpass)',
    );
  const connection = new URL(parsed);
  connection.pathname = `/${encodeURIComponent(database)}`;
  const name = `postgres://${parsed.host}/${database}/${table}`;
  return { name, table: table!, open: (form) => PostgresSink.open(connection.href, { name, names, form }) };
}

interface Table {
  readonly name: string;
  readonly names: readonly string[];
  readonly form: SinkForm;
}

/** What PostgreSQL calls the type of the ids, and the vector of a row as the column takes it. */
interface Types {
  readonly id: string;
  readonly vector: string;
}

class PostgresSink implements Sink {
  readonly #client: Client;
  readonly #table: Table;
  readonly #statement: string;
  #isLost = false;

  private constructor(client: Client, table: Table, types: Types) {
    this.#client = client;
    this.#table = table;
    this.#statement = upsert(table, types);
    client.on('error', () => (this.#isLost = true));
  }

  static async open(connection: string, table: Table): Promise<PostgresSink> {
    refuseForm(table);
    const client = newClient({
      connectionString: connection,
      connectionTimeoutMillis: CONNECT_MS,
      application_name: 'shoal',
    });
    client.on('error', () => undefined);
    try {
      await client.connect();
      if (table.form.creates) await create(client, table);
      return new PostgresSink(client, table, await typesOf(client, table));
    } catch (error) {
      await client.end().catch(() => undefined);
      throw translated(table, error);
    }
  }

  async write(rows: readonly SinkRow[]): Promise<SinkCounts> {
    if (this.#isLost) throw new SinkAway(`${this.#table.name} closed the connection`);
    // one statement cannot set a row twice; the last of equal ids is what two statements would leave
    const last = [...new Map(rows.map((row) => [row.id, row])).values()];
    const { withText, dtype } = this.#table.form;
    const vectors = last.map(({ vector }) => literal(vector, dtype));
    const values = [last.map(({ id }) => id), vectors, ...(withText ? [last.map(({ text }) => text)] : [])];
    try {
      const { rows: found } = await this.#client.query<{ is_new: boolean }>(this.#statement, values);
      const added = found.filter((row) => row.is_new).length;
      return { added, replaced: rows.length - added };
    } catch (error) {
      throw translated(this.#table, error);
    }
  }

  async close(): Promise<void> {
    await this.#client.end().catch(() => undefined);
  }
}

function quoted(names: readonly string[]): string {
  return names.map((name) => `"${name}"`).join('.');
}

function columnsOf({ withText, vectorField }: SinkForm): readonly string[] {
  return ['id', vectorField, ...(withText ? ['text'] : [])];
}

/** A row that is new was written by no transaction before this one. */
function upsert({ names, form }: Table, { id, vector }: Types): string {
  const columns = columnsOf(form).map((column) => `"${column}"`);
  const set = columns.slice(1).map((column) => `${column} = excluded.${column}`);
  const values = [`u.id::${id}`, vector, ...(form.withText ? ['u.text'] : [])];
  const arrays = ['$1::text[]', '$2::text[]', ...(form.withText ? ['$3::text[]'] : [])];
  return (
    `insert into ${quoted(names)} (${columns.join(', ')}) select ${values.join(', ')} ` +
    `from unnest(${arrays.join(', ')}) as u(id, vector${form.withText ? ', text' : ''}) ` +
    `on conflict ("id") do update set ${set.join(', ')} returning (xmax = 0) as is_new`
  );
}

/** A vector as text that PostgreSQL reads for any of the types. */
function literal(vector: Float32Array, dtype: OutputDtype): string {
  if (dtype !== 'binary') return `[${Array.from(vector, shortestDecimal).join(',')}]`;
  const bits = Array.from(encodeVectors(vector, 1, vector.length, dtype).values, (one) =>
    one.toString(2).padStart(8, '0'),
  );
  return bits.join('').slice(0, vector.length);
}

function columnType({ dims, dtype }: SinkForm): string {
  return dtype === 'binary' ? `bit(${dims})` : dtype === 'f16' ? `halfvec(${dims})` : `vector(${dims})`;
}

async function create(client: Client, { names, form }: Table): Promise<void> {
  const [type] = columnType(form).split('(');
  const { rows } = await client.query<{ vector: string | null; own: string | null }>(
    'select to_regtype($1)::text as own, to_regtype($2)::text as vector',
    [type, 'vector'],
  );
  const { own, vector } = rows[0]!;
  if (own === null)
    throw refused(
      vector === null
        ? 'the database has no pgvector, whose type the table needs; a superuser adds it: CREATE EXTENSION vector. Or ' +
            `make a table with an array: ${createText(names, form, 'real[]')}`
        : `the pgvector of the database is older than 0.7 and has no ${type}; update it (ALTER EXTENSION vector UPDATE), ` +
            'or leave out --dtype',
    );
  await client.query(createText(names, form, columnType(form)));
}

function createText(names: readonly string[], { vectorField, withText }: SinkForm, type: string): string {
  return (
    `create table if not exists ${quoted(names)} ("id" text primary key, ${withText ? '"text" text, ' : ''}` +
    `"${vectorField}" ${type})`
  );
}

/** The types of the columns that are written; refuses a table whose columns cannot take the rows. */
async function typesOf(client: Client, { name, names, form }: Table): Promise<Types> {
  const { rows } = await client.query<{ column: string; type: string; is_unique: boolean }>(
    `select a.attname as column, format_type(a.atttypid, a.atttypmod) as type,
            exists (select from pg_index i where i.indrelid = a.attrelid and i.indisunique and i.indpred is null
                    and i.indnkeyatts = 1 and i.indkey[0] = a.attnum) as is_unique
     from pg_attribute a where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped`,
    [quoted(names)],
  );
  if (rows.length === 0)
    throw refused(
      `there is no table ${name}; make it, or let this command: --create-table. ${createText(names, form, columnType(form))}`,
    );
  const missing = columnsOf(form).find((column) => !rows.some((row) => row.column === column));
  if (missing !== undefined)
    throw refused(
      `the table ${name} has no column "${missing}" (it has ${rows.map(({ column }) => `"${column}"`).join(', ')}); add it, ` +
        `or name the column of vectors with --vector-field`,
    );
  const columnNamed = (column: string) => rows.find((row) => row.column === column)!;
  const id = columnNamed('id');
  if (!id.is_unique)
    throw refused(
      `the ids of ${name} are not unique, so that rows would be there twice: alter table ${quoted(names)} add primary key ("id")`,
    );
  const vector = columnNamed(form.vectorField);
  if (!fits(vector.type, form))
    throw refused(
      `the column "${form.vectorField}" of ${name} has the type ${vector.type}, and the rows are ${columnType(form)}; ` +
        `it may also be ${form.dtype === 'binary' ? 'bit varying' : 'real[]'}`,
    );
  // an array is written with other brackets
  const text = vector.type.endsWith('[]') ? "translate(u.vector, '[]', '{}')" : 'u.vector';
  return { id: id.type, vector: `${text}::${vector.type}` };
}

function fits(type: string, { dims, dtype }: SinkForm): boolean {
  const [, base = '', size] = /^(?:\w+\.)?([a-z ]+?)(?:\((\d+)\))?(?:\[\])?$/.exec(type) ?? [];
  if (size !== undefined && Number(size) !== dims) return false;
  if (dtype === 'binary') return base === 'bit' || base === 'bit varying';
  return ['vector', 'halfvec', 'real', 'double precision'].includes(base);
}

function refuseForm({ form: { dtype, dims } }: Table): void {
  if (dtype === 'i8') throw refused('PostgreSQL has no type for --dtype i8; take f32, f16 (halfvec) or binary (bit)');
  if (dims > MOST_DIMS[dtype])
    throw refused(
      `pgvector has at most ${MOST_DIMS[dtype]} dimensions, and the rows have ${dims}: --dimensions ${MOST_DIMS[dtype]}`,
    );
}

function refused(problem: string): ShoalError<'USAGE'> {
  return new ShoalError('USAGE', problem);
}

/** Codes of PostgreSQL and of the network by which it is away, and not refusing. */
const AWAY = /^(?:08...|57P0[123]|53300|ECONN\w+|ETIMEDOUT|EPIPE|EHOSTUNREACH|ENETUNREACH|EAI_AGAIN)$/;

function translated({ name }: Table, error: unknown): Error {
  if (error instanceof ShoalError || error instanceof SinkAway) return error;
  const code = error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';
  const message = error instanceof Error ? error.message : String(error);
  if (AWAY.test(code) || /terminated|timeout expired|not queryable|Connection/i.test(message))
    return new SinkAway(`${name} is away: ${message === '' ? code : message}`, { cause: error });
  const cure = code === '28P01' || code === '28000' ? ' (a password goes into PGPASSWORD or ~/.pgpass)' : '';
  return new ShoalError('FILE_UNWRITABLE', `cannot write ${name}: ${message}${cure}`, { file: name }, error);
}

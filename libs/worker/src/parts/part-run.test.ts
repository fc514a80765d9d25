// A part on a real queue server, in a real folder and in a bucket of a real server of S3's protocol, with a worker that dies at each point where it may: whoever has the part
// next ends it, each row is there once, and the bytes are those of a worker that nobody disturbed.

import { createHash } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import {
  chmod,
  mkdir,
  mkdtemp,
  readFile,
  readdir,
  rename,
  rm,
  stat,
  symlink,
  truncate,
  utimes,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { parquetReadObjects } from 'hyparquet';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  decodePartResult,
  decodeInput,
  invariant,
  keySpace,
  partFingerprint,
  partId,
  partName,
  partTemporary,
  type Part,
  type PartSource,
} from '@shoal/contract';
import { systemClock, type JobOutcome } from '@shoal/core';
import { noFaults, type FaultPoints } from '@shoal/core/base';
import { RecordingLogger } from '@shoal/core/testing';
import { SmallDisk } from '@shoal/fetch/testing';
import { PartLedger, closeConnection, openConnection, type Redis } from '@shoal/queue/payload';
import {
  S3Gate,
  mayHaveS3Server,
  startS3Server,
  startTestServer,
  type S3Server,
  type TestServer,
} from '@shoal/queue/testing';
import { readFooter } from '../files/footer.ts';
import { ParquetEncoder } from '../files/parquet-rows.ts';
import { PartPlaces } from './part-place.ts';
import { orderOf } from '../testing/part-order.ts';
import { Left, PartRun, type PartRunParts } from './part-run.ts';
import { OpenPart } from './part-work.ts';

const DIMS = 4;
const QUEUE = 'parts-fake';
const MODEL = 'fake@0123456789ab';
const ROWS = 5_000;
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const log = new RecordingLogger();
let server: TestServer;
let redis: Redis;
let ledger: PartLedger;
let place: string;
let runs = 0;
/** Where the part of a test lies, and its object goes. */
let scene: Scene;

beforeAll(async () => {
  server = await startTestServer({ topology: 'single' });
  redis = openConnection({ url: server.url, name: 'test' });
  ledger = await PartLedger.connect({ redisUrl: server.url, prefix: '{shoal}', queue: QUEUE, log });
});

beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), 'shoal-parts-'));
  await mkdir(join(place, 'out'));
  scene = folders;
});

afterEach(async () => {
  if (ownTmpdir === undefined) delete process.env['TMPDIR'];
  else process.env['TMPDIR'] = ownTmpdir;
  await rm(place, { recursive: true, force: true });
});

afterAll(async () => {
  await Promise.all([ledger.stop(), closeConnection(redis)]);
  await server.stop();
});

const textOf = (row: number): string => `text ${row} ${'x'.repeat(row % 7)}`;

/** What a text becomes: nobody else's, and the same as halves. */
function vectorOf(text: string): Float32Array {
  const hash = createHash('sha256').update(text).digest();
  return Float32Array.from({ length: DIMS }, (_, at) => hash[at]! / 256);
}

async function sourceAt(path: string): Promise<PartSource> {
  const { size, mtimeMs } = await stat(path);
  return { kind: 'file', path, bytes: size, modifiedMs: mtimeMs };
}

type Place =
  | { readonly kind: 'folder'; readonly folder: string }
  | { readonly kind: 's3'; readonly bucket: string; readonly prefix: string };

/** What the same tests are held over. */
interface Scene {
  /** What was written at a path. */
  readonly source: (path: string) => Promise<PartSource>;
  readonly output: () => Place;
  readonly places: () => PartPlaces;
  /** What is where the objects go, by name. */
  readonly out: () => Promise<string[]>;
  readonly bytesOf: (part: Part) => Promise<Buffer>;
  /** What others see of a part that is not committed. */
  readonly lastNames: () => Promise<string[]>;
  readonly empty: () => Promise<void>;
}

const folders: Scene = {
  source: sourceAt,
  output: () => ({ kind: 'folder', folder: join(place, 'out') }),
  places: () => new PartPlaces([place]),
  out: async () => (await readdir(join(place, 'out'))).toSorted(),
  lastNames: async () => (await out()).filter((name) => /\.(parquet|json)$/.test(name)),
  bytesOf: (part) => readFile(join(place, 'out', partName(part))),
  empty: async () => {
    await rm(join(place, 'out'), { recursive: true });
    await mkdir(join(place, 'out'));
  },
};

let s3: S3Server | undefined;
let gate: S3Gate;
let machines = 0;
const ownTmpdir = process.env['TMPDIR'];
const BUCKET = 'shoal-parts';

async function openStore(): Promise<void> {
  s3 = await startS3Server();
  await s3.makeBucket(BUCKET);
  gate = await S3Gate.open(s3.endpoint);
  Object.assign(process.env, s3.credentials, { AWS_ENDPOINT_URL_S3: gate.endpoint });
}

async function closeStore(): Promise<void> {
  delete process.env['AWS_ENDPOINT_URL_S3'];
  await gate.close();
  await s3!.stop();
}

/** In the bucket, below a prefix of the test's own. */
const buckets: Scene = {
  source: async (path) => {
    const key = `in/${basename(place)}/${basename(path)}`;
    await s3!.write(BUCKET, key, await readFile(path));
    const found = await s3!.ask(`${BUCKET}/${key}`, { method: 'HEAD' });
    const etag = found.headers.get('etag')!.replaceAll('"', '');
    return { kind: 's3', bucket: BUCKET, key, etag, bytes: (await stat(path)).size };
  },
  output: () => ({ kind: 's3', bucket: BUCKET, prefix: `out/${basename(place)}/` }),
  // on a machine of its own
  places: () => {
    process.env['TMPDIR'] = join(place, `machine-${++machines}`);
    mkdirSync(process.env['TMPDIR']);
    return new PartPlaces([`s3://${BUCKET}/in`, `s3://${BUCKET}/out/`], { patienceMs: [10, 20, 40, 80] });
  },
  out: async () => {
    const before = `out/${basename(place)}/`;
    const keys = [...(await s3!.objects(BUCKET)).keys()].filter((key) => key.startsWith(before));
    return keys.map((key) => key.slice(before.length)).toSorted();
  },
  lastNames: async () => (await out()).filter((name) => !name.startsWith('_temporary/')),
  bytesOf: async (part) => (await s3!.objects(BUCKET)).get(`out/${basename(place)}/${partName(part)}`)!,
  empty: async () => {
    for (const name of await out()) await s3!.ask(`${BUCKET}/out/${basename(place)}/${name}`, { method: 'DELETE' });
  },
};

/** Lines of JSONL; the third part of the file is the part, and some of its rows are bad. */
async function linesPart(more: Partial<Part> = {}): Promise<Part> {
  const path = join(place, 'docs.jsonl');
  const lines = Array.from({ length: ROWS }, (_, row) =>
    row % 1_000 === 999 ? '{"text": 7}\n' : `${JSON.stringify({ id: `r${row}`, text: textOf(row) })}\n`,
  );
  await writeFile(path, lines.join(''));
  const from = Buffer.byteLength(lines.slice(0, 1_000).join(''));
  return partOf({
    format: 'jsonl',
    source: await scene.source(path),
    range: { kind: 'bytes', from, to: (await stat(path)).size, firstLine: 1_001, lines: 4_000 },
    ...more,
  });
}

/** The second and third row group of a file of three. */
async function groupsPart(more: Partial<Part> = {}): Promise<Part> {
  const path = join(place, 'docs.parquet');
  const encoder = await ParquetEncoder.open({
    format: 'parquet',
    dims: 2,
    hasIds: true,
    withText: true,
    vectorField: 'old',
  });
  const records = Array.from({ length: ROWS }, (_, row) => ({ id: `r${row}`, index: row, text: textOf(row) }));
  const vectors = new Float32Array(2 * ROWS);
  const pieces = [...encoder.encode({ records, dims: 2, vectors, position: ROWS }), ...encoder.flush()];
  await writeFile(path, Buffer.concat([encoder.head(), ...pieces.map(({ bytes }) => bytes), encoder.tail()]));
  return partOf({
    format: 'parquet',
    source: await scene.source(path),
    range: { kind: 'groups', from: 1, to: 3, firstRow: 2_048, rows: ROWS - 2_048 },
    output: { ...OUTPUT(), carries: true, vectorField: 'vector' },
    ...more,
  });
}

const OUTPUT = () =>
  ({
    ...scene.output(),
    stem: 'docs',
    format: 'parquet',
    dtype: 'f32',
    hasIds: true,
  }) as const;

function partOf(given: Pick<Part, 'format' | 'source' | 'range'> & Partial<Part>): Part {
  return {
    run: (++runs).toString(16).padStart(16, '0'),
    number: 0,
    of: 1,
    onError: 'skip',
    output: OUTPUT(),
    model: { name: MODEL, truncate: 'end' },
    ...given,
  };
}

const smallDisk = SmallDisk.make(4_096);
if (typeof smallDisk === 'string') console.log(`a full disk is not tried: ${smallDisk}`);
else smallDisk.remove();

class Died extends Error {}

/** Dies there at the n-th time, as far as a process can die that goes on. */
function diesAt(point: string, nth = 1): FaultPoints {
  let reached = 0;
  return {
    reach: (at) => {
      if (at === point && ++reached === nth) throw new Died(point);
    },
  };
}

interface Worker {
  readonly token: string;
  readonly parts: PartRunParts;
  /** Texts that it ran. */
  texts: number;
}

const tooLong = async (texts: readonly string[]): Promise<boolean[]> => texts.map((text) => text.includes('xxxxxx'));

function worker(token: string, faults: FaultPoints = noFaults, more: Partial<PartRunParts> = {}): Worker {
  const places = scene.places();
  const own: Worker = {
    token,
    texts: 0,
    parts: {
      ledger,
      places,
      jobRows: 256,
      model: { name: MODEL, dims: DIMS, isNormalized: true, device: 'cpu', precision: 'fp32' },
      open: (terms, signal) => OpenPart.open(terms, { places, tooLong, clock: systemClock, faults, signal }),
      // as far as a fake model has tokens: it reads texts
      tokenize: async (_, { input, rows }) => ({
        input,
        tokens: 3 * rows,
        truncated: 1,
        rowTokens: new Int32Array(rows),
      }),
      async embed(_, { input, rows, tokens, truncated }) {
        own.texts += rows;
        (faults.reach as (at: string) => void)('embed');
        const decoded = decodeInput(Buffer.from(input.buffer));
        invariant(decoded.form === 'texts', 'texts come');
        const vectors = new Float32Array(rows * DIMS);
        for (const [at, text] of decoded.texts.entries()) vectors.set(vectorOf(text), at * DIMS);
        return { embedded: Promise.resolve({ vectors, tokens, truncated }) };
      },
      reclaim: (vectors) => void vectors.fill(Number.NaN), // nobody needs what is in it
      onRows: () => undefined,
      clock: systemClock,
      faults,
      log,
      checkpointMs: 0,
      ...more,
    },
  };
  return own;
}

/** Claims the part and runs it. */
async function runBy({ token, parts }: Worker, part: Part): Promise<JobOutcome> {
  const jobId = partId(part);
  await redis.set(keySpace().lock(QUEUE, jobId), token);
  return new PartRun(parts, orderOf(part, token)).run();
}

const out = (): Promise<string[]> => scene.out();
const bytesOf = (part: Part): Promise<Buffer> => scene.bytesOf(part);

async function manifestText(): Promise<string> {
  return scene === folders
    ? readFile(join(place, 'out', 'docs.manifest.json'), 'utf8')
    : String((await s3!.objects(BUCKET)).get(`out/${basename(place)}/docs.manifest.json`));
}

async function rowsIn(bytes: Buffer): Promise<Record<string, unknown>[]> {
  const file = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length) as ArrayBuffer;
  return parquetReadObjects({ file, compressors: { GZIP: (packed) => gunzipSync(packed) } });
}

/** The object of a worker that nobody disturbed. */
async function reference(part: Part): Promise<Buffer> {
  const undisturbed = { ...part, run: 'ffff'.padEnd(16, String(runs % 10)) };
  expect(await runBy(worker(`reference-${runs}`), undisturbed)).toMatchObject({ kind: 'committed' });
  const bytes = await bytesOf(undisturbed);
  await scene.empty();
  await redis.flushall();
  return bytes;
}

const FORMS: [string, () => Promise<Part>][] = [
  ['lines', () => linesPart()],
  ['row groups with all their columns', () => groupsPart()],
  ['row groups with halves', () => groupsPart({ output: { ...OUTPUT(), dtype: 'f16' } })],
];

const SCENES: [string, Scene][] = [
  ['a folder', folders],
  ['a bucket', buckets],
];
if (!mayHaveS3Server) console.warn('parts in buckets are not tried: moto is not in the cache (npm run test:nightly)');

describe.each(SCENES.filter(([, one]) => one === folders || mayHaveS3Server))('in %s', (_where, held) => {
  beforeAll(() => (held === buckets ? openStore() : undefined), 600_000);
  beforeEach(() => {
    scene = held;
  });
  afterAll(() => (held === buckets ? closeStore() : undefined));

  test('another run’s object keeps its name, and one of the same run that was changed is written anew', async () => {
    const part = await groupsPart();
    expect(await runBy(worker('a'), part)).toMatchObject({ kind: 'committed' });
    const bytes = await bytesOf(part);
    const other = await groupsPart({ model: { name: MODEL, truncate: 'end', dimensions: 2 } });
    expect(await runBy(worker('b'), other)).toMatchObject(
      failed('FILE_UNWRITABLE', /docs-00000\.parquet is there and not of run \w+: two commands write into one place/),
    );
    expect(await bytesOf(part)).toEqual(bytes);
    await redis.hset(keySpace().run(other.run), '0', 'as if it had been done before');
    expect(await runBy(worker('c'), other)).toMatchObject(failed('FILE_UNWRITABLE', 'is no manifest of run'));
    expect(await bytesOf(part)).not.toEqual(bytes);
  });

  // a bucket is held with all forms at night
  describe.each(held === folders || isNightly ? FORMS : FORMS.slice(1, 2))('a part of %s', (form, makePart) => {
    test('becomes one object with each row once, a pointer, an entry and a manifest', async () => {
      const part = await makePart();
      const own = worker('a-1');
      const isLines = form === 'lines';
      const [first, rows] = isLines ? [1_000, 4_000 - 4] : [2_048, ROWS - 2_048];
      expect(await runBy(own, part)).toMatchObject({
        kind: 'committed',
        value: { rows, dims: DIMS, tokens: 3 * rows, model: MODEL, dtype: part.output.dtype },
      });
      expect(await out()).toEqual(['docs-00000.parquet', 'docs.manifest.json']);
      const bytes = await bytesOf(part);
      const found = await rowsIn(bytes);
      const expected = Array.from({ length: ROWS - first }, (_, at) => first + at).filter(
        (row) => !isLines || row % 1_000 !== 999,
      );
      expect(found.map(({ id }) => id)).toEqual(expected.map((row) => `r${row}`));
      const column = part.output.vectorField ?? 'embedding';
      for (const [at, row] of expected.entries()) expect(found[at]![column]).toEqual([...vectorOf(textOf(row))]);
      const others = part.output.carries === true ? { text: textOf(first + 7), old: [0, 0] } : {};
      expect(found[7]).toMatchObject(others);
      const pointer = decodePartResult((await ledger.pointer(partId(part)))!);
      const sha256 = createHash('sha256').update(bytes).digest('hex');
      expect(pointer).toMatchObject({ rows, bytes: bytes.length, sha256, refused: { rows: isLines ? 4 : 0 } });
      expect(pointer.refused.first.map(({ line }) => line)).toEqual(isLines ? [2_000, 3_000, 4_000, 5_000] : []);
      const manifest = JSON.parse(await manifestText());
      expect(manifest).toMatchObject({ run: part.run, parts: 1, rows, list: [{ name: 'docs-00000.parquet', sha256 }] });
    });

    test.each([
      ['embed', 1],
      ['embed', 9],
      ['part-checkpoint', 1],
      ['part-written', 1],
      ['part-whole', 1],
      ['part-committed', 1],
      ['part-copied', 1],
      ['part-renamed', 1],
    ] as const)('a worker that dies at %s, the %ith time: another ends it with the same bytes', async (point, nth) => {
      if (point === 'part-copied' && held === folders) return; // a folder renames
      const part = await makePart();
      const bytes = await reference(part);
      const [first, second] = [worker('dead-1', diesAt(point, nth)), worker('alive-2')];
      await expect(runBy(first, part)).rejects.toThrow(Died);
      // under its last name lies only what was committed
      const isNamed = point === 'part-copied' || point === 'part-renamed';
      expect(await scene.lastNames()).toEqual(isNamed ? ['docs-00000.parquet'] : []);
      const wasCommitted = point === 'part-committed' || isNamed;
      expect(await runBy(second, part)).toMatchObject({ kind: wasCommitted ? 'already' : 'committed' });
      expect(await bytesOf(part)).toEqual(bytes);
      expect(await out()).toEqual(['docs-00000.parquet', 'docs.manifest.json']);
      const { rows, tokens } = decodePartResult((await ledger.pointer(partId(part)))!);
      expect(tokens).toBe(3 * rows);
      expect(second.texts).toBeLessThanOrEqual(
        wasCommitted ? 0 : point === 'part-checkpoint' && held === folders ? rows - 1_024 : rows,
      );
    });
  });

  test('a worker whose lease is lost writes nothing under the last name, and the holder’s object stays', async () => {
    const part = await linesPart();
    const late = worker('late-1', {
      reach: (at) =>
        at === 'part-whole' ? void redis.set(keySpace().lock(QUEUE, partId(part)), 'holder-2') : undefined,
    });
    expect(await runBy(late, part)).toMatchObject({ kind: 'lease-lost' });
    expect(await scene.lastNames()).toEqual([]);
    expect(await runBy(worker('holder-2'), part)).toMatchObject({ kind: 'committed' });
    expect(await out()).toEqual(['docs-00000.parquet', 'docs.manifest.json']);
  });
});

describe.skipIf(!mayHaveS3Server)('of a bucket', () => {
  beforeAll(openStore, 600_000);
  beforeEach(() => {
    scene = buckets;
    gate.refuse(undefined);
  });
  afterAll(closeStore);

  test('who was here before goes on where it was, and a store that is at its end is waited for', async () => {
    const part = await groupsPart();
    const bytes = await reference(part);
    const first = worker('dead-1', diesAt('part-checkpoint'));
    await expect(runBy(first, part)).rejects.toThrow(Died);
    const machine = process.env['TMPDIR'];
    const second = worker('alive-2', noFaults, { places: buckets.places() });
    process.env['TMPDIR'] = machine; // a worker that is started again where it was killed
    gate.refuse({ status: 503, code: 'SlowDown', methods: ['PUT', 'GET', 'HEAD', 'DELETE'], times: 9 });
    expect(await runBy(second, part)).toMatchObject({ kind: 'committed' });
    expect([...gate.refused.values()].reduce((sum, one) => sum + one, 0)).toBe(9);
    expect(await bytesOf(part)).toEqual(bytes);
    expect(second.texts).toBeLessThanOrEqual(ROWS - 2_048 - 1_024);
    expect(await out()).toEqual(['docs-00000.parquet', 'docs.manifest.json']);
  });

  test.each([
    ['GET', 500, 'InternalError', 'FILE_UNREADABLE', 'cannot read s3://shoal-parts/in/.*InternalError'],
    ['GET', 403, 'AccessDenied', 'FILE_UNREADABLE', 'cannot read s3://shoal-parts/in/.*AccessDenied'],
    ['PUT', 503, 'SlowDown', 'FILE_UNWRITABLE', 'cannot write s3://shoal-parts/out/.*SlowDown'],
    ['PUT', 403, 'AccessDenied', 'FILE_UNWRITABLE', 'cannot write s3://shoal-parts/out/.*AccessDenied'],
    ['PUT', 404, 'NoSuchBucket', 'FILE_UNWRITABLE', 'there is no bucket shoal-parts'],
  ])(
    'a store that answers %s with %i %s to the end fails the part by name',
    async (method, status, code, ...expected) => {
      const part = await groupsPart();
      gate.refuse({ status, code, methods: [method] });
      expect(await runBy(worker('a'), part)).toMatchObject(failed(expected[0]!, new RegExp(expected[1]!)));
      gate.refuse(undefined);
      expect(await runBy(worker('b'), part)).toMatchObject({ kind: 'committed' });
      expect(await out()).toEqual(['docs-00000.parquet', 'docs.manifest.json']);
    },
  );

  test('an object that was replaced, one that is gone, what lies outside, and another run’s manifest', async () => {
    const part = await groupsPart();
    const { key } = part.source as Extract<PartSource, { kind: 's3' }>;
    const outside = { ...part, source: { ...part.source, key: 'elsewhere/x' } } as Part;
    expect(await runBy(worker('a'), outside)).toMatchObject(
      failed('FILE_UNREADABLE', 's3://shoal-parts/elsewhere/x lies outside of the folders .*SHOAL_PART_FOLDERS'),
    );
    const above = { ...part, output: { ...part.output, prefix: 'out/../in/' } } as Part;
    expect(await runBy(worker('a'), above)).toMatchObject(failed('FILE_UNWRITABLE', 'lies outside of the folders'));
    const gone = { ...part, source: { ...part.source, key: `${key}x` } } as Part;
    expect(await runBy(worker('a'), gone)).toMatchObject(failed('FILE_UNREADABLE', 'there is no such object'));
    await runBy(worker('a'), part);
    const other = { ...part, run: 'e'.repeat(16), number: 1, of: 2 };
    await ledger.enter(other.run, 0, (await ledger.entries(part.run))[0]!);
    expect(await runBy(worker('b'), other)).toMatchObject(
      failed('FILE_UNWRITABLE', `docs.manifest.json is no manifest of run ${other.run}: two commands`),
    );
    const during = worker('c', noFaults, {
      onRows: () => void s3!.write(BUCKET, key, Buffer.from('another')).catch(() => undefined),
    });
    const again = { ...part, run: 'c'.repeat(16) };
    expect(await runBy(during, again)).toMatchObject(failed('SOURCE_CHANGED', 'run the command again'));
    expect(await runBy(worker('d'), { ...part, run: 'd'.repeat(16) })).toMatchObject(failed('SOURCE_CHANGED', 'ETag'));
  });

  test('an object that was removed from the bucket after it was done, and one of more than S3 copies', async () => {
    const part = await groupsPart();
    await runBy(worker('a'), part);
    await scene.empty();
    expect(await runBy(worker('b'), part)).toMatchObject(failed('PAYLOAD_LOST', 'removed or changed'));
    const target = await scene.places().target(part);
    await expect(target.checkRoom(5.1e9)).rejects.toThrow('S3 copies 5 GB: --part-rows');
  });

  test('what claims of dead workers left goes with the run, and in the temporary folder after a day; no other run’s', async () => {
    const part = await groupsPart();
    const before = `${BUCKET}/out/${basename(place)}/_temporary`;
    for (const name of ['docs-00007.parquet.late', 'docs-x-00000.parquet.other'])
      await s3!.ask(`${before}/${name}`, { method: 'PUT', body: 'x' });
    const own = worker('a');
    const scratch = join(process.env['TMPDIR']!, `shoal-parts-${process.getuid!()}`);
    for (const [name, changed] of [
      ['old', 1],
      ['new', Date.now() / 1_000],
    ] as const) {
      await mkdir(join(scratch, name), { recursive: true });
      await writeFile(join(scratch, name, 'x'), 'x');
      for (const path of [join(scratch, name, 'x'), join(scratch, name)]) await utimes(path, changed, changed);
    }
    expect(await runBy(own, part)).toMatchObject({ kind: 'committed' });
    expect(await out()).toEqual(['_temporary/docs-x-00000.parquet.other', 'docs-00000.parquet', 'docs.manifest.json']);
    expect((await readdir(scratch)).toSorted()).toEqual([part.run, 'new'].toSorted());
    expect(await readdir(join(scratch, part.run))).toEqual([]);
  });

  test('a part that is left waits for no store', async () => {
    const part = await groupsPart();
    const places = new PartPlaces([`s3://${BUCKET}`], { patienceMs: [600_000] });
    const leaving = new AbortController();
    gate.refuse({ status: 503, code: 'SlowDown', methods: ['PUT'] });
    const run = runBy(
      worker('a', noFaults, {
        places,
        open: (terms, signal) =>
          OpenPart.open(terms, { places, tooLong, clock: systemClock, faults: noFaults, signal }),
        signal: leaving.signal,
      }),
      part,
    );
    await vi.waitUntil(() => gate.refused.has('PUT'), { timeout: 30_000 });
    leaving.abort();
    await expect(run).rejects.toThrow(Left);
  });
});

test.each(FORMS)(
  'a part of %s has the same bytes by large jobs, behind a checkpoint of small ones',
  async (_, makePart) => {
    const part = await makePart();
    const bytes = await reference(part);
    await expect(runBy(worker('dead-1', diesAt('part-checkpoint')), part)).rejects.toThrow(Died);
    const large = worker('alive-2', noFaults, { jobRows: 1_024 });
    expect(await runBy(large, part)).toMatchObject({ kind: 'committed' });
    expect(await bytesOf(part)).toEqual(bytes);
  },
);

test('a manifest in the folder that is not of the run is not replaced', async () => {
  const part = await groupsPart();
  const path = join(place, 'out', 'docs.manifest.json');
  for (const text of ['{"run": "' + 'e'.repeat(16) + '"}', 'notes of somebody']) {
    await writeFile(path, text);
    expect(await runBy(worker('a'), part)).toMatchObject(
      failed('FILE_UNWRITABLE', `docs.manifest.json is no manifest of run ${part.run}`),
    );
    expect(await readFile(path, 'utf8')).toBe(text);
  }
  await rm(path);
  expect(await runBy(worker('b'), part)).toMatchObject({ kind: 'already' });
  expect(await manifestText()).toContain(part.run);
});

test('what claims left that ended behind their part goes with the end of the run, and no other run’s', async () => {
  const part = await groupsPart();
  for (const name of ['docs-00007.parquet.late', 'docs-00007.parquet.checkpoint', 'docs-x-00000.parquet.other'])
    await writeFile(join(place, 'out', name), 'x');
  expect(await runBy(worker('a'), part)).toMatchObject({ kind: 'committed' });
  expect(await out()).toEqual(['docs-00000.parquet', 'docs-x-00000.parquet.other', 'docs.manifest.json']);
});

test('five workers that die one after the other behind a checkpoint leave one object', async () => {
  const part = await linesPart();
  const bytes = await reference(part);
  let texts = 0;
  const ends: unknown[] = [];
  for (let life = 0; life < 5; life++) {
    const own = worker(`life-${life}`, diesAt('embed', 9));
    await runBy(own, part).catch((error: unknown) => ends.push(error));
    texts += own.texts;
  }
  expect(await bytesOf(part)).toEqual(bytes);
  expect(ends.every((error) => error instanceof Died)).toBe(true);
  expect(texts).toBeLessThan(3 * 4_000);
  expect(await out()).toEqual(['docs-00000.parquet', 'docs.manifest.json']);
});

test('a checkpoint that lies, is cut, or is of another part is not gone on with', async () => {
  const part = await linesPart();
  const bytes = await reference(part);
  const checkpoint = join(place, 'out', `${partName(part)}.checkpoint`);
  const written = partTemporary(part, 'dead-1');
  await writeFile(join(place, 'out', written), Buffer.alloc(10_000, 0xff));
  const claims = {
    fingerprint: partFingerprint(part),
    written,
    bytes: 9_000,
    position: 256,
    rows: 256,
    tokens: 1,
    truncated: 1,
  };
  const lies = [
    claims,
    { ...claims, bytes: 20_000 },
    { ...claims, fingerprint: 'f'.repeat(16) },
    { ...claims, written: '../x' },
    7,
  ];
  for (const [at, lie] of lies.entries()) {
    await writeFile(checkpoint, at === 0 ? JSON.stringify(lie).slice(0, 40) : JSON.stringify(lie));
    await redis.flushall();
    const own = worker(`own-${at}`);
    expect(await runBy(own, { ...part, run: part.run })).toMatchObject({ kind: 'committed' });
    expect(own.texts).toBe(3_996);
    expect(await bytesOf(part)).toEqual(bytes);
    await writeFile(join(place, 'out', written), Buffer.alloc(10_000, 0xff));
  }
});

const failed = (code: string, message: string | RegExp) => ({
  kind: 'failed',
  failure: { code, message: expect.stringMatching(message) },
});

function breaks(): never {
  throw Object.assign(new Error('EIO: i/o error, read'), { code: 'EIO', syscall: 'read' });
}

describe('fails by name', () => {
  test('a source that changed before, and one that changed while it was read', async () => {
    const part = await linesPart();
    const path = join(place, 'docs.jsonl');
    const during = worker('a', {
      reach: (at) => {
        if ((at as string) !== 'embed') return;
        throw new Died();
      },
    });
    await expect(runBy(during, part)).rejects.toThrow(Died);
    await utimes(path, 1, 1);
    expect(await runBy(worker('b'), part)).toMatchObject(failed('SOURCE_CHANGED', /docs\.jsonl is another file/));
    const again = { ...part, run: 'a'.repeat(16), source: await sourceAt(path) };
    let isTouched = false;
    const reading = worker('c', noFaults, { onRows: () => void (isTouched ||= (utimes(path, 2, 2), true)) });
    expect(await runBy(reading, again)).toMatchObject(failed('SOURCE_CHANGED', 'run the command again'));
    expect((await out()).filter((name) => name.endsWith('.parquet'))).toEqual([]);
  });

  test('what lies outside of the folders, by a path, by a link, as a source and as a target', async () => {
    const part = await linesPart();
    const elsewhere = await mkdtemp(join(tmpdir(), 'shoal-elsewhere-'));
    try {
      await rename(join(place, 'docs.jsonl'), join(elsewhere, 'docs.jsonl'));
      await symlink(join(elsewhere, 'docs.jsonl'), join(place, 'docs.jsonl'));
      await symlink(elsewhere, join(place, 'link'));
      const outside = failed('FILE_UNREADABLE', /outside of the folders .*SHOAL_PART_FOLDERS/);
      expect(await runBy(worker('a'), part)).toMatchObject(outside);
      const direct = { ...part, source: await sourceAt(join(elsewhere, 'docs.jsonl')) };
      expect(await runBy(worker('a'), direct)).toMatchObject(outside);
      const into = { ...(await linesPart()), output: { ...OUTPUT(), folder: join(place, 'link') } };
      expect(await runBy(worker('a'), into)).toMatchObject(failed('FILE_UNWRITABLE', 'outside of the folders'));
      expect(await readdir(elsewhere)).toEqual(['docs.jsonl']);
    } finally {
      await rm(elsewhere, { recursive: true });
    }
  });

  test('a target that is gone, is no folder, or takes no more', async () => {
    const part = await linesPart();
    const gone = { ...part, output: { ...OUTPUT(), folder: join(place, 'gone') } };
    expect(await runBy(worker('a'), gone)).toMatchObject(failed('FILE_UNWRITABLE', 'no such folder; make it'));
    if (process.getuid?.() === 0) return console.log('root may write everywhere: a read-only target is not tried');
    await chmod(join(place, 'out'), 0o500);
    expect(await runBy(worker('a'), part)).toMatchObject(failed('FILE_UNWRITABLE', 'may not write there'));
    await chmod(join(place, 'out'), 0o700);
  });

  test.each<[string, string, Partial<Part>]>([
    ['FINGERPRINT_MISMATCH', 'is for other@1', { model: { name: 'other@1', truncate: 'end' } }],
    ['JOB_INVALID', 'asks for 5 dimensions', { model: { name: MODEL, truncate: 'end', dimensions: 5 } }],
    ['INPUT_INVALID', 'docs.jsonl, line 2000: field "text" is a number', { onError: 'fail' }],
    [
      'FILE_UNREADABLE',
      's3://bucket/key lies outside of the folders',
      { source: { kind: 's3', bucket: 'bucket', key: 'key', etag: 'e', bytes: 1 } },
    ],
    [
      'FILE_UNREADABLE',
      'there is no such file; does this worker see',
      { source: { kind: 'file', path: '/nowhere/x', bytes: 1, modifiedMs: 1 } },
    ],
    ['JOB_INVALID', 'in the middle of a line', { range: { kind: 'bytes', from: 5, to: 100, firstLine: 1, lines: 1 } }],
  ])('%s: %s', async (code, message, change) => {
    expect(await runBy(worker('a'), await linesPart(change))).toMatchObject(failed(code, message));
  });

  test('a disk that fails while it is read, or is full while it is written', async () => {
    const part = await linesPart();
    const reading = worker('a', noFaults, { onRows: breaks });
    expect(await runBy(reading, part)).toMatchObject(failed('FILE_UNREADABLE', 'EIO: i/o error'));
    // beside it there is a folder where the checkpoint would be
    await mkdir(join(place, 'out', `${partName(part)}.checkpoint`));
    expect(await runBy(worker('b'), part)).toMatchObject(failed('FILE_UNWRITABLE', /cannot write .*docs-00000/));
    await rm(join(place, 'out', `${partName(part)}.checkpoint`), { recursive: true });
    expect(await runBy(worker('c'), part)).toMatchObject({ kind: 'committed' });
  });

  test('however often it fails, it leaves what somebody can go on with alone, and says on which worker', async () => {
    const part = await linesPart({ onError: 'fail' });
    const named = failed('INPUT_INVALID', /a number[^()]*$/);
    expect(await runBy(worker('a', noFaults, { checkpointMs: 60_000, workerName: 'w' }), part)).toMatchObject(named);
    expect(await out()).toEqual([]);
    const good = await linesPart();
    for (const [token, most] of [
      ['b', 2_000],
      ['c', 500],
      ['d', 500],
    ] as const) {
      let rows = 0;
      const breaking = worker(token, noFaults, { onRows: (more) => void ((rows += more) > most && breaks()) });
      expect(await runBy(breaking, good)).toMatchObject(failed('FILE_UNREADABLE', /^EIO: i\/o error, read$/));
    }
    expect(await out()).toEqual([partTemporary(good, 'b'), `${partName(good)}.checkpoint`]);
    await rm(join(place, 'docs.jsonl'));
    expect(await runBy(worker('e', noFaults, { workerName: 'w' }), good)).toMatchObject(
      failed('FILE_UNREADABLE', /no such file.* \(worker w\)$/),
    );
  });

  test.skipIf(typeof smallDisk === 'string')(
    'a disk that takes less than it was given of what a dead worker had written',
    async () => {
      const part = await linesPart();
      const bytes = await reference(part);
      const disk = SmallDisk.make(1_000_000);
      invariant(typeof disk !== 'string', 'there was one before');
      try {
        const onIt = { ...part, output: { ...OUTPUT(), folder: disk.folder } };
        const places = new PartPlaces([place, disk.folder]);
        const own = (token: string, faults: FaultPoints): Worker =>
          worker(token, faults, {
            places,
            open: (terms) => OpenPart.open(terms, { places, tooLong, clock: systemClock, faults }),
          });
        await expect(runBy(own('dead', diesAt('embed', 12)), onIt)).rejects.toThrow(Died);
        disk.fill();
        await truncate(join(disk.folder, 'filler'), (await stat(join(disk.folder, 'filler'))).size - 8_192);
        const emptied: FaultPoints = { reach: (at) => ((at as string) === 'embed' ? disk.empty() : undefined) };
        expect(await runBy(own('full', emptied), onIt)).toMatchObject(failed('FILE_UNWRITABLE', 'the disk is full'));
        disk.empty();
        expect(await runBy(own('last', noFaults), onIt)).toMatchObject({ kind: 'committed' });
        expect(await readFile(join(disk.folder, partName(part)))).toEqual(bytes);
        expect((await readdir(disk.folder)).toSorted()).toEqual(['docs-00000.parquet', 'docs.manifest.json']);
      } finally {
        disk.remove();
      }
    },
  );

  test('an object that was removed or changed after it was done', async () => {
    const part = await linesPart();
    await runBy(worker('a'), part);
    expect(await runBy(worker('b'), part)).toMatchObject({ kind: 'already' });
    await writeFile(join(place, 'out', partName(part)), 'x');
    expect(await runBy(worker('b'), part)).toMatchObject(failed('PAYLOAD_LOST', 'removed or changed'));
  });
});

test('texts that the model would cut are bad rows where nothing may be cut', async () => {
  const part = await linesPart({ model: { name: MODEL, truncate: 'error' } });
  expect(await runBy(worker('a'), part)).toMatchObject({ kind: 'committed' });
  const { refused, rows } = decodePartResult((await ledger.pointer(partId(part)))!);
  const cut = Array.from({ length: 4_000 }, (_, at) => 1_000 + at).filter(
    (row) => row % 7 === 6 && row % 1_000 !== 999,
  );
  expect({ rows, refused: refused.rows }).toEqual({ rows: 4_000 - 4 - cut.length, refused: 4 + cut.length });
  expect(refused.first).toHaveLength(100);
});

test('the manifest waits for the last part, and has all of them in order', async () => {
  const whole = await linesPart();
  const { from, to } = whole.range;
  const lines = (await readFile(join(place, 'docs.jsonl'))).subarray(from, to).toString().split('\n');
  const middle = from + Buffer.byteLength(`${lines.slice(0, 2_000).join('\n')}\n`);
  const parts = [
    { ...whole, number: 0, of: 2, range: { kind: 'bytes', from, to: middle, firstLine: 1_001, lines: 2_000 } },
    { ...whole, number: 1, of: 2, range: { kind: 'bytes', from: middle, to, firstLine: 3_001, lines: 2_000 } },
  ] as const satisfies readonly Part[];
  await runBy(worker('a'), parts[1]);
  expect(await out()).toEqual(['docs-00001.parquet']);
  await runBy(worker('b'), parts[0]);
  expect(await out()).toEqual(['docs-00000.parquet', 'docs-00001.parquet', 'docs.manifest.json']);
  const ids = (await Promise.all(parts.map(async (part) => rowsIn(await bytesOf(part))))).flat().map(({ id }) => id);
  expect(new Set(ids).size).toBe(3_996);
  expect(ids).toHaveLength(3_996);
  expect((await readFooter(await openOf(parts[0]), 'x')).rows).toBe(1_998);
});

async function openOf(part: Part) {
  const bytes = await bytesOf(part);
  return {
    stat: async () => ({ size: bytes.length }),
    read: async (into: Uint8Array, offset: number, length: number, position: number) => ({
      bytesRead: bytes.copy(into, offset, position, position + length),
    }),
    close: async () => undefined,
  };
}

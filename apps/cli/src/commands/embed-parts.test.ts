// `shoal embed FILES -o FOLDER/`: the command by itself, with a real queue server and hands in a worker's place that do as
// the test says. What workers make of parts is tested where they are.

import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { DEFAULT_PREFIX, partsQueue } from '@shoal/contract';
import { noLog } from '@shoal/core';
import { WorkerPresence, bucketOutputs, closeConnection, openConnection } from '@shoal/queue';
import {
  WORKER_FACTS,
  mayHaveS3Server,
  startS3Server,
  startTestServer,
  type S3Server,
  type TestServer,
} from '@shoal/queue/testing';
import { PartHands } from '../testing/part-hands.ts';
import { runInside } from '../testing/command-here.ts';
import { Sandbox, type Result } from '../testing/shoal-process.ts';

vi.setConfig({ testTimeout: 120_000 });

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const QUEUE = partsQueue('tiny-random');
let server: TestServer;
let box: Sandbox;
let hands: PartHands | undefined;
let folders = 0;

beforeAll(async () => {
  server = await startTestServer({ topology: 'single' });
  box = new Sandbox();
  box.shareModels();
});

afterAll(async () => {
  await hands?.stop();
  await server.stop();
  box.remove();
});

async function withHands(): Promise<PartHands> {
  hands ??= await PartHands.start({ server, prefix: DEFAULT_PREFIX, queue: QUEUE });
  hands.fails = () => undefined;
  hands.before = async () => undefined;
  hands.done.length = 0;
  return hands;
}

/** Ten lines in a folder of their own, and where their objects go. */
function scene(): { readonly source: string; readonly out: string } {
  const folder = box.path(`scene-${folders++}`);
  mkdirSync(folder);
  const source = join(folder, 'lines.txt');
  writeFileSync(source, Array.from({ length: 10 }, (_, line) => `text ${line} of ${folders}\n`).join(''));
  return { source, out: join(folder, 'out') };
}

function embed({ source, out }: { source: string; out: string }, ...args: string[]): Promise<Result> {
  return runInside(box, argsOf({ source, out }, args));
}

function argsOf({ source, out }: { source: string; out: string }, args: readonly string[]): string[] {
  return ['embed', source, '-o', `${out}/`, '--part-rows', '4', '--redis-url', server.url, ...args];
}

interface Manifest {
  readonly run: string;
  readonly rows: number;
  readonly list: readonly { readonly name: string; readonly rows: number }[];
}

function manifestIn(out: string): Manifest {
  return JSON.parse(readFileSync(join(out, 'part.manifest.json'), 'utf8')) as Manifest;
}

function objectsIn(out: string): string[] {
  return readdirSync(out).toSorted();
}

test('nothing is added where nobody takes parts, and the refusal says what to do', async () => {
  const place = scene();
  const { code, stderr } = await embed(place);
  expect(code).toBe(1);
  expect(stderr).toContain('no worker of tiny-random takes parts of files (parts-tiny-random). Start its workers with');
  expect(await server.command('EXISTS', `${DEFAULT_PREFIX}:${QUEUE}:wait`)).toBe(0);
});

test('nor where those who take parts have other folders, by name; where some of them have not, that is said', async () => {
  const place = scene();
  const presence = await WorkerPresence.connect({
    redisUrl: server.url,
    prefix: DEFAULT_PREFIX,
    queue: QUEUE,
    workerId: 'elsewhere',
    facts: () => ({ ...WORKER_FACTS, partFolders: ['/elsewhere', place.source, `${place.out}-2`] }),
    log: noLog,
  });
  await presence.start();
  try {
    const { code, stderr } = await embed(place);
    expect([code, stderr]).toEqual([
      1,
      expect.stringContaining(
        `no worker of tiny-random takes parts in ${dirname(place.source)}, ${place.out}: elsewhere has /elsewhere, `,
      ),
    ]);
    expect(await server.command('EXISTS', `${DEFAULT_PREFIX}:${QUEUE}:wait`)).toBe(0);
    await withHands();
    const second = await embed(place);
    expect([second.code, second.stderr]).toEqual([
      0,
      expect.stringContaining('warning: 1 of 2 workers that take parts'),
    ]);
  } finally {
    await presence.stop();
  }
});

test('each part becomes an object, in order, and the manifest lists them; the same command finds all of it done', async () => {
  const { done } = await withHands();
  const place = scene();
  const { code, stderr } = await embed(place);
  expect([code, stderr]).toEqual([
    0,
    expect.stringMatching(/shoal: 10 rows → .*out\/part-00000.parquet to part-00002.parquet in /),
  ]);
  const { list, rows, run } = manifestIn(place.out);
  expect([rows, list.map((one) => one.rows)]).toEqual([10, [4, 4, 2]]);
  expect(Buffer.concat(list.map(({ name }) => readFileSync(join(place.out, name))))).toEqual(
    readFileSync(place.source),
  );
  expect(objectsIn(place.out)).toEqual([...list.map(({ name }) => name), 'part.manifest.json']);
  const second = await embed(place, '--json');
  expect(JSON.parse(second.stdout)).toMatchObject({ isDone: true, run, parts: 3, rows: 10 });
  expect(done).toHaveLength(3);
});

test('a part that fails ends the command by name; the same command asks for it again, and not for what is done', async () => {
  const worker = await withHands();
  const place = scene();
  worker.fails = ({ part }) =>
    part.number === 1
      ? { code: 'FILE_UNREADABLE', message: 'cannot read it: the user of this worker may not' }
      : undefined;
  const { code, stderr } = await embed(place);
  expect(code).toBe(1);
  expect(stderr).toContain(`part 1 of 3 (${place.source}) failed: cannot read it: the user of this worker may not`);
  expect(existsSync(join(place.out, 'part.manifest.json'))).toBe(false);
  worker.fails = () => undefined;
  const second = await embed(place);
  expect([second.code, second.stderr]).toEqual([0, expect.stringContaining('goes on with run ')]);
  expect(worker.done.toSorted()).toEqual([0, 1, 2]);
  expect(manifestIn(place.out).rows).toBe(10);
});

test('an object that is gone is computed again; one that was changed is found by its checksum', async () => {
  const worker = await withHands();
  const place = scene();
  await embed(place);
  expect((await embed(place, '--verify')).stderr).toContain('all 3 objects in ');
  const path = join(place.out, 'part-00001.parquet');
  const whole = readFileSync(path);
  writeFileSync(path, Buffer.alloc(whole.length));
  const verified = await embed(place, '--verify');
  expect([verified.code, verified.stderr]).toEqual([
    1,
    expect.stringMatching(/1 of 3 objects .*\n {2}part-00001.parquet: .* not /),
  ]);
  rmSync(path);
  expect((await embed(place)).code).toBe(0);
  expect(readFileSync(path)).toEqual(whole);
  expect(worker.done).toEqual([0, 1, 2, 1]);
});

test('a source that changed is another run, which does not go into the folder of the first', async () => {
  await withHands();
  const place = scene();
  await embed(place);
  const { run } = manifestIn(place.out);
  writeFileSync(place.source, 'other\n');
  const { code, stderr } = await embed(place);
  expect(code).toBe(2);
  expect(stderr).toContain(`holds run ${run}, which is done, and this command asks for run `);
  expect(stderr).toContain(`${place.source} has changed since that run`);
  rmSync(join(place.out, 'part.manifest.json'));
  expect((await embed(place)).stderr).toContain('holds part-00000.parquet, of which the queue server does not know');
});

test('with --workers-only the command leaves, and the same command without it writes the manifest', async () => {
  const worker = await withHands();
  const place = scene();
  const { code, stderr } = await embed(place, '--workers-only');
  expect([code, stderr]).toEqual([
    0,
    expect.stringMatching(/3 of 3 parts asked for, 0 done before; .*: shoal embed .*--part-rows 4/),
  ]);
  expect((await embed(place)).code).toBe(0);
  expect(worker.done).toHaveLength(3);
});

test('what waits is taken back with --cancel, and asked for again by the same command', async () => {
  const worker = await withHands();
  const place = scene();
  const claimed = Promise.withResolvers<void>();
  const goOn = Promise.withResolvers<void>();
  worker.before = () => {
    claimed.resolve();
    return goOn.promise;
  };
  await embed(place, '--workers-only');
  await claimed.promise;
  const { stdout } = await embed(place, '--cancel', '--json');
  expect(JSON.parse(stdout)).toMatchObject({ cancelled: 2, asked: 1, done: 0 });
  goOn.resolve();
  expect((await embed(place)).code).toBe(0);
  expect(manifestIn(place.out).rows).toBe(10);
});

/** At night it is killed as well. */
const ENDS = [
  ['SIGINT', 130, /0 of 3 parts of run .*; 3 that were asked for go on .*\nwith --cancel/s],
  ...(isNightly ? ([['SIGKILL', null, /^/]] as const) : []),
] as const;

test.each(ENDS)(
  'a command that ends by %s leaves its run to the workers, and the next one finds it',
  async (signal, ends, says) => {
    const worker = await withHands();
    const place = scene();
    const claimed = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    worker.before = () => {
      claimed.resolve();
      return goOn.promise;
    };
    const running = box.start(argsOf(place, []));
    await claimed.promise;
    running.child.kill(signal);
    const { code, stderr } = await running.ended;
    expect([code, stderr]).toEqual([ends, expect.stringMatching(says)]);
    goOn.resolve();
    expect((await embed(place)).code).toBe(0);
    expect(manifestIn(place.out).rows).toBe(10);
  },
);

const run = (...args: string[]): Promise<Result> =>
  runInside(box, ['embed', ...args, '--part-rows', '4', '--redis-url', server.url]);

const lines = (from: number): Buffer<ArrayBuffer> =>
  Buffer.from(Array.from({ length: 5 }, (_, line) => `text ${from + line}\n`).join(''));

describe.skipIf(!mayHaveS3Server)('through a bucket', () => {
  let s3: S3Server;
  beforeAll(async () => {
    s3 = await startS3Server();
    await s3.makeBucket('shoal-runs');
    Object.assign(process.env, s3.credentials, { AWS_ENDPOINT_URL_S3: s3.endpoint });
  }, 600_000);
  afterAll(async () => {
    delete process.env['AWS_ENDPOINT_URL_S3'];
    await s3.stop();
  });

  const keys = async (): Promise<string[]> => [...(await s3.objects('shoal-runs')).keys()].toSorted();

  test('a prefix and a pattern become a run, whose objects, manifest and checks are there; folders go along', async () => {
    const { done } = await withHands();
    for (const [at, key] of ['in/a.txt', 'in/b.txt', 'in/_c.txt', 'in/d.md', 'in/deep/e.txt'].entries())
      await s3.write('shoal-runs', key, lines(10 * at));
    const first = await run('s3://shoal-runs/in/', '-o', 's3://shoal-runs/out/');
    expect([first.code, first.stderr]).toEqual([
      0,
      expect.stringMatching(/10 rows → s3:\/\/shoal-runs\/out\/part-00000.parquet to part-00003.parquet/),
    ]);
    const out = (await keys()).filter((key) => key.startsWith('out/'));
    expect(out).toEqual([0, 1, 2, 3].map((at) => `out/part-0000${at}.parquet`).concat('out/part.manifest.json'));
    const manifest = JSON.parse(String((await s3.objects('shoal-runs')).get('out/part.manifest.json'))) as Manifest;
    expect(manifest.rows).toBe(10);
    expect((await run('s3://shoal-runs/in/', '-o', 's3://shoal-runs/out/', '--verify')).stderr).toContain(
      'all 4 objects in',
    );
    await s3.write('shoal-runs', 'out/part-00001.parquet', Buffer.from('text 4\nx'));
    const wrong = await run('s3://shoal-runs/in/', '-o', 's3://shoal-runs/out/', '--verify');
    expect(wrong.stderr).toMatch(/1 of 4 objects .*\n {2}part-00001.parquet: /);
    await s3.ask('shoal-runs/out/part-00001.parquet', { method: 'DELETE' });
    expect((await run('s3://shoal-runs/in/', '-o', 's3://shoal-runs/out/')).code).toBe(0);
    expect(done.toSorted()).toEqual([0, 1, 1, 2, 3]);
    const other = await run('s3://shoal-runs/in/**.txt', '-o', 's3://shoal-runs/out/');
    expect([other.code, other.stderr]).toEqual([
      2,
      expect.stringContaining(`holds run ${manifest.run}, which is done`),
    ]);
    const place = scene();
    const down = await run('s3://shoal-runs/in/**.txt', '-o', `${place.out}/`);
    expect([down.code, manifestIn(place.out).rows]).toEqual([0, 15]);
    expect((await run(place.source, '-o', 's3://shoal-runs/up/')).code).toBe(0);
    expect((await keys()).filter((key) => key.startsWith('up/'))).toHaveLength(4);
    const connection = openConnection({ url: server.url, name: 'test' });
    const known = await bucketOutputs(connection, { prefix: DEFAULT_PREFIX, queue: QUEUE });
    await closeConnection(connection);
    expect(known.map(({ bucket, prefix }) => `${bucket} ${prefix}`).toSorted()).toEqual([
      'shoal-runs out/',
      'shoal-runs up/',
    ]);
  });

  test.each([
    [['s3://shoal-runs/in/a.txt', '-o', 's3://shoal-runs/a/../b/'], 2, 'must be s3://BUCKET/PREFIX/'],
    [['s3://shoal-runs/in/a.txt', '-o', 's3://nothing-here/x/'], 1, 'there is no bucket nothing-here'],
    [['s3://shoal-runs/nothing/', '-o', 's3://shoal-runs/x/'], 1, 'directly lies no object that can be cut'],
    [['s3://shoal-runs/x*.txt', '-o', 's3://shoal-runs/x/'], 1, 'no object is called like s3://shoal-runs/x*.txt'],
    [['s3://nothing-here/', '-o', 's3://shoal-runs/x/'], 1, 'cannot list s3://nothing-here/: there is no bucket'],
  ])('%j is refused', async (args, ends, message) => {
    await s3.write('shoal-runs', 'in/a.txt', Buffer.from('x\n'));
    const { code, stderr } = await run(...args);
    expect([code, stderr]).toEqual([ends, expect.stringContaining(message)]);
  });
});

test.each([
  [['--long', 'chunk'], '--long chunk has no place in a run of parts'],
  [['--fresh'], '--fresh has no place in a run of parts'],
  [['--cancel', '--verify'], 'give one of'],
  [['--verify'], 'has no manifest yet'],
])('%j is refused', async (args, message) => {
  const { code, stderr } = await embed(scene(), ...args);
  expect([code, stderr]).toEqual([2, expect.stringContaining(message)]);
});

test('flags of parts are refused where the output is none of theirs', async () => {
  const { stderr, code } = await runInside(box, ['embed', 'x.txt', '-o', 'x.npy', '--workers-only']);
  expect([code, stderr]).toEqual([2, expect.stringContaining('--workers-only is about a run of parts')]);
});

// Files as jobs through whole workers on a simulated device: seen by who asks before adding parts, drained in the middle of
// a part, killed in the middle of it, and the same bytes in the end as of a worker that nobody disturbed.

import { mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { readFile, readdir, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { PART_JOB, keySpace, mainQueue, partId, partJobData, partsQueue, type Part } from '@shoal/contract';
import { Canceller } from '@shoal/queue';
import { S3Gate } from '@shoal/queue/testing';
import { RecordingLogger } from '@shoal/core/testing';
import { WorkerBench, childrenOf, until, type WorkerProcess } from '../testing/worker-bench.ts';

const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const MODEL = 'tiny-random-sim';
const QUEUE = partsQueue(MODEL);
/** The device takes four seconds for 16,000 of them, however quick the machine is; whoever waits for a part waits a minute. */
const ROWS = isNight ? 96_000 : 16_000;
const place = mkdtempSync(join(tmpdir(), 'shoal-parts-'));
const source = join(place, 'docs.jsonl');
let bench: WorkerBench;

beforeAll(async () => {
  bench = await WorkerBench.start();
  const lines = Array.from({ length: ROWS }, (_, row) =>
    JSON.stringify({ id: `r${row}`, text: `text ${row} of many` }),
  );
  await writeFile(source, `${lines.join('\n')}\n`);
});
afterEach(() => bench.clear());
afterAll(async () => {
  await bench.stop();
  rmSync(place, { recursive: true, force: true });
});

function start(more: Readonly<Record<string, string>> = {}): Promise<WorkerProcess> {
  return bench.startWorker('tiny-random', {
    SHOAL_DEVICE: 'sim:64',
    SHOAL_MAX_ROWS: '256',
    SHOAL_PART_FOLDERS: place,
    SHOAL_LEASE_MS: '1500',
    SHOAL_STALLED_CHECK_MS: '300',
    ...more,
  });
}

/** What the workers of the lane say they serve, name@revision. */
const served = (): Promise<string> =>
  until('a worker takes parts', async () => {
    const [facts] = await bench.redis.hvals(keySpace().facts(QUEUE));
    return facts === undefined ? undefined : String(JSON.parse(facts).model);
  });

let parts = 0;

/** All of the file, as the one part of a run of its own; with the stem of what is written of it. */
async function newPart(): Promise<[string, Part]> {
  const { size, mtimeMs } = await stat(source);
  const stem = `out-${++parts}`;
  const part: Part = {
    run: String(parts).padStart(16, '0'),
    number: 0,
    of: 1,
    source: { kind: 'file', path: source, bytes: size, modifiedMs: mtimeMs },
    format: 'jsonl',
    range: { kind: 'bytes', from: 0, to: size, firstLine: 1, lines: ROWS },
    onError: 'fail',
    output: { kind: 'folder', folder: place, stem, format: 'parquet', dtype: 'f32', hasIds: true },
    model: { name: await served(), truncate: 'end' },
  };
  return [stem, part];
}

async function add(part: Part) {
  const queue = bench.openQueue(QUEUE);
  await queue.add(PART_JOB, partJobData(part), { jobId: partId(part) });
  return queue;
}

const filesOf = async (stem: string): Promise<string[]> =>
  (await readdir(place)).filter((name) => name.startsWith(stem));

/** This share of the part is on the disk, by whoever has it. A row has 32 values of four bytes. */
const written = (stem: string, share: number): Promise<true> =>
  until(`${share} of ${stem} is written`, async () => {
    const own = (await filesOf(stem)).filter((name) => !name.endsWith('.checkpoint'));
    const sizes = await Promise.all(
      own.map(async (name) => (await stat(join(place, name)).catch(() => undefined))?.size),
    );
    return sizes.some((size = 0) => size >= share * ROWS * 128) ? true : undefined;
  });

test('a part outlives a worker that is drained, an executor and a worker that are killed, and is one object of the same bytes', async () => {
  const first = await start();
  const [stem, part] = await newPart();
  const queue = await add(part);
  await written(stem, 0.4);
  expect(await first.stop()).toBe(0); // given back at once, with what it has done
  expect(await filesOf(stem)).toContain(`${stem}-00000.parquet.checkpoint`);
  expect(await queue.getJobState(partId(part))).toMatch(/wait|prioritized/);

  const second = await start();
  await until('the part is claimed', async () =>
    (await queue.getJobState(partId(part))) === 'active' ? true : undefined,
  );
  await written(stem, 0.6);
  const [executor] = childrenOf(second.pid);
  process.kill(executor!, 'SIGKILL'); // its worker starts another, which goes on
  await until('another executor', async () => childrenOf(second.pid).find((pid) => pid !== executor));
  for (const pid of [second.pid, ...childrenOf(second.pid)]) process.kill(pid, 'SIGKILL');
  expect(await filesOf(stem)).not.toContain(`${stem}-00000.parquet`);

  await start();
  expect(await bench.finished(queue, partId(part))).toMatchObject({ rows: ROWS, model: part.model.name });
  const [other, undisturbed] = await newPart();
  await add(undisturbed);
  await bench.finished(queue, partId(undisturbed));
  const [disturbedBytes, bytes] = await Promise.all(
    [stem, other].map((name) => readFile(join(place, `${name}-00000.parquet`))),
  );
  expect(disturbedBytes!.equals(bytes!)).toBe(true);
  expect(await filesOf(stem)).toEqual([`${stem}-00000.parquet`, `${stem}.manifest.json`]);
});

test('an interactive job beside a part is answered in its own time; a cancelled part ends; without folders none is taken', async () => {
  const taking = await start({ SHOAL_DEVICE: 'sim:16' }); // the part takes longer than all who ask beside it
  const [stem, part] = await newPart();
  const [told] = await bench.redis.hvals(keySpace().facts(QUEUE));
  expect(JSON.parse(told!)).toMatchObject({ partFolders: [realpathSync(place)] });
  const queue = await add(part);
  await written(stem, 0.1);
  const jobs = bench.openQueue(mainQueue(MODEL));
  const tookMs: number[] = [];
  for (let ask = 0; ask < 10; ask++) {
    const askedMs = performance.now();
    await jobs.add('embed', { v: 1, texts: [`who waits ${ask}`] }, { jobId: `now-${ask}` });
    await bench.finished(jobs, `now-${ask}`);
    tookMs.push(performance.now() - askedMs);
  }
  expect(await queue.getJobState(partId(part))).toBe('active');
  expect(tookMs.toSorted((a, b) => a - b)[5]).toBeLessThan(1_000);
  const log = new RecordingLogger();
  const canceller = await Canceller.connect({ redisUrl: bench.url, prefix: '{shoal}', queue: QUEUE, log });
  await canceller.cancel([partId(part)]);
  await expect(bench.finished(queue, partId(part))).rejects.toThrow('CANCELLED');
  await canceller.close();
  expect(await filesOf(stem)).not.toContain(`${stem}-00000.parquet`);
  await taking.stop();

  await start({ SHOAL_PART_FOLDERS: '' });
  expect(await bench.redis.zcard(keySpace().workers(QUEUE))).toBe(0);
});

test('a worker whose store is at its end gives its part back at once when it is drained', async () => {
  const gate = await S3Gate.open('http://127.0.0.1:9');
  gate.refuse({ status: 503, code: 'SlowDown', methods: ['GET', 'HEAD', 'PUT'] });
  try {
    const credentials = { AWS_ACCESS_KEY_ID: 'key', AWS_SECRET_ACCESS_KEY: 'secret', AWS_REGION: 'us-east-1' };
    const waiting = await start({
      SHOAL_PART_FOLDERS: 's3://bucket',
      AWS_ENDPOINT_URL_S3: gate.endpoint,
      ...credentials,
    });
    const [, part] = await newPart();
    const { stem, format, dtype, hasIds } = part.output;
    const queue = await add({
      ...part,
      source: { kind: 's3', bucket: 'bucket', key: 'in/docs.jsonl', etag: 'e', bytes: part.source.bytes },
      output: { kind: 's3', bucket: 'bucket', prefix: 'out/', stem, format, dtype, hasIds },
    });
    await until('the store is asked', async () => (gate.refused.size > 0 ? true : undefined));
    const stoppedMs = performance.now();
    expect(await waiting.stop()).toBe(0);
    expect(performance.now() - stoppedMs).toBeLessThan(10_000);
    expect(await queue.getJobState(partId(part))).toMatch(/wait|prioritized/);
  } finally {
    await gate.close();
  }
});

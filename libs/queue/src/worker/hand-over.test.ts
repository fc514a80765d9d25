import { execFileSync } from 'node:child_process';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { keySpace, parseJob, type EmbedReturn, type HandOver } from '@shoal/contract';
import type { RawClaim } from '@shoal/core';
import { noFaults, type FaultPoints } from '@shoal/core/base';
import { RecordingLogger } from '@shoal/core/testing';
import { Queue } from 'bullmq';
import { BullJobSource } from './bull-job-source.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { readMark } from './hand-over.ts';
import { QueueAdmin } from '../upkeep/queue-admin.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const MAIN = 'embed-x';
const CPU = 'embed-x-cpu';
const WHY: HandOver = {
  reason: { code: 'OUT_OF_VRAM', message: 'row 3 needs 9 GB, 8 GB are free' },
  peakBytes: 9_000_000_000,
};
const VALUE: EmbedReturn = {
  v: 1,
  key: '{t}:out:embed-x:a',
  model: 'x@1',
  rows: 1,
  dims: 4,
  dtype: 'f32',
  device: 'cpu',
  precision: 'fp32',
  tokens: 3,
  truncated: 0,
  splits: 0,
  ms: { queued: 1, run: 2 },
};
const DATA = { v: 1, texts: ['one', 'two'], reply: '{shoal}:reply:me' };

let server: TestServer;
let connection: Redis;
let prefix: string;
let prefixes = 0;
let main: Queue;
let cpu: Queue;
let log: RecordingLogger;
const opened: BullJobSource[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

beforeEach(() => {
  prefix = `{t-hand-over-${++prefixes}}`;
  log = new RecordingLogger();
  main = new Queue(MAIN, { prefix, connection });
  cpu = new Queue(CPU, { prefix, connection });
});

afterEach(async () => {
  await Promise.all(opened.splice(0).map((source) => source.stop()));
  await Promise.all([main.close(), cpu.close()]);
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

async function open(queue: string, faults: FaultPoints = noFaults): Promise<BullJobSource> {
  const source = new BullJobSource({
    redisUrl: server.url,
    prefix,
    queue,
    leaseMs: 900,
    stalledCheckMs: 300,
    handOverTo: queue === MAIN ? CPU : undefined,
    faults,
    log,
  });
  opened.push(source);
  await source.start();
  return source;
}

async function claimOne(source: BullJobSource): Promise<RawClaim> {
  const [claim] = await source.claim(1);
  return claim!;
}

/** The state of a job in both lanes: where it is, and nowhere else. */
async function whereIs(jobId: string): Promise<[main: string, cpu: string]> {
  return [await main.getJobState(jobId), await cpu.getJobState(jobId)];
}

async function handedOver(jobId = 'a', data: object = DATA): Promise<BullJobSource> {
  await main.add('embed', data, { jobId });
  const source = await open(MAIN);
  expect(await source.settle(await claimOne(source), { kind: 'hand-over', handOver: WHY })).toBe('settled');
  return source;
}

/** Answered when it returns, so that it is in between whatever the hand-over sends next. */
function renewAtOnce(lockKey: string): void {
  const { hostname, port } = new URL(server.url);
  const send =
    `const line = require('node:net').connect(${port}, '${hostname}', () => line.write('PEXPIRE ${lockKey} ` +
    `5000\\r\\n')).on('data', () => line.end())`;
  execFileSync(process.execPath, ['-e', send]);
}

describe('handing a job over', () => {
  test(
    'puts a child with the same id and data into the CPU lane, and the job waits for it, with the reason to be ' +
      'seen at both',
    async () => {
      await handedOver();
      expect(await whereIs('a')).toEqual(['waiting-children', 'waiting']);
      const [job, child] = await Promise.all([main.getJob('a'), cpu.getJob('a')]);
      expect(child?.data).toEqual(DATA);
      // every row moves
      expect(parseJob('a', child?.name ?? '', child?.data).input).toEqual({ form: 'inline', texts: ['one', 'two'] });
      for (const one of [job, child])
        expect(readMark(one?.progress)).toMatchObject({
          code: 'OUT_OF_VRAM',
          message: WHY.reason.message,
          peakBytes: WHY.peakBytes,
        });
      expect(child?.parent).toMatchObject({ id: 'a', queueKey: `${prefix}:${MAIN}` });
      expect(child?.timestamp).toBe(job?.timestamp);
      expect(await connection.exists(keySpace(prefix).lock(MAIN, 'a'))).toBe(0);
    },
  );

  test('a completed child completes the job with its value and the reason, through whoever claims it', async () => {
    const gpu = await handedOver();
    const worker = await open(CPU);
    await worker.settle(await claimOne(worker), { kind: 'complete', value: VALUE });
    expect(await whereIs('a')).toEqual(['waiting', 'completed']);
    const again = await claimOne(gpu);
    const value = { ...VALUE, handedOver: { reason: 'OUT_OF_VRAM', peakBytes: 9_000_000_000 } };
    expect(again.ending).toEqual({ kind: 'complete', value });
    expect(JSON.stringify(again.ending).length).toBeLessThan(300);
    await gpu.settle(again, again.ending!);
    expect(await main.getJob('a')).toMatchObject({ returnvalue: value, attemptsMade: 1 });
  });

  test('a failed child fails the job with its code, and says what came before: no parent waits for ever', async () => {
    const gpu = await handedOver();
    const worker = await open(CPU);
    await worker.settle(await claimOne(worker), {
      kind: 'fail',
      failure: { code: 'INFERENCE_FAILED', message: 'not here either' },
    });
    const again = await claimOne(gpu);
    expect(again.ending).toEqual({
      kind: 'fail',
      failure: {
        code: 'INFERENCE_FAILED',
        message: `not here either (in the CPU lane, after OUT_OF_VRAM: ${WHY.reason.message})`,
      },
    });
  });

  test('a child that somebody removed lets the job run again', async () => {
    const gpu = await handedOver();
    await cpu.remove('a');
    expect(await claimOne(gpu)).toMatchObject({ jobId: 'a', data: DATA, ending: undefined });
  });

  test('interactive jobs stand before bulk ones in the CPU lane, whatever came first', async () => {
    for (const [jobId, data] of [
      ['bulk-1', { ...DATA, class: 'bulk' }],
      ['bulk-2', { ...DATA, class: 'bulk' }],
      ['fast', { ...DATA, class: 'interactive' }],
    ] as const)
      await main.add('embed', data, { jobId });
    const gpu = await open(MAIN);
    const claims = new Map<string, RawClaim>();
    for (const claim of [await claimOne(gpu), await claimOne(gpu), await claimOne(gpu)]) claims.set(claim.jobId, claim);
    for (const jobId of ['bulk-1', 'bulk-2', 'fast'])
      await gpu.settle(claims.get(jobId)!, { kind: 'hand-over', handOver: WHY });
    const worker = await open(CPU);
    const order = [];
    for (let i = 0; i < 3; i++) order.push((await claimOne(worker)).jobId);
    expect(order).toEqual(['fast', 'bulk-1', 'bulk-2']);
  });

  test('a delayed job does not wait for its delay a second time', async () => {
    await main.add('embed', DATA, { jobId: 'a', delay: 50 });
    const gpu = await open(MAIN);
    await gpu.settle(await claimOne(gpu), { kind: 'hand-over', handOver: WHY });
    const worker = await open(CPU);
    await worker.settle(await claimOne(worker), { kind: 'complete', value: VALUE });
    expect(await main.getJobState('a')).toBe('waiting');
  });

  test('without the lock nothing is changed in either lane', async () => {
    await main.add('embed', DATA, { jobId: 'a' });
    const source = await open(MAIN);
    const claim = await claimOne(source);
    await connection.set(keySpace(prefix).lock(MAIN, 'a'), 'a stranger', 'PX', 60_000);
    expect(await source.settle(claim, { kind: 'hand-over', handOver: WHY })).toBe('lease-lost');
    expect(await whereIs('a')).toEqual(['active', 'unknown']);
  });

  test('a lock that changes hands between the look and the move stops the move', async () => {
    await main.add('embed', DATA, { jobId: 'a' });
    const source = await open(MAIN, {
      reach: (point) =>
        point === 'hand-over-watched' &&
        void connection.set(keySpace(prefix).lock(MAIN, 'a'), 'a stranger', 'PX', 60_000),
    });
    expect(await source.settle(await claimOne(source), { kind: 'hand-over', handOver: WHY })).toBe('lease-lost');
    expect(await whereIs('a')).toEqual(['active', 'unknown']);
  });

  test('a lease that is renewed in between only makes it begin anew', async () => {
    await main.add('embed', DATA, { jobId: 'a' });
    let renewals = 3;
    const source = await open(MAIN, { reach: () => renewals-- > 0 && renewAtOnce(keySpace(prefix).lock(MAIN, 'a')) });
    expect(await source.settle(await claimOne(source), { kind: 'hand-over', handOver: WHY })).toBe('settled');
    expect(renewals).toBeLessThan(0);
    expect(await whereIs('a')).toEqual(['waiting-children', 'waiting']);
  });

  test('a connection that is cut at any moment leaves the job in one place; the ending is told rightly', async () => {
    for (let round = 0; round < 20; round++) {
      const jobId = `cut-${round}`;
      await main.add('embed', DATA, { jobId });
      const source = await open(MAIN, { reach: () => void cutHandOvers(round % 4) });
      const result = await source.settle(await claimOne(source), { kind: 'hand-over', handOver: WHY });
      expect([result, ...(await whereIs(jobId))]).toEqual(['settled', 'waiting-children', 'waiting']);
      await source.stop();
    }
  });

  test(
    'an id used again, after its first life went through the CPU lane, is run anew and not answered with the old ' +
      'ending',
    async () => {
      const gpu = await handedOver();
      const worker = await open(CPU);
      await worker.settle(await claimOne(worker), { kind: 'complete', value: VALUE });
      const again = await claimOne(gpu);
      await gpu.settle(again, again.ending!);
      await main.remove('a');
      const later = { ...DATA, texts: ['three'] };
      await main.add('embed', later, { jobId: 'a' });
      await gpu.settle(await claimOne(gpu), { kind: 'hand-over', handOver: WHY });
      expect(await whereIs('a')).toEqual(['waiting-children', 'waiting']);
      expect((await claimOne(worker)).data).toEqual(later);
    },
  );

  test('a job removed while its child waits, and added anew, is not answered with the old input', async () => {
    const gpu = await handedOver();
    await main.remove('a', { removeChildren: false });
    const later = { ...DATA, texts: ['three'] };
    await main.add('embed', later, { jobId: 'a' });
    await gpu.settle(await claimOne(gpu), { kind: 'hand-over', handOver: WHY });
    expect(await (await cpu.getJob('a'))?.data).toEqual(later);
    expect(await whereIs('a')).toEqual(['waiting-children', 'waiting']);
  });

  test('a job that a person retries after its child failed runs again', async () => {
    const gpu = await handedOver();
    const worker = await open(CPU);
    await worker.settle(await claimOne(worker), { kind: 'fail', failure: { code: 'INFERENCE_FAILED', message: 'x' } });
    const failed = await claimOne(gpu);
    await gpu.settle(failed, failed.ending!);
    await (await main.getJob('a'))?.retry();
    const again = await claimOne(gpu);
    expect(again.ending).toBeUndefined();
    await gpu.settle(again, { kind: 'hand-over', handOver: WHY });
    await worker.settle(await claimOne(worker), { kind: 'complete', value: VALUE });
    expect((await claimOne(gpu)).ending).toMatchObject({ kind: 'complete' });
  });

  test('so does one that is retried from the command line, whose attempts begin anew', async () => {
    const gpu = await handedOver();
    const worker = await open(CPU);
    await worker.settle(await claimOne(worker), { kind: 'fail', failure: { code: 'INFERENCE_FAILED', message: 'x' } });
    const failed = await claimOne(gpu);
    await gpu.settle(failed, failed.ending!);
    const admin = await QueueAdmin.connect({ redisUrl: server.url, prefix, queue: MAIN });
    expect(await admin.retry(['a'])).toEqual([{ jobId: 'a', outcome: 'retried' }]);
    await admin.close();
    const again = await claimOne(gpu);
    expect(again).toMatchObject({ jobId: 'a', attempt: 0 });
    expect(again.ending).toBeUndefined();
    await gpu.settle(again, { kind: 'hand-over', handOver: WHY });
    await worker.settle(await claimOne(worker), { kind: 'complete', value: VALUE });
    expect((await claimOne(gpu)).ending).toMatchObject({ kind: 'complete' });
  });

  test('a server whose memory is full refuses the move as a whole; it is done when there is room', async () => {
    await main.add('embed', DATA, { jobId: 'a' });
    const source = await open(MAIN);
    const claim = await claimOne(source);
    await server.command('CONFIG', 'SET', 'maxmemory', '1mb');
    const settling = source.settle(claim, { kind: 'hand-over', handOver: WHY });
    await expect.poll(() => log.messages('debug')).toContain('ending a job failed, trying again');
    expect(await whereIs('a')).toEqual(['active', 'unknown']);
    await server.command('CONFIG', 'SET', 'maxmemory', '0');
    expect(await settling).toBe('settled');
    expect(await whereIs('a')).toEqual(['waiting-children', 'waiting']);
  });

  test('a server that forgot its scripts has them again before the move is begun anew', async () => {
    const source = await handedOver('a');
    await main.add('embed', DATA, { jobId: 'b' });
    const claim = await claimOne(source);
    await server.command('SCRIPT', 'FLUSH');
    expect(await source.settle(claim, { kind: 'hand-over', handOver: WHY })).toBe('settled');
    expect(await whereIs('b')).toEqual(['waiting-children', 'waiting']);
    expect(log.messages('debug')).not.toContain('ending a job failed, trying again');
  });

  test('without a CPU lane what would go there fails', async () => {
    await cpu.add('embed', DATA, { jobId: 'a' });
    const worker = await open(CPU);
    await worker.settle(await claimOne(worker), { kind: 'hand-over', handOver: WHY });
    expect(await cpu.getJob('a')).toMatchObject({ failedReason: `OUT_OF_VRAM: ${WHY.reason.message}` });
  });
});

/** Kills the connections of hand-overs, `turns` turns of the event loop from now. */
async function cutHandOvers(turns: number): Promise<void> {
  for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setImmediate(resolve));
  const clients = String(await connection.client('LIST'))
    .split('\n')
    .filter((line) => line.includes('name=shoal:worker:hand-over'));
  await Promise.all(
    clients.map((line) => connection.client('KILL', 'ID', Number(/id=(\d+)/.exec(line)?.[1])).catch(() => undefined)),
  );
}

test('what progress holds is a mark only when all of it is there', () => {
  const mark = { code: 'OUT_OF_VRAM', message: 'x', by: 'w:1', attempt: 0 };
  expect(readMark({ handedOver: mark })).toEqual(mark);
  for (const progress of [
    undefined,
    null,
    0,
    50,
    'x',
    {},
    { handedOver: null },
    { handedOver: { ...mark, code: 'NO_SUCH_CODE' } },
    { handedOver: { ...mark, attempt: '0' } },
  ]) {
    expect(readMark(progress)).toBeUndefined();
  }
});

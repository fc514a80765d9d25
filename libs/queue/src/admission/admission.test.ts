import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { LIVE_RESULT_TTL_MS, parseJob, keySpace, type EmbedJobData } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import {
  Admission,
  readAdmission,
  readServerMemory,
  queuesWithLoad,
  recountAdmission,
  releaseAdmission,
  tellDims,
  type AdmissionAnswer,
  type AdmissionLimits,
  type WantedRoom,
} from './admission.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { RedisAnnouncer } from '../worker/announcer.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const QUEUE = 'embed-x';
const DIMS = 4;
/** Of a job of 10 rows: 1,024 for itself, 100 of input; its result. */
const QUEUED_BYTES = 1_124;
const OWED_BYTES = 10 * DIMS * 4 + 96;
let server: TestServer;
let connection: Redis;
let scenes = 0;
let prefix: string;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

beforeEach(async () => {
  prefix = `{t-admission-${++scenes}}`;
  await tellDims(connection, { prefix, queue: QUEUE }, DIMS);
});

function room(jobId: string, more: Partial<EmbedJobData> = {}, rows = 10): WantedRoom {
  return { job: parseJob(jobId, 'embed', { v: 1, input: { form: 'texts', rows }, ...more }), inputBytes: 100 };
}

function rooms(name: string, count: number, more: Partial<EmbedJobData> = {}): WantedRoom[] {
  return Array.from({ length: count }, (_, i) => room(`${name}-${i}`, more));
}

function door(limits: Partial<AdmissionLimits>, caller = 'somebody'): Admission {
  return new Admission(connection, { prefix, queue: QUEUE, caller, limits: { maxTenantShare: 1, ...limits } });
}

const load = () => readAdmission(connection, { prefix, queue: QUEUE });
const release = (jobIds: readonly string[], part: 'queued' | 'all') =>
  releaseAdmission(connection, { prefix, queue: QUEUE }, jobIds, part);
const reasonOf = ({ refused }: AdmissionAnswer): string | undefined => refused?.reason;

describe('admission', () => {
  test('reserves rows, input and result until the job ended, the result until it was read', async () => {
    expect(await door({}).admit(rooms('a', 3))).toEqual({ admitted: 3, refused: undefined });
    expect(await load()).toEqual({ rows: 30, bytes: 3 * (QUEUED_BYTES + OWED_BYTES), unreadBytes: 0 });
    await release(['a-0', 'a-1'], 'queued');
    expect(await load()).toEqual({ rows: 10, bytes: QUEUED_BYTES + 3 * OWED_BYTES, unreadBytes: 2 * OWED_BYTES });
    await release(['a-0', 'a-2'], 'all');
    expect(await load()).toEqual({ rows: 0, bytes: OWED_BYTES, unreadBytes: OWED_BYTES });
    for (const part of ['queued', 'all', 'all'] as const) await release(['a-0', 'a-1', 'a-2', 'never'], part);
    expect(await load()).toEqual({ rows: 0, bytes: 0, unreadBytes: 0 });
    expect(await connection.hkeys(keySpace(prefix).load())).toEqual([`dims ${QUEUE}`]);
    expect(await connection.exists(keySpace(prefix).admitted(QUEUE))).toBe(0);
  });

  test('a job that has its reservation keeps it, whatever is asked again', async () => {
    await door({ maxQueuedRows: 100 }).admit(rooms('a', 9));
    expect((await door({ maxQueuedRows: 20 }).admit(rooms('a', 9))).admitted).toBe(9);
    expect((await load()).rows).toBe(90);
  });

  test(
    'while room is ample the reservation is made without being asked for first: after an answer, for little, ' +
      'until half is used',
    async () => {
      const roomy = door({ maxQueuedRows: 10_000 });
      expect(roomy.admitMeanwhile(rooms('a', 1))).toBeUndefined(); // nothing is known yet
      await roomy.admit(rooms('b', 1));
      await roomy.admitMeanwhile(rooms('a', 10));
      expect((await load()).rows).toBe(110);
      expect(roomy.admitMeanwhile(rooms('c', 11))).toBeUndefined(); // more than a hundredth
      expect(roomy.admitMeanwhile(rooms('d', 1, { tenant: 'unknown' }))).toBeUndefined();
      await door({ maxQueuedRows: 10_000 }, 'other').admit(rooms('e', 489));
      await roomy.admitMeanwhile(rooms('f', 1)); // which says so
      expect(roomy.admitMeanwhile(rooms('g', 1))).toBeUndefined();
      expect((await load()).rows).toBe(5_010);
    },
  );

  test('no room is ample beside somebody who stands in line, nor for a tenant whose share is half used', async () => {
    const limits = { maxQueuedRows: 1_000, maxTenantShare: 0.4 };
    const roomy = door(limits);
    await roomy.admit(rooms('a', 20, { tenant: 'A' }));
    await roomy.admit(rooms('b', 1, { tenant: 'B' }));
    await roomy.admit(rooms('a', 20, { tenant: 'A' })); // known, and half of its share
    expect(roomy.admitMeanwhile(rooms('c', 1, { tenant: 'A' }))).toBeUndefined();
    await roomy.admit(rooms('b', 1, { tenant: 'B' }));
    expect(roomy.admitMeanwhile(rooms('d', 1, { tenant: 'B' }))).toBeDefined();
    await connection.zadd(keySpace(prefix).door(QUEUE), 1, `somebody 10 10 ${Date.now() + 60_000}`);
    await roomy.admit(rooms('e', 1, { tenant: 'B', class: 'interactive' }));
    expect(roomy.admitMeanwhile(rooms('f', 1, { tenant: 'B' }))).toBeUndefined();
  });

  test('lets in as many as there is room for, and says why no more', async () => {
    const answer = await door({ maxQueuedRows: 100 }).admit(rooms('a', 20));
    expect(answer.admitted).toBe(9); // a tenth is for interactive jobs
    expect(reasonOf(answer)).toBe('rows');
    expect(
      reasonOf(
        await door({ maxQueuedBytes: 9 * (QUEUED_BYTES + OWED_BYTES) + 2_000 }, 'other').admit(
          rooms('b', 2, { class: 'interactive' }),
        ),
      ),
    ).toBe('bytes');
  });

  test('what is larger than the whole room is let in when it is empty, or it would wait for ever', async () => {
    expect((await door({ maxQueuedRows: 5 }).admit([room('large')])).admitted).toBe(1);
    expect((await door({ maxQueuedRows: 5 }).admit([room('next')])).admitted).toBe(0);
    expect((await door({ maxQueuedRows: 5 }).admit([room('known')], true)).admitted).toBe(1);
  });

  test('a tenant fills its share and no more; others and interactive jobs still find room', async () => {
    const limited = door({ maxQueuedRows: 100, maxTenantShare: 0.5 });
    const answer = await limited.admit(rooms('a', 20, { tenant: 'A' }));
    expect([answer.admitted, reasonOf(answer)]).toEqual([5, 'tenant']);
    expect((await limited.admit(rooms('b', 20, { tenant: 'B' }))).admitted).toBe(4);
    expect((await limited.admit(rooms('i', 20, { tenant: 'I', class: 'interactive' }))).admitted).toBe(1);
  });

  test('who waits for room is not passed by who comes later, but by what somebody waits for', async () => {
    const limits = { maxQueuedRows: 100 };
    await door(limits, 'first').admit(rooms('a', 9));
    expect(reasonOf(await door(limits, 'waiting').admit(rooms('w', 1)))).toBe('rows');
    await release(['a-0', 'a-1'], 'all');
    expect(reasonOf(await door(limits, 'late').admit(rooms('l', 1)))).toBe('line');
    expect((await door(limits, 'hurried').admit(rooms('i', 1, { class: 'interactive' }))).admitted).toBe(1);
    expect((await door(limits, 'waiting').admit(rooms('w', 1))).admitted).toBe(1);
  });

  test('who come within a millisecond stand in the order in which they came', async () => {
    const limits = { maxQueuedRows: 100 };
    await door(limits, 'first').admit(rooms('f', 9));
    await Promise.all(['d', 'c', 'b', 'a'].map((caller) => door(limits, caller).admit(rooms(caller, 1))));
    await release(['f-0'], 'all');
    for (const caller of ['a', 'b', 'c'])
      expect(reasonOf(await door(limits, caller).admit(rooms(caller, 1)))).toBe('line');
    expect((await door(limits, 'd').admit(rooms('d', 1))).admitted).toBe(1);
  });

  test('the wait follows from what is too much and from how fast room comes back', async () => {
    const limits = { maxQueuedRows: 1_000 };
    const first = door(limits, 'first');
    await first.admit(rooms('a', 90));
    await connection.hset(keySpace(prefix).drain(QUEUE), {
      rowRate: '0.1',
      byteRate: '100',
      sampleMs: String(Date.now()),
      sampleRows: '0',
      sampleBytes: '0',
    });
    expect((await first.admit(rooms('b', 1))).refused).toEqual({ retryAfterMs: 100, reason: 'rows' });
    const second = (await door(limits, 'second').admit(rooms('c', 1))).refused!;
    expect(second.retryAfterMs).toBeGreaterThan(100); // behind the first, less the moment that passed in between
    expect(second.retryAfterMs).toBeLessThanOrEqual(200);
    const again = (await door(limits, 'second').admit(rooms('c', 1))).refused!; // too early: its turn is when it was
    expect(again.retryAfterMs).toBeLessThanOrEqual(second.retryAfterMs);
  });

  test('room that nobody gives back is found by the recount, and nothing else is touched', async () => {
    const keys = keySpace(prefix);
    await door({}).admit(rooms('a', 5));
    await connection.hset(keys.job(QUEUE, 'a-0'), 'data', '{}'); // waits
    await connection.hset(keys.job(QUEUE, 'a-1'), 'finishedOn', '1'); // ended, its result is unread
    await connection.set(keys.output(QUEUE, 'a-1'), 'x'.repeat(100));
    await connection.hset(keys.job(QUEUE, 'a-2'), 'finishedOn', '1'); // ended, acknowledged by somebody who died then
    await connection.set(keys.output(QUEUE, 'a-2'), 'x'.repeat(32));
    const tooYoung = await recountAdmission(connection, { prefix, queue: QUEUE });
    expect(tooYoung).toEqual({ released: 0, expired: 0 });
    expect(await recountAdmission(connection, { prefix, queue: QUEUE, graceMs: 0 })).toEqual({
      released: 3,
      expired: 0,
    });
    expect(await load()).toEqual({ rows: 10, bytes: QUEUED_BYTES + 2 * OWED_BYTES, unreadBytes: OWED_BYTES });
    await connection.del(keys.output(QUEUE, 'a-1')); // expired
    expect(await recountAdmission(connection, { prefix, queue: QUEUE, graceMs: 0 })).toEqual({
      released: 1,
      expired: 1,
    });
    expect((await load()).unreadBytes).toBe(0);
  });

  test('queues are known that have reservations, of models without workers as well', async () => {
    await door({}).admit(rooms('a', 1));
    await tellDims(connection, { prefix, queue: 'embed-old' }, 384);
    expect((await queuesWithLoad(connection, prefix)).toSorted()).toEqual(['embed-old', QUEUE].toSorted());
  });

  test('the announcer gives back all that a failed job had, and of a completed one all but its result', async () => {
    await door({}).admit(rooms('a', 2));
    const announcer = await RedisAnnouncer.connect({
      redisUrl: server.url,
      prefix,
      queue: QUEUE,
      log: new RecordingLogger(),
    });
    const ended = { reply: undefined, resultTtlMs: LIVE_RESULT_TTL_MS, isUrgent: false, wasRepeated: false };
    await announcer.announce([
      { ...ended, jobId: 'a-0', outcome: 'completed' },
      { ...ended, jobId: 'a-1', outcome: 'failed' },
    ]);
    await announcer.stop();
    expect(await load()).toEqual({ rows: 0, bytes: OWED_BYTES, unreadBytes: OWED_BYTES });
  });

  test('a server whose memory is almost full takes nothing, whatever fills it', async () => {
    const small = await startTestServer();
    const own = openConnection({ url: small.url, name: 'test' });
    await small.command('CONFIG', 'SET', 'maxmemory', Math.round((await readServerMemory(own)).usedBytes / 0.8));
    const admission = new Admission(own, { queue: QUEUE, caller: 'c' });
    await expect(admission.admit(rooms('a', 1))).rejects.toMatchObject({ code: 'QUEUE_FULL' });
    expect((await admission.admit(rooms('a', 1), true)).admitted).toBe(1); // what was let in before is finished
    await closeConnection(own);
    await small.stop();
  });
});

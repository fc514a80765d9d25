import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { Queue, Worker } from 'bullmq';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { orderWaiting } from './fair-order.ts';
import { startTestServer, type TestServer } from '../testing.ts';

let server: TestServer;
let connection: Redis;
let scenes = 0;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

let prefix: string;
let queue: Queue;
let worker: Worker;

beforeEach(() => {
  prefix = `{t-order-${++scenes}}`;
  queue = new Queue('embed-x', { prefix, connection });
  worker = new Worker('embed-x', null, { prefix, connection, autorun: false });
  return async () => {
    await worker.close(true);
    await queue.close();
  };
});

/** 64 rows with 4,096 tokens unless it says otherwise. */
function job(
  jobId: string,
  tenant: string,
  more: object = {},
): { name: string; data: object; opts: { jobId: string; priority?: number } } {
  return {
    name: 'embed',
    data: { v: 1, input: { form: 'tokens', rows: 64, tokens: 4_096, tokenizer: '0123456789abcdef' }, tenant, ...more },
    opts: { jobId },
  };
}

function many(tenant: string, count: number, more: object = {}, from = 0): ReturnType<typeof job>[] {
  return Array.from({ length: count }, (_, i) => job(`${tenant}-${String(from + i).padStart(6, '0')}`, tenant, more));
}

async function order(mostJobs?: number): Promise<void> {
  while (
    (await orderWaiting(connection, { prefix, queue: 'embed-x', ...(mostJobs === undefined ? {} : { mostJobs }) }))
      .unplaced > 0
  );
}

async function urgent(): Promise<number> {
  return (await orderWaiting(connection, { prefix, queue: 'embed-x' })).urgent;
}

/** Claims as a worker does; the ids in their order. */
async function claim(count: number): Promise<string[]> {
  const ids: string[] = [];
  for (let i = 0; i < count; i++) {
    const next = await worker.getNextJob(`token-${i}`, { block: false });
    if (next === undefined) break;
    ids.push(next.id ?? '');
  }
  return ids;
}

const tenantsOf = (ids: readonly string[]): string => ids.map((id) => id[0]).join('');

const userOf = (ids: readonly string[]): string => ids.map((id) => id.split('-')[0]!.at(-1)).join('');

describe('users of a tenant', () => {
  const bulk = { class: 'bulk' };

  test('go before what others of the tenant have waiting, as long as they had little', async () => {
    await queue.addBulk(many('A/a', 60, bulk));
    await order();
    await queue.addBulk([...many('A/b', 3, bulk), ...many('A/c', 2, bulk)]);
    await order();
    expect(userOf(await claim(6))).toMatch(/^[bc]{5}a$/);
    await queue.addBulk(many('A/d', 30, bulk)); // 16 jobs of 4,096 tokens are what a user may have first
    await order();
    expect(userOf(await claim(18))).toBe(`${'d'.repeat(16)}aa`);
  });

  test('have the turns of one tenant between them, however many there are', async () => {
    await queue.addBulk(many('U', 200, bulk));
    await order();
    const made = Array.from({ length: 200 }, (_, at) => job(`A/${at}-x`, `A/${at}`, bulk));
    await queue.addBulk(made);
    await order();
    await claim(64); // what a tenant that had nothing may put before others, whoever its users are
    expect((await claim(60)).filter((id) => id.startsWith('A/')).length).toBeLessThanOrEqual(31);
  });

  test('cannot make their tenant’s share larger for long: what went before is owed', async () => {
    await queue.addBulk([...many('U', 400, bulk), ...many('A/a', 100, bulk)]);
    await order();
    await queue.addBulk(Array.from({ length: 100 }, (_, at) => job(`A/${at}-x`, `A/${at}`, bulk)));
    await order();
    await claim(64);
    await queue.addBulk(many('A/a', 200, bulk, 100));
    await order();
    const next = await claim(400);
    expect(next.filter((id) => id.startsWith('A/')).length).toBeLessThanOrEqual(200);
  });

  test('that are interactive go before the interactive backlog of another user', async () => {
    const soon = { class: 'interactive' };
    await queue.addBulk(many('A/a', 60, soon));
    await order();
    await queue.addBulk(many('A/b', 1, soon));
    await order();
    expect(userOf(await claim(2))).toContain('b');
  });
});

describe('fair order', () => {
  test('an empty queue costs nothing and leaves nothing', async () => {
    await order();
    expect(await connection.keys(`${prefix}*order*`)).toEqual([]);
  });

  test('jobs of one tenant keep their order, over several calls of few jobs each', async () => {
    const jobs = many('A', 20);
    await queue.addBulk(jobs);
    await order(7);
    expect(await connection.llen(queue.toKey('wait'))).toBe(0);
    expect(await claim(20)).toEqual(jobs.map(({ opts }) => opts.jobId));
  });

  test('tenants that arrive together alternate, whoever came first', async () => {
    await queue.addBulk([...many('A', 6), ...many('B', 6)]);
    await order();
    expect(tenantsOf(await claim(12))).toMatch(/^(AB|BA){6}$/);
  });

  test('it is known how many of the next are interactive, whatever was handed back or has a priority', async () => {
    expect(await urgent()).toBe(0);
    await queue.addBulk([...many('A', 3), { ...job('plain', 'P'), opts: { jobId: 'plain', priority: 1 } }]);
    await order();
    await queue.addBulk([...many('B', 3), ...many('I', 5, { class: 'interactive' })]);
    expect(await urgent()).toBe(5);
    const [first] = await claim(1);
    expect(await urgent()).toBe(4);
    await (await queue.getJob(first!))?.moveToWait('token-0');
    expect(await urgent()).toBe(5);
    expect((await claim(5)).every((id) => id.startsWith('I'))).toBe(true);
    expect(await urgent()).toBe(0);
  });

  test('shares are of tokens, not of jobs', async () => {
    const large = { input: { form: 'tokens', rows: 64, tokens: 12_288, tokenizer: '0123456789abcdef' } };
    await queue.addBulk([...many('A', 30), ...many('B', 10, large)]);
    await order();
    const ids = tenantsOf(await claim(20));
    expect(ids.match(/A/g)).toHaveLength(15);
  });

  test(
    'who comes late with little goes before who has waited with much, and plain jobs without a tenant are one ' +
      'more tenant',
    async () => {
      await queue.addBulk(
        Array.from({ length: 2_000 }, (_, i) => ({
          name: 'embed',
          data: { v: 1, texts: Array.from({ length: 64 }, () => 'plain text') },
          opts: { jobId: `P-${i}` },
        })),
      );
      await order();
      await claim(100);
      await queue.addBulk(many('B', 40));
      await order();
      expect(tenantsOf(await claim(40))).toBe('B'.repeat(40));
      expect(tenantsOf(await claim(1))).toBe('P');
    },
  );

  test('nobody may have the front again and again: a lead that was used is gone until others were served', async () => {
    await queue.addBulk(many('A', 400));
    await order();
    await queue.addBulk(many('B', 120));
    await order();
    const ids = tenantsOf(await claim(200));
    expect(ids.slice(0, 64)).toBe('B'.repeat(64)); // 2^18 tokens are 64 such jobs
    expect(ids.slice(64)).toMatch(/^((AB|BA){56})A*$/);
  });

  test('a priority that a producer chose is no turn before others', async () => {
    await queue.addBulk(many('A', 10));
    await order();
    await queue.addBulk(many('Z', 5).map((one) => ({ ...one, opts: { ...one.opts, priority: 1 } })));
    expect(tenantsOf(await claim(2))).toBe('AA'); // unordered ones come last
    await order();
    expect(await queue.getPrioritizedCount()).toBe(13);
    expect(tenantsOf(await claim(13))).toBe('ZZZZZAAAAAAAA');
  });

  test('interactive jobs go before bulk ones, a fresh tenant’s too; few rows are so unless they say it', async () => {
    await queue.addBulk(many('A', 50));
    await order();
    await claim(10);
    await queue.addBulk([
      ...many('B', 2),
      ...many('I', 2, { class: 'interactive' }),
      job('few', 'F', { input: { form: 'texts', rows: 8 } }),
      job('less', 'L', { input: { form: 'texts', rows: 8 }, class: 'bulk' }),
      { name: 'embed', data: { v: 1, texts: ['one text'] }, opts: { jobId: 'one' } },
    ]);
    await order();
    const ids = await claim(8);
    expect(ids.slice(0, 4).toSorted()).toEqual(['I-000000', 'I-000001', 'few', 'one']);
    expect(ids.slice(4, 7).toSorted()).toEqual(['B-000000', 'B-000001', 'less']);
    expect(ids[7]).toBe('A-000010');
  });

  test('a tenant whose interactive jobs never end shares 256 : 1 with bulk once its lead is used up', async () => {
    const key = keySpace(prefix).order('embed-x');
    await queue.addBulk(many('A', 4));
    await order();
    // as if 2^27 tokens had gone before
    await connection.zadd(key, String(Number(await connection.zscore(key, '')) + 1), 'i:I');
    await queue.addBulk(many('I', 600, { class: 'interactive' }));
    await order();
    const ids = tenantsOf(await claim(600));
    const turns = [...ids].flatMap((tenant, at) => (tenant === 'A' ? [at] : []));
    expect(turns.length).toBe(3);
    expect(turns[2]! - turns[1]!).toBe(257);
  });

  test('a job that goes back is first again and is not charged twice', async () => {
    await queue.addBulk(many('A', 5));
    await order();
    const [first] = await claim(1);
    const given = await queue.getJob(first!);
    await given!.moveToWait('token-0');
    await order();
    expect(await claim(5)).toEqual(many('A', 5).map(({ opts }) => opts.jobId));
  });

  test('an empty line begins anew, and what comes back from before it is first', async () => {
    await queue.addBulk(many('A', 10));
    await order();
    const all = await claim(10);
    await queue.addBulk(many('B', 2));
    await order();
    await (await queue.getJob(all[9]!))!.moveToWait('token-9');
    await order();
    const ids = await claim(3);
    expect(ids.toSorted()).toEqual(['A-000009', 'B-000000', 'B-000001']);
    expect(ids.indexOf('A-000009')).toBeLessThan(2);
    await order();
    expect(await connection.zcard(keySpace(prefix).order('embed-x'))).toBeLessThanOrEqual(3);
  });

  test('flows of tenants that were served long ago are forgotten', async () => {
    await queue.addBulk(many('A', 2_000));
    for (let i = 0; i < 50; i++) await queue.addBulk([job(`t-${i}`, `tenant-${i}`)]);
    await order();
    expect(await connection.zcard(keySpace(prefix).order('embed-x'))).toBe(52);
    await claim(1_900);
    await queue.addBulk(many('A', 1, {}, 5_000));
    await order();
    expect(await connection.zcard(keySpace(prefix).order('embed-x'))).toBe(2);
  });

  test('places stay exact and in order up to the end of their range', async () => {
    const key = keySpace(prefix).order('embed-x');
    await queue.addBulk(many('A', 2));
    await order();
    await connection.zadd(key, '-500000', '', '-500000', 'b:A');
    await queue.addBulk(many('A', 20, {}, 100));
    await order();
    expect(Number((await connection.zrange(queue.toKey('prioritized'), '-1', '-1', 'WITHSCORES'))[1])).toBe(-2);
    expect(await claim(22)).toEqual([...many('A', 2), ...many('A', 20, {}, 100)].map(({ opts }) => opts.jobId));
  });

  test(
    'what is no job takes its turn like one: broken JSON, a job without a hash, odd numbers, a long text that ' +
      'looks like a field',
    async () => {
      await queue.addBulk([
        job('odd', 'A', { input: { form: 'tokens', rows: -1, tokens: 1e300 } }),
        {
          name: 'embed',
          data: {
            v: 1,
            texts: ['x'.repeat(5_000), '"tenant":"Z"', 'ends with "tenant'],
            tenant: 'B',
            class: 'interactive',
          },
          opts: { jobId: 'long' },
        },
        job('gone', 'A'),
        job('broken', 'A'),
      ]);
      await connection.del(queue.toKey('gone'));
      await connection.hset(queue.toKey('broken'), 'data', '{"v":');
      await order();
      expect(await connection.zscore(keySpace(prefix).order('embed-x'), 'i:B')).not.toBeNull();
      expect(await connection.exists(queue.toKey('gone'))).toBe(0);
      expect((await connection.zrange(queue.toKey('prioritized'), '0', '-1')).toSorted()).toEqual([
        'broken',
        'gone',
        'long',
        'odd',
      ]);
    },
  );

  test('states, removal and listings of BullMQ see ordered jobs as waiting ones', async () => {
    await queue.addBulk(many('A', 3));
    await order();
    expect(await queue.getJobState('A-000000')).toBe('prioritized');
    expect((await queue.getJobs(['prioritized'], 0, -1, true)).map(({ id }) => id)).toEqual(
      many('A', 3).map(({ opts }) => opts.jobId),
    );
    expect(await queue.remove('A-000001')).toBe(1);
    expect(await claim(3)).toEqual(['A-000000', 'A-000002']);
  });
});

import { expect, test } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import type { Job } from 'bullmq';
import type { TakenJob } from '../bullmq/batch-worker.ts';
import { ClaimBursts } from './claim-bursts.ts';
import type { WaitingOrder } from './fair-order.ts';

/**
 * A queue of which every call is written down: `?` waits for a marker, a number asks for so many jobs in one round
 * trip. Like BullMQ's, it leaves a marker with each job that comes or is taken.
 */
class FakeQueue {
  readonly calls: (number | '?')[] = [];
  readonly claiming = new AbortController();
  readonly bursts: ClaimBursts;
  waiting = 0;
  /** Of those that wait, so many have no place in line; each order gives one to 256. */
  unplaced = 0;
  orders = 0;
  private hasMarker = false;
  /** Called in the middle of each round trip. */
  meanwhile: () => void = () => undefined;
  private wake: () => void = () => undefined;
  private made = 0;

  constructor() {
    this.bursts = new ClaimBursts({
      untilMarker: () => {
        this.calls.push('?');
        if (this.hasMarker) return Promise.resolve(void (this.hasMarker = false));
        return new Promise((resolve) => (this.wake = resolve));
      },
      takeNow: (count) => {
        this.calls.push(count);
        const got = Math.min(count, this.waiting);
        this.waiting -= got;
        this.hasMarker ||= got > 0;
        return Array.from({ length: count }, (_, at) => this.answer(at < got ? this.taken() : undefined));
      },
      order: () => {
        this.orders++;
        this.unplaced = Math.max(0, this.unplaced - 256);
        return this.answer<WaitingOrder>({
          placed: this.waiting - this.unplaced,
          unplaced: this.unplaced,
          urgent: 0,
          setAside: 0,
        });
      },
      onTaken: () => undefined,
      onLate: async () => undefined,
      signal: this.claiming.signal,
      log: new RecordingLogger(),
    });
  }

  add(jobs: number): void {
    this.waiting += jobs;
    this.hasMarker = true;
    this.wake();
  }

  private async answer<T>(value: T): Promise<T> {
    await new Promise((resolve) => setImmediate(resolve));
    this.meanwhile();
    return value;
  }

  private taken(): TakenJob {
    return { job: { id: `job-${this.made++}` } as unknown as Job, token: 't' };
  }
}

async function idle(): Promise<FakeQueue> {
  const queue = new FakeQueue();
  const claim = queue.bursts.claim(8);
  await expect.poll(() => queue.calls).toEqual([2, '?']);
  queue.calls.length = 0;
  queue.add(1);
  expect(await claim).toHaveLength(1);
  return queue;
}

test('what was taken does not wait until a long backlog is in order; the next claim does, by many calls', async () => {
  const queue = new FakeQueue();
  queue.add(100_000);
  queue.unplaced = 100_000;
  expect(await queue.bursts.claim(8)).not.toEqual([]);
  expect(queue.orders).toBe(1);
  let roundTrips = 0;
  let before = 1;
  queue.meanwhile = () => {
    if (queue.orders === before) return;
    before = queue.orders;
    roundTrips++;
  };
  expect(await queue.bursts.claim(8)).not.toEqual([]);
  expect(queue.unplaced).toBe(0);
  expect(roundTrips).toBeLessThan(60); // 390 calls
});

test('a lone job is handed over after one round trip, without a look for more', async () => {
  const queue = await idle();
  expect(queue.calls).toEqual([2]);
});

test('what a burst brought is handed over, and what it left comes with the next claim, without a wait', async () => {
  const queue = await idle();
  queue.calls.length = 0;
  queue.add(4);
  expect(await queue.bursts.claim(8)).toHaveLength(2);
  expect(await queue.bursts.claim(8)).toHaveLength(2);
  expect(queue.calls).toEqual(['?', 2, 3]); // one more may have come
});

test('a backlog comes in two round trips, up to the limit', async () => {
  const queue = new FakeQueue();
  queue.add(500);
  expect(await queue.bursts.claim(100)).toHaveLength(100);
  expect(queue.calls).toEqual([2, 98]);
  expect(await queue.bursts.claim(1_000)).toHaveLength(400);
  expect(queue.calls).toEqual([2, 98, 400]);
});

test('while jobs keep coming bursts follow each other, as large as what will have come, without a marker', async () => {
  const queue = new FakeQueue();
  queue.add(1);
  let left = 200;
  queue.meanwhile = () => {
    if (left-- > 0) queue.add(1); // some with every round trip
  };
  let claimed = 0;
  while (claimed < 201) claimed += (await queue.bursts.claim(100)).length;
  const calls = queue.calls.length;
  expect(queue.calls.filter((call) => call === '?').length).toBeLessThan(calls / 4);
});

test('of other workers taking what was known to wait nothing is believed', async () => {
  const queue = new FakeQueue();
  queue.add(50);
  await queue.bursts.claim(2);
  queue.waiting = 1;
  expect(await queue.bursts.claim(8)).toHaveLength(1);
  const claim = queue.bursts.claim(8);
  await expect.poll(() => queue.calls.slice(-2)).toEqual([2, '?']);
  queue.claiming.abort();
  expect(await claim).toEqual([]);
});

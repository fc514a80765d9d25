// The executor that compares, between fakes: jobs of one request share a call, what does not fit is halved or passes by
// in tiles, residents leave in order of use, and whatever is wrong with one job is that job's alone.

import { describe, expect, test } from 'vitest';
import { noFaults } from '../base/fault-points.ts';
import type { FromExecutor, JobOutcome, SimilarityOrder } from '../protocol.ts';
import { Residents } from './ledger.ts';
import {
  decodeRankings,
  openResult,
  type Ranking,
  encodeComparands,
  type Matrix,
  parseSimilarityJob,
  type SimilarityKind,
} from '@shoal/contract';
import { SimilarityExecutor } from './executor.ts';
import { FakeSimilarityDevice, ROW_BYTES } from '../testing/fake-similarity-device.ts';
import { ManualClock } from '../testing/manual-clock.ts';
import { MemoryPayloadStore } from '../testing/memory-payload-store.ts';
import { RecordingLogger } from '../testing/recorders.ts';

const DIMS = 3;

function setup({ budgetRows = 1_000, maxRows = 64, isLastLane = true } = {}) {
  const clock = new ManualClock();
  const store = new MemoryPayloadStore();
  const device = new FakeSimilarityDevice();
  const residents = new Residents(budgetRows * ROW_BYTES);
  const sent: FromExecutor[] = [];
  const executor = new SimilarityExecutor({
    store,
    device,
    residents,
    clock,
    maxRows,
    isLastLane,
    log: new RecordingLogger(),
    resultKey: (jobId) => `out:${jobId}`,
    send: (message) => sent.push(structuredClone(message)),
    faults: noFaults,
  });
  const outcomes = (): JobOutcome[] => sent.flatMap((message) => (message.kind === 'outcomes' ? message.outcomes : []));
  return {
    clock,
    store,
    device,
    residents,
    sent,
    executor,
    outcomes,
    run(...orders: readonly SimilarityOrder[]): void {
      for (const order of orders) store.locks.set(order.jobId, order.token);
      executor.handle({ kind: 'run', jobs: orders, isQueueDrained: true });
    },
    untilOutcomes: (count: number): Promise<void> => clock.advanceUntil(() => outcomes().length >= count),
    kinds: (): Record<string, string> =>
      Object.fromEntries(
        outcomes().map((outcome) => [outcome.jobId, outcome.kind === 'failed' ? outcome.failure.code : outcome.kind]),
      ),
    rankings(jobId: string): Ranking[] {
      const { header, body } = openResult(store.results.get(jobId)!);
      return decodeRankings(header, body);
    },
    ids(jobId: string): number[][] {
      return this.rankings(jobId).map(({ ids }) => [...ids].map(Number));
    },
    scores(jobId: string): number[] {
      const { body } = openResult(store.results.get(jobId)!);
      return [...new Float32Array(Uint8Array.from(body).buffer)];
    },
  };
}

/** Row r of a collection is the r-th power of something between 0 and 1, so that no two are alike. */
function collection(rows: number, seed = 1): Matrix {
  return {
    rows,
    dims: DIMS,
    values: Float32Array.from({ length: rows * DIMS }, (_, i) => Math.sin(seed * 12.9898 + i * 78.233)),
  };
}

function matrix(...vectors: readonly (readonly number[])[]): Matrix {
  return { values: Float32Array.from(vectors.flat()), rows: vectors.length, dims: vectors[0]!.length };
}

function base64({ values }: Matrix): string {
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64');
}

function orderOf(
  jobId: string,
  kind: SimilarityKind,
  data: object,
  more: Partial<SimilarityOrder> = {},
): SimilarityOrder {
  const {
    rows,
    request,
    input,
    fingerprint,
    resultTtlMs,
    class: kindOf,
  } = parseSimilarityJob(jobId, kind, { v: 1, class: 'bulk', ...data });
  return {
    jobId,
    token: `${jobId}-token`,
    queuedMs: 3,
    class: kindOf,
    rows,
    request,
    input,
    fingerprint,
    resultTtlMs,
    remainingMs: undefined,
    ...more,
  };
}

function topK(jobId: string, queries: Matrix, data: object = {}, more: Partial<SimilarityOrder> = {}): SimilarityOrder {
  return orderOf(
    jobId,
    'topk',
    { collection: 'docs@1', queries: { vectors: base64(queries), dims: queries.dims }, k: 3, ...data },
    more,
  );
}

/** What a device with all the memory in the world gives. */
async function unlimited(
  rows: Matrix,
  orders: readonly SimilarityOrder[],
  then: (bench: ReturnType<typeof setup>) => unknown,
): Promise<unknown> {
  const bench = setup({ budgetRows: 1_000_000 });
  bench.device.collections.set('docs@1', rows);
  bench.run(...orders);
  await bench.untilOutcomes(orders.length);
  return then(bench);
}

describe('running together', () => {
  test('queries of jobs that ask the same make one call, and each job gets its own answers', async () => {
    const bench = setup();
    const rows = collection(40);
    bench.device.collections.set('docs@1', rows);
    bench.device.gate.hold();
    bench.run(topK('first', matrix([1, 0, 0])));
    await bench.clock.advanceUntil(() => bench.device.calls.length === 1);
    bench.run(
      topK('a', matrix([0, 1, 0], [0, 0, 1])),
      topK('b', matrix([1, 1, 0])),
      topK('other', matrix([1, 1, 1]), { k: 2 }),
    );
    await bench.clock.advanceUntil(() => bench.sent.filter(({ kind }) => kind === 'filled').length === 2);
    bench.device.gate.release();
    await bench.untilOutcomes(4);
    expect(bench.device.calls.map(({ queries }) => queries)).toEqual([1, 3, 1]);
    const alone = await unlimited(
      rows,
      [topK('a', matrix([0, 1, 0], [0, 0, 1])), topK('b', matrix([1, 1, 0]))],
      (one) => [one.ids('a'), one.ids('b')],
    );
    expect([bench.ids('a'), bench.ids('b')]).toEqual(alone);
  });

  test('no run has more queries than it may, but a single job always runs', async () => {
    const bench = setup({ maxRows: 3 });
    bench.device.collections.set('docs@1', collection(10));
    bench.device.gate.hold();
    bench.run(topK('z', matrix([1, 0, 0])));
    await bench.clock.advanceUntil(() => bench.device.calls.length === 1);
    bench.run(
      topK('a', matrix([1, 0, 0], [0, 1, 0])),
      topK('b', matrix([0, 0, 1], [1, 1, 1])),
      topK('c', matrix([1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1])),
    );
    await bench.clock.advanceUntil(() => bench.sent.filter(({ kind }) => kind === 'filled').length === 2);
    bench.device.gate.release();
    await bench.untilOutcomes(4);
    expect(bench.device.calls.map(({ queries }) => queries)).toEqual([1, 2, 2, 4]);
  });

  test('an interactive job goes before bulk jobs that came first', async () => {
    const bench = setup({ maxRows: 1 });
    bench.device.collections.set('docs@1', collection(10));
    bench.device.gate.hold();
    bench.run(topK('first', matrix([1, 0, 0])));
    await bench.clock.advanceUntil(() => bench.device.calls.length === 1);
    bench.run(topK('bulk', matrix([1, 0, 0])), topK('urgent', matrix([0, 1, 0]), { class: 'interactive' }));
    await bench.clock.advanceUntil(() => bench.sent.filter(({ kind }) => kind === 'filled').length === 2);
    bench.device.gate.release();
    await bench.untilOutcomes(3);
    expect(bench.outcomes().map(({ jobId }) => jobId)).toEqual(['first', 'urgent', 'bulk']);
  });
});

function answersOf(bench: ReturnType<typeof setup>) {
  return [
    bench.rankings('top'),
    bench.rankings('near'),
    bench.scores('matrix'),
    bench.rankings('again'),
    bench.scores('pair'),
  ];
}

describe('memory', () => {
  const rows = collection(100);
  const orders = [
    topK('top', matrix([1, 0, 0], [0.2, 1, 0])),
    topK('near', matrix([0.3, 0.3, 0.1]), { metric: 'l2', k: 200 }),
    orderOf('matrix', 'cosine', {
      collection: 'docs@1',
      queries: { vectors: base64(matrix([1, 2, 3], [3, 2, 1])), dims: DIMS },
    }),
    orderOf('again', 'rescore', {
      collection: 'docs@1',
      queries: { vectors: base64(matrix([1, 2, 3], [0, 0, 1])), dims: DIMS },
      k: 2,
      candidates: [[99, 0, 50, 0], [7]],
    }),
    orderOf('pair', 'cosine', {
      against: { vectors: base64(collection(30)), dims: DIMS },
      queries: { vectors: base64(matrix([1, 2, 3])), dims: DIMS },
    }),
  ];

  test.each(['mostCallRows', 'mostLoadRows'] as const)(
    'memory runs out at every size of tile (%s), and the answers stay the same',
    async (limit) => {
      const expected = await unlimited(rows, orders, answersOf);
      for (let most = 1; most <= 100; most++) {
        const bench = setup();
        bench.device.collections.set('docs@1', rows);
        bench.device[limit] = most;
        bench.run(...orders);
        await bench.untilOutcomes(orders.length);
        expect(answersOf(bench)).toEqual(expected);
      }
    },
  );

  test('a collection of three times the budget passes by in tiles that stay within it', async () => {
    const expected = await unlimited(rows, orders, answersOf);
    const bench = setup({ budgetRows: 33 });
    bench.device.collections.set('docs@1', rows);
    bench.run(...orders);
    await bench.untilOutcomes(orders.length);
    expect(answersOf(bench)).toEqual(expected);
    expect(bench.device.mostHeldBytes).toBeLessThanOrEqual(33 * ROW_BYTES);
    expect(bench.device.heldBytes).toBe(0);
  });

  test('residents of three times the budget take turns, the least recently used leaves, the budget holds', async () => {
    const bench = setup({ budgetRows: 100 });
    for (let i = 0; i < 6; i++) bench.device.collections.set(`docs@${i + 1}`, collection(50, i));
    let runs = 0;
    const ask = async (version: number): Promise<void> => {
      bench.run(topK(`job-${++runs}`, matrix([1, 0, 0]), { collection: `docs@${version}` }));
      await bench.untilOutcomes(runs);
    };
    for (let round = 0; round < 3; round++) for (let version = 1; version <= 6; version++) await ask(version);
    expect(bench.device.loads).toHaveLength(18);
    await ask(5); // 5 and 6 are held
    await ask(1); // 6 was used less recently than 5
    await ask(5);
    expect(bench.device.loads).toHaveLength(19);
    expect(bench.device.mostHeldBytes).toBeLessThanOrEqual(100 * ROW_BYTES);
    expect(new Set(Object.values(bench.kinds()))).toEqual(new Set(['committed']));
  });

  test('files that nobody uses are closed when others are opened, and come back when they are asked for', async () => {
    const bench = setup();
    for (let i = 1; i <= 70; i++) bench.device.collections.set(`docs@${i}`, collection(2, i));
    for (let round = 0; round < 2; round++)
      bench.run(
        ...Array.from({ length: 70 }, (_, i) =>
          topK(`job-${round}-${i}`, matrix([1, 0, 0]), { collection: `docs@${i + 1}` }),
        ),
      );
    await bench.untilOutcomes(140);
    for (let i = 0; i < 70; i++) {
      bench.run(topK(`one-${i}`, matrix([1, 0, 0]), { collection: `docs@${i + 1}` }));
      await bench.untilOutcomes(141 + i);
    }
    expect(new Set(Object.values(bench.kinds()))).toEqual(new Set(['committed']));
    expect(bench.device.openSources).toBe(64);
  });

  test('a graph that was replaced is read anew', async () => {
    const bench = setup();
    bench.device.graphs.set('links', [[1], [], []]);
    const ask = (jobId: string): void =>
      bench.run(orderOf(jobId, 'spread', { graph: 'links', seeds: [[0]], k: 3, steps: 1 }));
    ask('before');
    await bench.untilOutcomes(1);
    bench.device.graphs.set('links', [[2], [], []]);
    bench.device.replaced.add('links');
    ask('after');
    await bench.untilOutcomes(2);
    expect([bench.ids('before'), bench.ids('after')]).toEqual([[[0, 1]], [[0, 2]]]);
    expect([bench.device.openSources, bench.residents.bytes]).toEqual([1, 3 * ROW_BYTES]);
  });

  test('what waits for a collection or a graph that is replaced meanwhile keeps the old one, and runs by itself', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', collection(20, 1)).set('other@1', collection(20, 3));
    bench.device.graphs.set('links', [[1], [], []]);
    const askBoth = (when: string): void =>
      bench.run(
        topK(`rows ${when}`, matrix([1, 0, 0])),
        orderOf(`nodes ${when}`, 'spread', { graph: 'links', seeds: [[0]], k: 3, steps: 1 }),
      );
    const filled = (count: number): Promise<void> =>
      bench.clock.advanceUntil(() => bench.sent.filter(({ kind }) => kind === 'filled').length === count);
    bench.device.gate.hold();
    bench.run(topK('blocker', matrix([1, 0, 0]), { collection: 'other@1' }));
    await bench.clock.advanceUntil(() => bench.device.gate.waiters === 1);
    askBoth('before');
    await filled(2);
    bench.device.collections.set('docs@1', collection(20, 2));
    bench.device.models.set('docs@1', 'minilm@1');
    bench.device.graphs.set('links', [[2], [], []]);
    bench.device.replaced.add('docs@1').add('links');
    askBoth('after');
    await filled(3);
    bench.device.gate.release();
    await bench.untilOutcomes(5);
    expect([bench.ids('nodes before'), bench.ids('nodes after')]).toEqual([[[0, 1]], [[0, 2]]]);
    for (const [when, seed] of [
      ['before', 1],
      ['after', 2],
    ] as const)
      await unlimited(collection(20, seed), [topK('alone', matrix([1, 0, 0]))], (alone) =>
        expect(bench.ids(`rows ${when}`)).toEqual(alone.ids('alone')),
      );
    const returned = bench.outcomes().map((one) => [one.jobId, 'value' in one ? one.value : undefined]);
    expect(Object.fromEntries(returned)).toMatchObject({ 'rows after': { collection: 'docs@1', model: 'minilm@1' } });
    expect(Object.fromEntries(returned)['rows before']).not.toHaveProperty('model');
  });

  test('what does not fit even as one row fails, and says how often it was halved before', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', rows);
    bench.device.mostCallRows = 0;
    bench.run(topK('a', matrix([1, 0, 0])));
    await bench.untilOutcomes(1);
    expect(bench.kinds()).toEqual({ a: 'OUT_OF_VRAM' });
    expect(bench.device.calls.map(({ rows: count }) => count)).toEqual([100, 50, 25, 12, 6, 3, 1]);
  });

  test(
    'where a CPU lane comes after this device, what does not fit alone goes there with its reason, and its ' +
      'neighbours are answered',
    async () => {
      const bench = setup({ isLastLane: false });
      bench.device.collections.set('docs@1', rows);
      bench.device.graphs.set(
        'large',
        Array.from({ length: 1_001 }, () => []),
      );
      bench.device.mostCallRows = 0;
      bench.run(
        topK('a', matrix([1, 0, 0])),
        topK('b', matrix([0, 1, 0])),
        topK('from the CPU lane', matrix([1, 0, 0]), {}, { lane: 'cpu' }),
        orderOf('graph', 'spread', { graph: 'large', seeds: [[0]], k: 2 }),
      );
      await bench.untilOutcomes(4);
      expect(bench.kinds()).toEqual({
        a: 'hand-over',
        b: 'hand-over',
        'from the CPU lane': 'OUT_OF_VRAM',
        graph: 'hand-over',
      });
      const [first] = bench.outcomes().filter(({ jobId }) => jobId === 'a');
      expect(first).toMatchObject({
        kind: 'hand-over',
        handOver: {
          reason: { code: 'OUT_OF_VRAM', message: expect.stringContaining('not even one row') },
          peakBytes: undefined,
        },
      });
      expect(bench.residents.bytes).toBeLessThanOrEqual(bench.residents.budgetBytes);
    },
  );

  test('a result says what computed it, and why another device did not', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', rows);
    const uses = [{ device: 'cuda:0' }, { device: 'cpu:fake', fellBack: 'DEVICE_LOST' as const }];
    Object.assign(bench.device, { takeUse: () => uses.shift() });
    for (const jobId of ['there', 'here']) {
      bench.run(topK(jobId, matrix([1, 0, 0])));
      await bench.untilOutcomes(jobId === 'there' ? 1 : 2);
    }
    const values = bench.outcomes().map((outcome) => (outcome.kind === 'committed' ? outcome.value : undefined));
    expect(values).toMatchObject([{ device: 'cuda:0' }, { device: 'cpu:fake', fellBack: 'DEVICE_LOST' }]);
    expect(values[0]).not.toHaveProperty('fellBack');
  });

  test('tiles grow again after many that went well', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', rows);
    bench.device.mostCallRows = 40;
    bench.run(topK('a', matrix([1, 0, 0])));
    await bench.untilOutcomes(1);
    bench.device.mostCallRows = Number.POSITIVE_INFINITY;
    bench.device.calls.length = 0;
    for (let job = 0; job < 400; job++) {
      bench.run(topK(`job-${job}`, matrix([1, 0, 0])));
      await bench.untilOutcomes(job + 2);
    }
    expect(bench.device.calls[0]!.rows).toBe(25);
    expect(bench.device.calls.at(-1)!.rows).toBe(100);
  });

  test('sets of seeds are halved as well, and a graph above the budget is refused with both sizes', async () => {
    const bench = setup({ budgetRows: 10 });
    bench.device.graphs.set('links', [[1], [2], [0, 3], []]);
    bench.device.graphs.set(
      'large',
      Array.from({ length: 11 }, () => []),
    );
    bench.device.mostLanes = 1;
    bench.run(
      orderOf('a', 'spread', { graph: 'links', seeds: [[0], [2], [3, [1, 2]]], k: 2, steps: 2, decay: 0.5 }),
      orderOf('b', 'spread', { graph: 'large', seeds: [[0]], k: 2 }),
    );
    await bench.untilOutcomes(2);
    expect(bench.kinds()).toEqual({ a: 'committed', b: 'OUT_OF_VRAM' });
    expect(bench.ids('a')).toEqual([
      [0, 1],
      [2, 0],
      [1, 3],
    ]);
  });
});

test('sets of seeds grow again after many that went well', async () => {
  const bench = setup();
  bench.device.graphs.set('links', [[1], [2], [0]]);
  bench.device.mostLanes = 1;
  const seeds = Array.from({ length: 32 }, () => [0]);
  bench.run(orderOf('a', 'spread', { graph: 'links', seeds, k: 1 }));
  await bench.untilOutcomes(1);
  bench.device.mostLanes = Number.POSITIVE_INFINITY;
  for (let job = 0; job < 80; job++) {
    bench.run(orderOf(`job-${job}`, 'spread', { graph: 'links', seeds, k: 1 }));
    await bench.untilOutcomes(job + 2);
  }
  expect(bench.device.calls.at(-1)!.queries).toBe(32);
});

test('a source that was replaced while many came for it is opened once, and nothing stays open', async () => {
  const bench = setup();
  bench.device.collections.set('docs@1', collection(4));
  for (let round = 0; round < 3; round++) {
    bench.run(...Array.from({ length: 20 }, (_, i) => topK(`job-${round}-${i}`, matrix([1, 0, 0]))));
    await bench.untilOutcomes(20 * (round + 1));
    bench.device.replaced.add('docs@1');
  }
  expect([bench.device.openSources, bench.device.heldBytes]).toEqual([1, 4 * ROW_BYTES]);
  await bench.executor.stop();
  expect([bench.device.openSources, bench.device.heldBytes]).toEqual([0, 0]);
});

test(
  'a run of many tiles is not taken for one that hangs: what is told is how long the device has been busy with ' +
    'one',
  async () => {
    const bench = setup({ budgetRows: 20 });
    bench.device.collections.set('docs@1', collection(100));
    bench.device.gate.hold();
    bench.run(topK('a', matrix([1, 0, 0])));
    for (let tile = 1; tile <= 10; tile++) {
      await bench.clock.advanceUntil(() => bench.device.gate.waiters === 1);
      await bench.clock.advance(10_000);
      bench.executor.handle({ kind: 'ping', sequence: tile });
      bench.device.gate.releaseOne();
    }
    await bench.untilOutcomes(1);
    bench.executor.handle({ kind: 'ping', sequence: 11 });
    const told = bench.sent.flatMap((message) => (message.kind === 'pong' ? [message.runningMs] : []));
    expect(told).toEqual([...Array.from({ length: 10 }, () => 10_000), 0]);
  },
);

test('nor is a spread of many parts, of which each is short', async () => {
  const bench = setup();
  bench.device.openGraph = async (name) => ({
    name,
    nodes: 3,
    bytes: 0,
    isCurrent: async () => true,
    close: async () => undefined,
    load: async () => ({
      fits: true,
      value: {
        bytes: 0,
        free: () => undefined,
        spread: async (seeds, { onPart }) => {
          for (let part = 1; part <= 10; part++) {
            await bench.device.gate.pass();
            if (part < 10) onPart();
          }
          return { fits: true, value: seeds.map(() => ({ ids: BigUint64Array.of(0n), scores: Float32Array.of(1) })) };
        },
      },
    }),
  });
  bench.device.gate.hold();
  bench.run(orderOf('a', 'spread', { graph: 'large', seeds: [[0]], k: 1, steps: 64 }));
  for (let part = 1; part <= 10; part++) {
    await bench.clock.advanceUntil(() => bench.device.gate.waiters === 1);
    await bench.clock.advance(10_000);
    bench.executor.handle({ kind: 'ping', sequence: part });
    bench.device.gate.releaseOne();
  }
  await bench.untilOutcomes(1);
  expect(bench.kinds()).toEqual({ a: 'committed' });
  expect(bench.sent.flatMap((message) => (message.kind === 'pong' ? [message.runningMs] : []))).toEqual(
    Array.from({ length: 10 }, () => 10_000),
  );
});

test('scores of jobs that ran together are each job’s own, whatever lies beside them', async () => {
  const rows: Matrix = { rows: 8, dims: 2, values: Float32Array.from({ length: 16 }, (_, i) => Math.sin(i + 1)) };
  const cosine = (jobId: string, queries: Matrix, kindOf: 'bulk' | 'interactive'): SimilarityOrder =>
    orderOf(jobId, 'cosine', { collection: 'labels@1', class: kindOf, queries: { vectors: base64(queries), dims: 2 } });
  const alone = setup();
  alone.device.collections.set('labels@1', rows);
  alone.run(cosine('one', matrix([1, 0]), 'interactive'));
  await alone.untilOutcomes(1);
  const bench = setup();
  bench.device.collections.set('labels@1', rows);
  const commit = bench.store.commit.bind(bench.store);
  const firstIsWritten = Promise.withResolvers<void>();
  bench.store.commit = async (requests) => {
    const answers = await commit(requests);
    // the interactive ones wait behind it, others do not
    if (requests[0]!.jobId === 'first') await firstIsWritten.promise;
    return answers;
  };
  bench.run(cosine('first', matrix([1, 2]), 'interactive'));
  await bench.clock.advance(5);
  bench.device.gate.hold();
  bench.run(
    orderOf('blocker', 'topk', { collection: 'labels@1', k: 1, queries: { vectors: base64(matrix([1, 2])), dims: 2 } }),
  );
  await bench.clock.advance(5);
  bench.run(cosine('one', matrix([1, 0]), 'interactive'), cosine('two', matrix([0, 1], [1, 1]), 'bulk'));
  await bench.clock.advance(5);
  bench.device.gate.release();
  await bench.clock.advance(5);
  firstIsWritten.resolve();
  await bench.untilOutcomes(4);
  expect(bench.scores('one')).toEqual(alone.scores('one'));
});

describe('what is wrong with one job', () => {
  test('fails it by its code, and its neighbours get their answers', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', collection(20));
    bench.device.collections.set('empty@1', { values: new Float32Array(), rows: 0, dims: DIMS });
    bench.device.graphs.set('links', [[1], []]);
    const keyed = { collection: 'docs@1', k: 1, queries: { key: { rows: 1, dims: DIMS } } };
    const input = (...values: readonly number[]): Buffer => encodeComparands({ queries: matrix(values) });
    bench.store.inputs
      .set('nan', input(1, Number.NaN, 0))
      .set('short', input(1, 0))
      .set('torn', input(1, 0, 0).subarray(0, 30))
      .set('keyed', input(1, 0, 0));
    bench.run(
      topK('good', matrix([1, 0, 0])),
      topK('dims', matrix([1, 0])),
      topK('unknown', matrix([1, 0, 0]), { collection: 'nobody@1' }),
      topK('empty', matrix([1, 0, 0]), { collection: 'empty@1' }),
      orderOf('strangers', 'rescore', {
        collection: 'docs@1',
        queries: { vectors: base64(matrix([1, 0, 0])), dims: DIMS },
        k: 1,
        candidates: [[3, 20]],
      }),
      orderOf('friends', 'rescore', {
        collection: 'docs@1',
        queries: { vectors: base64(matrix([1, 0, 0])), dims: DIMS },
        k: 1,
        candidates: [[3]],
      }),
      orderOf('node', 'spread', { graph: 'links', seeds: [[0], [2]], k: 1 }),
      orderOf('nan', 'topk', keyed),
      orderOf('short', 'topk', keyed),
      orderOf('torn', 'topk', keyed),
      orderOf('lost', 'topk', keyed),
      orderOf('keyed', 'topk', keyed),
      topK('stranger', matrix([1, 0, 0]), { fingerprint: '0123456789abcdef' }),
    );
    await bench.untilOutcomes(13);
    expect(bench.kinds()).toEqual({
      good: 'committed',
      dims: 'DIMENSIONS_MISMATCH',
      unknown: 'COLLECTION_UNKNOWN',
      empty: 'COLLECTION_EMPTY',
      strangers: 'SEARCH_INVALID',
      friends: 'committed',
      node: 'GRAPH_INVALID',
      nan: 'VECTOR_INVALID',
      short: 'INPUT_CORRUPT',
      torn: 'INPUT_CORRUPT',
      lost: 'INPUT_LOST',
      keyed: 'committed',
      stranger: 'FINGERPRINT_MISMATCH',
    });
    expect(bench.ids('keyed')).toEqual(bench.ids('good').map((ids) => ids.slice(0, 1)));
    await bench.clock.advanceUntilSettled(bench.executor.stop());
    expect([bench.device.openSources, bench.device.heldBytes]).toEqual([0, 0]);
  });

  test('a call that fails runs again job by job, and only the culprit fails', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', collection(20));
    bench.device.poison = 13;
    bench.run(topK('a', matrix([1, 0, 0])), topK('bad', matrix([13, 0, 0])), topK('c', matrix([0, 0, 1])));
    await bench.untilOutcomes(3);
    expect(bench.kinds()).toEqual({ a: 'committed', bad: 'SEARCH_INVALID', c: 'committed' });
  });

  test('a version that vanishes or is cut while jobs have it answers those, and no job after them', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', collection(20));
    bench.run(topK('before', matrix([1, 0, 0])));
    await bench.untilOutcomes(1);
    bench.device.broken.set('docs@1', 'COLLECTION_CORRUPT');
    bench.run(topK('cut', matrix([1, 0, 0])));
    await bench.untilOutcomes(2);
    bench.device.broken.set('docs@1', 'COLLECTION_GONE');
    bench.device.collections.delete('docs@1');
    bench.run(topK('gone', matrix([1, 0, 0])));
    await bench.untilOutcomes(3);
    expect(bench.kinds()).toEqual({ before: 'committed', cut: 'COLLECTION_CORRUPT', gone: 'COLLECTION_UNKNOWN' });
    expect([bench.device.openSources, bench.device.heldBytes]).toEqual([0, 0]);
  });

  test('a matrix that is larger than a result may be is refused before anything runs', async () => {
    const bench = setup();
    bench.device.collections.set('huge@1', { values: new Float32Array(DIMS), rows: 20_000_000, dims: DIMS });
    bench.run(
      orderOf('a', 'cosine', { collection: 'huge@1', queries: { vectors: base64(matrix([1, 0, 0])), dims: DIMS } }),
    );
    await bench.untilOutcomes(1);
    expect(bench.kinds()).toEqual({ a: 'RESULT_TOO_LARGE' });
    expect(bench.device.calls).toEqual([]);
  });
});

describe('leases, deadlines and endings', () => {
  test('a dropped job is not written, and a run that nobody waits for ends early', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', collection(20));
    bench.device.gate.hold();
    bench.run(topK('running', matrix([1, 0, 0])));
    await bench.clock.advanceUntil(() => bench.device.calls.length === 1);
    bench.run(topK('waiting', matrix([0, 1, 0])), topK('last', matrix([0, 0, 1])));
    await bench.clock.advanceUntil(() => bench.sent.filter(({ kind }) => kind === 'filled').length === 2);
    bench.executor.handle({ kind: 'drop', jobIds: ['running', 'waiting'] });
    bench.device.gate.release();
    await bench.untilOutcomes(1);
    expect(bench.kinds()).toEqual({ last: 'committed' });
    expect([...bench.store.results.keys()]).toEqual(['last']);
  });

  test('a job whose deadline passes while it waits fails; one that runs gets its answer', async () => {
    const bench = setup({ maxRows: 1 });
    bench.device.collections.set('docs@1', collection(20));
    bench.device.gate.hold();
    bench.run(topK('running', matrix([1, 0, 0]), {}, { remainingMs: 50 }));
    await bench.clock.advanceUntil(() => bench.device.calls.length === 1);
    bench.run(topK('late', matrix([0, 1, 0]), {}, { remainingMs: 50 }));
    await bench.clock.advanceUntil(() => bench.sent.filter(({ kind }) => kind === 'filled').length === 2);
    await bench.clock.advance(60);
    bench.device.gate.release();
    await bench.untilOutcomes(2);
    expect(bench.kinds()).toEqual({ running: 'committed', late: 'DEADLINE_PASSED' });
  });

  test('a stop gives back what has not begun, finishes what runs and leaves nothing held', async () => {
    const bench = setup({ maxRows: 1 });
    bench.device.collections.set('docs@1', collection(20));
    bench.device.gate.hold();
    bench.run(topK('running', matrix([1, 0, 0])));
    await bench.clock.advanceUntil(() => bench.device.calls.length === 1);
    bench.run(topK('waiting', matrix([0, 1, 0])));
    await bench.clock.advanceUntil(() => bench.sent.filter(({ kind }) => kind === 'filled').length === 2);
    const stopped = bench.executor.stop();
    bench.run(topK('crossing', matrix([0, 1, 0])));
    bench.device.gate.release();
    await bench.clock.advanceUntilSettled(stopped);
    expect(bench.kinds()).toEqual({ crossing: 'unstarted', waiting: 'unstarted', running: 'committed' });
    expect([bench.device.openSources, bench.device.heldBytes, bench.residents.bytes, bench.clock.pending]).toEqual([
      0, 0, 0, 0,
    ]);
  });

  test('a result that is there already is not computed again, and one of another request is a conflict', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', collection(20));
    bench.device.models.set('docs@1', 'minilm@1');
    bench.run(topK('a', matrix([1, 0, 0])));
    await bench.untilOutcomes(1);
    bench.run(topK('a', matrix([1, 0, 0]), {}, { token: 'second' }), topK('b', matrix([1, 0, 0])));
    await bench.untilOutcomes(3);
    bench.run(topK('a', matrix([0, 1, 0]), {}, { token: 'third' }));
    await bench.untilOutcomes(4);
    expect(bench.outcomes().map(({ kind, jobId }) => `${jobId} ${kind}`)).toEqual([
      'a committed',
      'a already',
      'b committed',
      'a failed',
    ]);
    expect(bench.outcomes()[1]).toMatchObject({ value: { collection: 'docs@1', model: 'minilm@1' } });
    expect(bench.kinds()['a']).toBe('JOB_ID_CONFLICT');
  });

  test('the newest version is chosen when the job comes, its result says which, and no other version runs with it', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', collection(20, 1)).set('other@1', collection(20, 1));
    bench.device.models.set('docs@2', 'minilm@1');
    bench.device.gate.hold();
    bench.run(topK('blocker', matrix([1, 0, 0]), { collection: 'other@1' }));
    await bench.clock.advanceUntil(() => bench.device.gate.waiters === 1);
    bench.run(topK('before', matrix([1, 0, 0]), { collection: 'docs' }));
    await bench.clock.advanceUntil(() => bench.sent.filter(({ kind }) => kind === 'filled').length === 2);
    bench.device.collections.set('docs@2', collection(20, 2));
    bench.run(topK('after', matrix([1, 0, 0]), { collection: 'docs' }));
    await bench.clock.advanceUntil(() => bench.sent.filter(({ kind }) => kind === 'filled').length === 3);
    bench.device.gate.release();
    await bench.untilOutcomes(3);
    const said = bench.outcomes().map((outcome) => [outcome.jobId, 'value' in outcome ? outcome.value : undefined]);
    expect(Object.fromEntries(said)).toMatchObject({
      before: { collection: 'docs@1' },
      after: { collection: 'docs@2', model: 'minilm@1' },
    });
    expect(Object.fromEntries(said)['before']).not.toHaveProperty('model');
    expect(bench.ids('before')).not.toEqual(bench.ids('after'));
  });

  test('whoever is at the device is told before and after each run', async () => {
    const bench = setup();
    bench.device.collections.set('docs@1', collection(20));
    bench.device.mostCallRows = 10;
    bench.run(topK('a', matrix([1, 0, 0])));
    await bench.untilOutcomes(1);
    expect(bench.sent.flatMap((message) => ('batch' in message ? [`${message.kind} ${message.batch}`] : []))).toEqual([
      'began 1',
      'split 1',
      'began 2',
      'ran 2',
    ]);
  });
});

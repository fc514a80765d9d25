// What every InferenceBackend keeps, the simulated device and ONNX Runtime alike: how slots are lent, the order of
// runs, and that a row's vector is its own, whatever runs beside it.

import { afterEach, describe, expect, test } from 'vitest';
import { invariant } from '@shoal/contract';
import { incrementBytes } from '../budget/memory-model.ts';
import type { InferenceBackend, RunOptions, RunResult, Slot } from '../ports/device.ts';
import type { MemoryPlan, MemoryPlanOf, MemoryProbe } from '../ports/memory-plan.ts';

export interface BackendUnderTest {
  readonly backend: InferenceBackend;
  /** Ids below this may be sent. */
  readonly vocabularySize: number;
  /** Longest row, a multiple of 8. */
  readonly maxTokens: number;
  /** Least cosine between two runs of one row; lower than 0.999999 only where the device computes in less than fp32. */
  readonly minCosine?: number;
  /** Whether an urgent run overtakes queued ones. Default true. */
  readonly supportsUrgent?: boolean;
  /** Waits for what the device does. A simulated one needs its clock turned; by default a plain await. */
  readonly wait?: <T>(promise: Promise<T>) => Promise<T>;
}

/** Most slots a test borrows before it calls the lending unbounded. */
const MANY_SLOTS = 64;

/** `make` is called once per test; the suite stops what it made. */
export function describeInferenceBackend(name: string, make: () => Promise<BackendUnderTest>): void {
  describe(`${name} is an InferenceBackend`, () => {
    let open: Bench | undefined;
    const setup = async (): Promise<Bench> => (open = new Bench(await make()));
    afterEach(async () => {
      await open?.stop();
      open = undefined;
    });

    test('lends a few slots with buffers as large as announced, each to one borrower, and then again', async () => {
      const { backend } = await setup();
      const slots = lendAll(backend);
      expect(slots.length).toBeGreaterThanOrEqual(2);
      expect(slots.length).toBeLessThan(MANY_SLOTS);
      expect(new Set(slots.map((slot) => slot.index)).size).toBe(slots.length);
      for (const slot of slots) {
        expect(slot.ids.length).toBeGreaterThanOrEqual(backend.slotTokens);
        expect(slot.lengths.length).toBeGreaterThanOrEqual(backend.slotRows);
        expect(slot.embeddings.length).toBeGreaterThanOrEqual(backend.slotRows * backend.dims);
      }
      const returned = slots.at(-1)!;
      backend.giveBack(returned);
      expect(backend.lend()?.index).toBe(returned.index);
      expect(backend.lend()).toBeUndefined();
      for (const slot of slots) backend.giveBack(slot);
    });

    test('keeps a slot lent while its run is queued, running and read', async () => {
      const bench = await setup();
      const slots = lendAll(bench.backend);
      const runs = slots.map((slot, i) => bench.run(slot, [bench.row(4, i)]));
      expect(bench.backend.lend()).toBeUndefined();
      for (const run of runs) await bench.wait(run);
      expect(bench.backend.lend()).toBeUndefined();
      for (const slot of slots) bench.backend.giveBack(slot);
    });

    test('runs in the order of the calls, each into its own slot', async () => {
      const bench = await setup();
      const slots = lendAll(bench.backend);
      const order: number[] = [];
      const rows = slots.map((_, i) => bench.row(slots.length - i + 2, i));
      const runs = slots.map((slot, i) => bench.run(slot, [rows[i]!]).finally(() => order.push(i)));
      for (const run of runs) expect(await bench.wait(run)).toMatchObject({ ok: true });
      expect(order).toEqual(slots.map((_, i) => i));
      const together = slots.map((slot) => slot.embeddings.slice(0, bench.backend.dims));
      for (const slot of slots) bench.backend.giveBack(slot);
      for (const [i, row] of rows.entries())
        expect(cosine(together[i]!, await bench.embedAlone(row))).toBeGreaterThanOrEqual(bench.minCosine);
    });

    test(
      'runs urgent rows before those that are queued and have not begun, and urgent ones in the order of the ' +
        'calls',
      async (context) => {
        const bench = await setup();
        const slots = lendAll(bench.backend);
        if (!bench.supportsUrgent) context.skip('this backend knows no urgent runs');
        const order: number[] = [];
        const rows = slots.map((_, i) => bench.row(i + 3, i));
        // The first takes as long as it can, so that the others meet in the queue; whether it has begun by then is its
        // own affair.
        const long = Array.from({ length: bench.mostRows() }, () => bench.row(bench.maxTokens, 0));
        const isUrgent = (i: number): boolean => i > 0 && i >= slots.length - 2;
        const runs = slots.map((slot, i) =>
          bench
            .run(slot, i === 0 ? [rows[0]!, ...long.slice(1)] : [rows[i]!], undefined, { isUrgent: isUrgent(i) })
            .finally(() => order.push(i)),
        );
        for (const run of runs) expect(await bench.wait(run)).toMatchObject({ ok: true });
        const queued = slots.map((_, i) => i).slice(1);
        expect(order.filter((i) => i !== 0)).toEqual([
          ...queued.filter(isUrgent),
          ...queued.filter((i) => !isUrgent(i)),
        ]);
        for (const [i, slot] of slots.entries()) {
          const vector = slot.embeddings.slice(0, bench.backend.dims);
          bench.backend.giveBack(slot);
          expect(cosine(vector, await bench.embedAlone(rows[i]!))).toBeGreaterThanOrEqual(bench.minCosine);
        }
      },
    );

    test('tells what its memory holds in whole bytes, or that nobody knows', async () => {
      const bench = await setup();
      await bench.embedAlone(bench.row(5, 1));
      const reading = await bench.backend.memory();
      for (const bytes of [reading?.liveBytes, reading?.footprintBytes])
        expect(bytes === undefined || (Number.isSafeInteger(bytes) && bytes > 0)).toBe(true);
      expect(reading === undefined || reading.liveBytes !== undefined || reading.footprintBytes !== undefined).toBe(
        true,
      );
    });

    test('says how its memory is known, the same before and after a run, and what it says holds', async () => {
      const bench = await setup();
      const plan = bench.backend.memoryPlan();
      await PROOFS[plan.kind](bench, plan as never);
      expect(bench.backend.memoryPlan().kind).toBe(plan.kind);
    });

    test('runs rows exactly where its precision is narrower than fp32, and gives their vectors', async (context) => {
      const bench = await setup();
      const { backend } = bench;
      expect(backend.precision !== 'fp32' || backend.runExact === undefined).toBe(true);
      if (backend.runExact === undefined)
        context.skip(`this backend computes in ${backend.precision} and has nothing more exact`);
      const rows = [bench.row(7, 1), bench.row(5, 2)];
      const exact = await bench.embed(rows, 8, (slot, shape) => backend.runExact!(slot, shape));
      for (const [i, row] of rows.entries()) {
        expect(normOf(exact[i]!)).toBeCloseTo(1, 2);
        expect(cosine(exact[i]!, await bench.embedAlone(row))).toBeGreaterThanOrEqual(Math.min(bench.minCosine, 0.999));
      }
    });

    test('gives every row a vector of length 1, at odd row counts and at every width of a multiple of 8', async () => {
      const bench = await setup();
      for (let width = 8; width <= bench.maxTokens; width += 8) {
        for (const count of [1, 3, 7]) {
          if (!bench.fits(count, width)) continue;
          const rows = Array.from({ length: count }, (_, i) => bench.row(Math.max(1, width - i), i));
          for (const vector of await bench.embed(rows, width)) expect(normOf(vector)).toBeCloseTo(1, 2);
        }
      }
    });

    test('gives a row the same vector alone, beside other rows, at any place and at any width', async () => {
      const bench = await setup();
      const row = bench.row(5, 1);
      const alone = await bench.embedAlone(row);
      const [longest, shortest] = [bench.row(bench.maxTokens, 2), bench.row(1, 3)];
      const neighbours = [longest, shortest, bench.row(9, 4), bench.row(16, 5)].slice(0, bench.backend.slotRows - 1);
      for (let place = 0; place <= neighbours.length; place++) {
        const rows = neighbours.toSpliced(place, 0, row);
        if (!bench.fits(rows.length, bench.maxTokens)) continue;
        expect(cosine((await bench.embed(rows, bench.maxTokens))[place]!, alone)).toBeGreaterThanOrEqual(
          bench.minCosine,
        );
      }
      for (let width = 16; width <= bench.maxTokens; width += 8)
        expect(cosine((await bench.embed([row], width))[0]!, alone)).toBeGreaterThanOrEqual(bench.minCosine);
    });

    test('gives different rows different vectors', async () => {
      const bench = await setup();
      const [a, b] = await bench.embed([bench.row(6, 1), bench.row(6, 2)], 8);
      expect(cosine(a!, b!)).toBeLessThan(0.9999);
    });

    test('does not read what an earlier run left in the slot', async () => {
      const bench = await setup();
      const row = bench.row(5, 1);
      const fresh = await bench.embedAlone(row);
      for (const slot of lendAll(bench.backend)) {
        slot.ids.fill(bench.vocabularySize - 1);
        slot.lengths.fill(8);
        slot.embeddings.fill(Number.NaN);
        bench.backend.giveBack(slot);
      }
      expect(cosine(await bench.embedAlone(row), fresh)).toBeGreaterThanOrEqual(bench.minCosine);
    });

    test('fills a slot to its last row and to its last token', async () => {
      const bench = await setup();
      const { slotRows, slotTokens } = bench.backend;
      const manyRows = Array.from({ length: Math.min(slotRows, Math.floor(slotTokens / 8)) }, (_, i) =>
        bench.row(1 + (i % 8), i),
      );
      const wideRows = Array.from({ length: bench.mostRows() }, (_, i) => bench.row(bench.maxTokens - (i % 3), i));
      for (const [rows, width] of [
        [manyRows, 8],
        [wideRows, bench.maxTokens],
      ] as const) {
        const vectors = await bench.embed(rows, width);
        for (const i of new Set([0, rows.length >> 1, rows.length - 1]))
          expect(cosine(vectors[i]!, await bench.embedAlone(rows[i]!))).toBeGreaterThanOrEqual(bench.minCosine);
      }
    });

    test('is not running anything before the first run, nor after the last', async () => {
      const bench = await setup();
      expect(bench.backend.runningMs()).toBe(0);
      await bench.embedAlone(bench.row(5, 1));
      expect(bench.backend.runningMs()).toBe(0);
    });

    test('stops when the runs in flight have ended, with their results intact, and may be stopped again', async () => {
      const bench = await setup();
      const row = bench.row(5, 1);
      const alone = await bench.embedAlone(row);
      const slots = lendAll(bench.backend);
      const ended: string[] = [];
      const runs = slots.map((slot) => bench.run(slot, [row]).then(() => ended.push('run')));
      const stops = [bench.backend.stop(), bench.backend.stop()].map((stop) => stop.then(() => ended.push('stop')));
      for (const promise of [...runs, ...stops]) await bench.wait(promise);
      expect(ended).toEqual([...slots.map(() => 'run'), 'stop', 'stop']);
      for (const slot of slots)
        expect(cosine(slot.embeddings.slice(0, bench.backend.dims), alone)).toBeGreaterThanOrEqual(bench.minCosine);
      await bench.wait(bench.backend.stop());
    });
  });
}

type ProofOf<Kind extends MemoryPlan['kind']> = (bench: Bench, plan: MemoryPlanOf<Kind>) => Promise<void>;

/** What each kind of plan promises, tried with a run. */
const PROOFS: { readonly [Kind in MemoryPlan['kind']]: ProofOf<Kind> } = {
  exact: async (bench, plan) => {
    await plan.shrink();
    const before = plan.heldBytes();
    await bench.embedAlone(bench.row(bench.maxTokens, 1));
    const grown = plan.heldBytes() - before;
    expect(grown).toBeGreaterThan(0);
    expect(grown).toBeLessThanOrEqual(incrementBytes(plan.law(before), { rows: 1, width: bench.maxTokens }));
    expect(plan.law(before).loadedBytes).toBe(before);
    expect(await plan.shrink()).toBe(true);
    expect(plan.heldBytes()).toBeLessThanOrEqual(before);
    await expectProbe(plan.card.probe);
  },
  fitted: async (bench, plan) => {
    expect(plan.graph).toMatchObject({ dims: bench.backend.dims, precision: bench.backend.precision });
    expect(JSON.parse(JSON.stringify(plan.graph))).toEqual(plan.graph); // so that it reaches another process whole
    await bench.wait(plan.prepare(bench.maxTokens));
    await bench.embedAlone(bench.row(4, 1));
    expect((await bench.backend.memory())?.footprintBytes).toBeGreaterThan(0);
  },
  preset: async (bench, plan) => {
    expect(plan.card.name).not.toBe('');
    await bench.embedAlone(bench.row(4, 1));
    await expectProbe(plan.card.probe);
  },
  simulated: async (bench, plan) => {
    await bench.embedAlone(bench.row(4, 1));
    await expectProbe(plan.probe);
  },
  none: async (bench) => void (await bench.embedAlone(bench.row(4, 1))),
};

async function expectProbe(probe: MemoryProbe | undefined): Promise<void> {
  const reading = await probe?.read();
  if (reading === undefined) return;
  expect(reading.freeBytes).toBeGreaterThanOrEqual(0);
  expect(reading.freeBytes).toBeLessThanOrEqual(reading.totalBytes);
}

/** One backend with the means to fill slots and compare vectors. */
class Bench {
  readonly backend: InferenceBackend;
  readonly vocabularySize: number;
  readonly maxTokens: number;
  readonly wait: <T>(promise: Promise<T>) => Promise<T>;
  readonly minCosine: number;
  readonly supportsUrgent: boolean;

  constructor({
    backend,
    vocabularySize,
    maxTokens,
    minCosine = 0.999_999,
    supportsUrgent = true,
    wait = (promise) => promise,
  }: BackendUnderTest) {
    this.supportsUrgent = supportsUrgent;
    this.backend = backend;
    this.vocabularySize = vocabularySize;
    this.maxTokens = maxTokens;
    this.minCosine = minCosine;
    this.wait = wait;
  }

  /** Token ids that differ from those of every other seed. */
  row(tokens: number, seed: number): number[] {
    return Array.from({ length: tokens }, (_, i) => 1 + ((seed * 7919 + i * 104_729 + 13) % (this.vocabularySize - 1)));
  }

  /** Of the greatest width. */
  mostRows(): number {
    return Math.min(this.backend.slotRows, Math.floor(this.backend.slotTokens / this.maxTokens));
  }

  fits(rows: number, width: number): boolean {
    return rows <= this.backend.slotRows && rows * width <= this.backend.slotTokens;
  }

  run(
    slot: Slot,
    rows: readonly (readonly number[])[],
    width = widthOf(rows),
    options: RunOptions = {},
  ): Promise<RunResult> {
    this.fill(slot, rows, width);
    return this.backend.run(slot, { rows: rows.length, width }, options);
  }

  private fill(slot: Slot, rows: readonly (readonly number[])[], width: number): void {
    slot.ids.fill(0, 0, rows.length * width);
    for (const [i, ids] of rows.entries()) {
      slot.ids.set(ids, i * width);
      slot.lengths[i] = ids.length;
    }
  }

  async embed(
    rows: readonly (readonly number[])[],
    width: number,
    runSlot: InferenceBackend['run'] = (slot, shape) => this.backend.run(slot, shape),
  ): Promise<Float32Array[]> {
    const slot = this.backend.lend();
    invariant(slot !== undefined, 'a slot is free while nothing runs');
    const { dims } = this.backend;
    this.fill(slot, rows, width);
    const result = await this.wait(runSlot(slot, { rows: rows.length, width }));
    invariant(result.ok, 'a batch within the slot has room on the device');
    const vectors = rows.map((_, i) => slot.embeddings.slice(i * dims, (i + 1) * dims));
    this.backend.giveBack(slot);
    return vectors;
  }

  async embedAlone(row: readonly number[]): Promise<Float32Array> {
    return (await this.embed([row], widthOf([row])))[0]!;
  }

  async stop(): Promise<void> {
    await this.wait(this.backend.stop());
  }
}

function lendAll(backend: InferenceBackend): Slot[] {
  const slots: Slot[] = [];
  for (let slot = backend.lend(); slot !== undefined && slots.length < MANY_SLOTS; slot = backend.lend())
    slots.push(slot);
  return slots;
}

function widthOf(rows: readonly (readonly number[])[]): number {
  return Math.ceil(Math.max(...rows.map((row) => row.length)) / 8) * 8;
}

function normOf(vector: Float32Array): number {
  return Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
}

function cosine(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0) / (normOf(a) * normOf(b));
}

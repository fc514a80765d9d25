// What the GPU's engine does about memory and failures, on the CUDA library's stand-in; that its answers are right is
// kernels.test.ts's business. Every call here is compared with the same call on the CPU.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, test } from 'vitest';
import { cudaLibraryProblem, openCuda } from './cuda-library.ts';
import { graphFromEdges } from '../graphs/graph.ts';
import { cpuEngine } from './kernels.ts';
import type { BestRows } from './engine.ts';
import { nativeAddon } from './native-addon.ts';
import { openStandIn, standInEngine, withStandIn } from '../testing/stand-in.ts';
import { matrixOf, rowsOf, type RowBlock } from './vectors.ts';

const standIn = openStandIn();
const DIMS = 16;
const ROWS = 64;
const cpu = cpuEngine({ isa: 'plain' });

function block(seed: number, rows = ROWS): RowBlock {
  return rowsOf(
    matrixOf(
      Float32Array.from({ length: rows * DIMS }, (_, i) => Math.sin(seed * 12.9898 + i * 78.233)),
      DIMS,
    ),
  );
}

const queries = matrixOf(
  Float32Array.from({ length: 3 * DIMS }, (_, i) => Math.cos(i)),
  DIMS,
);

async function expectRight(found: BestRows, rows: RowBlock): Promise<void> {
  expect([...found.rows]).toEqual([...(await cpu.topK(queries, rows, 'cosine', 5)).rows]);
}

async function codeOf(work: Promise<unknown>): Promise<string | undefined> {
  return work.then(
    () => 'answered',
    (error: { code?: string }) => error.code,
  );
}

/** Whether it is fulfilled without a turn of the event loop. */
async function isDoneAtOnce(work: Promise<unknown>): Promise<boolean> {
  let isDone = false;
  const done = work.then(() => (isDone = true));
  for (let i = 0; i < 40; i++) await Promise.resolve(); // turns of promises, none of the event loop
  const wasDone = isDone;
  await done;
  return wasDone;
}

test('a library that is not there, or is something else, is a reason in words', async () => {
  expect(await cudaLibraryProblem('/nowhere/similarity_cuda.so')).toContain('build.sh cuda');
  const missing = openCuda('/nowhere/similarity_cuda.so');
  expect(missing).toMatchObject({ ok: false, isAbsence: nativeAddon() === undefined });
  if (standIn === undefined) return;
  const other = openCuda(standIn.path.replace('stand_in_cuda.so', 'similarity.node'));
  expect(other).toMatchObject({ ok: false, reason: expect.stringContaining('has no function shoal_cuda_abi') });
  await withStandIn({ SHOAL_STAND_IN_DEVICES: 0 }, async () =>
    expect(openCuda(standIn.path)).toMatchObject({
      ok: false,
      reason: expect.stringContaining('told to have no device'),
    }),
  );
});

/** Of a block on the device, with its fp16 form. */
const bytes = (): number => standInEngine(standIn!).bytesOf(block(0));

describe.skipIf(standIn === undefined)('on the stand-in', () => {
  test('what is kept comes to the device once, the one used least recently leaves, and the ledger holds', async () => {
    const blocks = [0, 1, 2, 3, 4, 5].map((seed) => block(seed));
    const engine = standInEngine(standIn!, { residentBytes: 2 * bytes() });
    for (const rows of blocks) engine.keep(rows);
    for (let round = 0; round < 2; round++) {
      for (const rows of blocks) {
        await expectRight(await engine.topK(queries, rows, 'cosine', 5), rows);
        expect(engine.residents.bytes).toBeLessThanOrEqual(2 * bytes());
      }
    }
    expect([engine.residents.count, engine.residents.evictions]).toEqual([2, 10]);
    await engine.topK(queries, blocks[4]!, 'cosine', 5);
    await engine.topK(queries, blocks[0]!, 'cosine', 5); // 5 was used less recently than 4
    expect(blocks.map((rows) => engine.isHeld(rows))).toEqual([true, false, false, false, true, false]);
    engine.letGo(blocks[4]!);
    expect([engine.residents.count, engine.heldBytes]).toEqual([1, bytes()]);
    engine.close();
    expect(engine.heldBytes).toBe(0);
  });

  test('what is larger than the ledger, or was not to be kept, passes by and leaves nothing behind', async () => {
    const engine = standInEngine(standIn!, { residentBytes: ROWS * DIMS * 4, workBytes: 1 << 16 });
    const rows = block(1);
    for (const keeps of [false, true]) {
      if (keeps) engine.keep(rows);
      await expectRight(await engine.topK(queries, rows, 'cosine', 5), rows);
      expect([...(await engine.matrix(queries, rows, 'dot'))].map((score) => score.toFixed(4))).toEqual(
        [...(await cpu.matrix(queries, rows, 'dot'))].map((score) => score.toFixed(4)),
      );
      expect(engine.heldBytes).toBe(0);
    }
  });

  test(
    'many scores lie in pinned memory while there is some, else in ordinary memory, and it is given back when ' +
      'they are forgotten',
    async () => {
      const rows = block(7, 32_768);
      const bytesOfScores = 3 * 32_768 * 4;
      const folder = mkdtempSync(join(tmpdir(), 'shoal-pinned-'));
      const told = join(folder, 'taken');
      const taken = (): number => Number(readFileSync(told, 'utf8'));
      setFlagsFromString('--expose-gc');
      const collect = runInNewContext('gc') as () => void;
      const engine = standInEngine(standIn!);
      engine.keep(rows);
      const wanted = await cpu.matrix(queries, rows, 'dot');
      await withStandIn({ SHOAL_STAND_IN_PINNED: bytesOfScores, SHOAL_STAND_IN_TAKEN: told }, async () => {
        const both = [await engine.matrix(queries, rows, 'dot'), await engine.matrix(queries, rows, 'dot')];
        expect(taken()).toBe(bytesOfScores);
        for (const scores of both) scores.forEach((score, at) => expect(score).toBeCloseTo(wanted[at]!, 4));
        both.length = 0;
        for (let turn = 0; turn < 1000 && taken() > 0; turn++) {
          collect();
          await setImmediate();
        }
        expect(taken()).toBe(0);
        await withStandIn({ SHOAL_STAND_IN_MOST_ROWS: 1 }, async () =>
          expect(await codeOf(engine.matrix(queries, rows, 'dot'))).toBe('OUT_OF_VRAM'),
        );
        expect(taken()).toBe(0);
      });
      engine.close();
      rmSync(folder, { recursive: true });
    },
  );

  test(
    'what needs little of a device is done in this thread, unless the device has other work; a device that stays ' +
      'busy is asked there less and less',
    async () => {
      const rows = block(3);
      const graph = graphFromEdges({ from: Uint32Array.of(0, 1, 2, 3), to: Uint32Array.of(1, 2, 3, 0) });
      const begin = Uint32Array.of(0, 2, 4, 6);
      const candidates = Uint32Array.of(1, 5, 2, 9, 63, 0);
      let [clockMs, stepMs, looks] = [0, 0, 0];
      const nowMs = (): number => {
        looks++;
        return (clockMs += stepMs);
      };
      const engine = standInEngine(standIn!, { nowMs });
      for (const kept of [rows, graph]) engine.keep(kept);
      const calls = {
        topK: async () => expectRight(await engine.topK(queries, rows, 'cosine', 5), rows),
        matrix: async () => expect([...(await engine.matrix(queries, rows, 'dot'))]).toEqual([...(await first.matrix)]),
        rescore: async () =>
          expect([...(await engine.rescore(queries, rows, 'dot', begin, candidates))]).toEqual([
            ...(await first.rescore),
          ]),
        spread: async () =>
          expect([
            ...(await engine.spread(graph, 1, Float32Array.of(1, 0, 0, 0), {
              steps: 3,
              decay: 0.5,
              threshold: 0,
              k: 4,
            })),
          ]).toEqual([1, 0.5, 0.25, 0.125]),
      };
      const first = {
        matrix: engine.matrix(queries, rows, 'dot'),
        rescore: engine.rescore(queries, rows, 'dot', begin, candidates),
      }; // rows have come
      await Promise.all([first.matrix, first.rescore, calls.spread()]);
      for (const call of Object.values(calls)) expect(await isDoneAtOnce(call())).toBe(true);
      await withStandIn({ SHOAL_STAND_IN_LATER: 1 }, async () => {
        for (const call of Object.values(calls)) expect(await isDoneAtOnce(call())).toBe(false);
      });
      expect(await isDoneAtOnce(calls.topK())).toBe(true); // that cost nothing, and is tried again
      const tried: number[] = [];
      stepMs = 1; // each look at the clock: waiting in vain took as long
      await withStandIn({ SHOAL_STAND_IN_LATER: 1 }, async () => {
        for (let i = 0; i < 200; i++) {
          const before = looks;
          await calls.topK();
          if (looks > before) tried.push(i);
        }
      });
      expect(tried).toEqual([0, 2, 6, 14, 30, 62, 126, 191]);
      stepMs = 0;
      for (let i = 0; i < 65; i++) await calls.topK();
      expect(await isDoneAtOnce(calls.topK())).toBe(true);
      engine.close();
      expect(engine.heldBytes).toBe(0);
    },
  );

  test('what leaves the device while a call waits or tries again stays until that call has ended', async () => {
    const [rows, other] = [block(1), block(2)];
    const graph = graphFromEdges({ from: Uint32Array.of(0, 1, 2, 3), to: Uint32Array.of(1, 2, 3, 0) });
    const engine = standInEngine(standIn!, { residentBytes: bytes() + 1, workBytes: 1 << 20 });
    for (const kept of [rows, other, graph]) engine.keep(kept);
    const spread = () =>
      engine.spread(graph, 1, Float32Array.of(1, 0, 0, 0), { steps: 3, decay: 0.5, threshold: 0, k: 4 });
    await engine.topK(queries, rows, 'cosine', 5);
    const ask = async (): Promise<void> => {
      const calls = [
        engine.topK(queries, rows, 'cosine', 5),
        engine.topK(queries, other, 'cosine', 5),
        engine.matrix(queries, rows, 'dot'),
        engine.matrix(queries, other, 'dot'),
        spread(),
        engine.topK(queries, rows, 'cosine', 5),
      ] as const;
      const [first, second, , , totals, last] = await Promise.all(calls);
      await expectRight(first, rows);
      await expectRight(second, other);
      expect([...totals]).toEqual([1, 0.5, 0.25, 0.125]);
      await expectRight(last, rows);
    };
    for (let round = 0; round < 10; round++) await ask();
    await withStandIn({ SHOAL_STAND_IN_MOST_WORK: 1 << 16 }, ask);
    engine.close();
    expect(engine.heldBytes).toBe(0);
  });

  test('memory runs out at every number of rows, and every answer is right', async () => {
    const rows = block(2);
    const [begin, candidates] = [Uint32Array.of(0, 2, 2, 5), Uint32Array.of(63, 1, 0, 40, 63)];
    const wanted = [
      await cpu.topK(queries, rows, 'l2', 70),
      await cpu.rescore(queries, rows, 'dot', begin, candidates),
    ] as const;
    for (let most = ROWS; most >= 1; most--) {
      const engine = standInEngine(standIn!);
      engine.keep(rows);
      await withStandIn({ SHOAL_STAND_IN_MOST_ROWS: most }, async () => {
        // Where not even the smallest work fits, the engine's caller takes smaller tiles: then there is no answer, and
        // never another one.
        const found = await engine.topK(queries, rows, 'l2', 70).then(
          ({ rows: best }) => best.join(),
          (error: { code: string }) => error.code,
        );
        expect([wanted[0].rows.join(), 'OUT_OF_VRAM']).toContain(found);
        const scores = await engine.rescore(queries, rows, 'dot', begin, candidates);
        scores.forEach((score, at) => expect(score).toBeCloseTo(wanted[1][at]!, 10));
      });
      engine.close();
      expect(engine.heldBytes).toBe(0);
    }
  });

  test('a call gets less and less memory for its work, then the device to itself, and regains it slowly', async () => {
    const [rows, other] = [block(3), block(4)];
    const engine = standInEngine(standIn!, { workBytes: 1 << 22 });
    for (const kept of [rows, other]) {
      engine.keep(kept);
      await engine.topK(queries, kept, 'cosine', 5);
    }
    await withStandIn({ SHOAL_STAND_IN_MOST_WORK: 1 << 16 }, async () => {
      await expectRight(await engine.topK(queries, rows, 'cosine', 5), rows);
      expect(engine.residents.count).toBe(2);
    });
    await withStandIn({ SHOAL_STAND_IN_MOST_WORK: 1 }, async () => {
      expect(await codeOf(engine.topK(queries, rows, 'cosine', 5))).toBe('OUT_OF_VRAM');
      expect([engine.isHeld(rows), engine.isHeld(other)]).toEqual([true, false]);
    });
    await expectRight(await engine.topK(queries, rows, 'cosine', 5), rows);
    engine.close();
  });

  test('work whose smallest piece is larger than a call may use gets what it takes, and nobody leaves', async () => {
    const [rows, other] = [block(3), block(4)];
    const engine = standInEngine(standIn!, { workBytes: 1 << 16 });
    engine.keep(other);
    await engine.topK(queries, other, 'cosine', 5);
    await withStandIn({ SHOAL_STAND_IN_LEAST_WORK: 1 << 18 }, async () => {
      await expectRight(await engine.topK(queries, rows, 'cosine', 5), rows);
      await engine.matrix(queries, other, 'dot');
      expect([engine.residents.count, engine.isHeld(other)]).toEqual([1, true]);
    });
    await withStandIn({ SHOAL_STAND_IN_LEAST_WORK: 1 << 24 }, async () =>
      expect(await codeOf(engine.topK(queries, rows, 'cosine', 5))).toBe('OUT_OF_VRAM'),
    );
    engine.close();
  });

  test(
    'where the driver has less than the ledger thinks, residents leave until an upload fits; one that never does ' +
      'passes by',
    async () => {
      const engine = standInEngine(standIn!, { residentBytes: 10 * bytes(), workBytes: 1 << 16 });
      const blocks = [5, 6, 7].map((seed) => block(seed));
      const work = 1 << 17;
      await withStandIn({ SHOAL_STAND_IN_BYTES: 2 * bytes() + work }, async () => {
        for (const rows of blocks) {
          engine.keep(rows);
          await expectRight(await engine.topK(queries, rows, 'cosine', 5), rows);
        }
      });
      await withStandIn({ SHOAL_STAND_IN_BYTES: work }, async () => {
        const large = block(8, 4_000);
        engine.keep(large);
        const found = await engine.topK(queries, large, 'cosine', 5);
        expect([...found.rows]).toEqual([...(await cpu.topK(queries, large, 'cosine', 5)).rows]);
        expect(engine.isHeld(large)).toBe(false);
      });
      engine.close();
    },
  );

  test('a graph that fits is kept, and spreads the same when memory is short', async () => {
    const graph = graphFromEdges({ from: Uint32Array.of(0, 1, 2, 3), to: Uint32Array.of(1, 2, 3, 0) });
    const options = { steps: 3, decay: 0.5, threshold: 0, k: 4 };
    const engine = standInEngine(standIn!);
    for (const keeps of [false, true]) {
      if (keeps) engine.keep(graph);
      expect([...(await engine.spread(graph, 1, Float32Array.of(1, 0, 0, 0), options))]).toEqual([1, 0.5, 0.25, 0.125]);
      expect(engine.isHeld(graph)).toBe(keeps);
    }
    engine.close();
    expect(engine.heldBytes).toBe(0);
  });

  // Last: what is lost stays lost in this process.
  test('a device that failed is lost for every later call, and for every engine of the process', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'shoal-cuda-'));
    writeFileSync(join(folder, 'lost'), '');
    const engine = standInEngine(standIn!);
    await withStandIn({ SHOAL_STAND_IN_LOST: join(folder, 'lost') }, async () =>
      expect(await codeOf(engine.topK(queries, block(1), 'dot', 1))).toBe('DEVICE_LOST'),
    );
    expect(await codeOf(engine.topK(queries, block(1), 'dot', 1))).toBe('DEVICE_LOST');
    expect(await codeOf(standInEngine(standIn!).topK(queries, block(1), 'dot', 1))).toBe('DEVICE_LOST');
    rmSync(folder, { recursive: true });
  });
});

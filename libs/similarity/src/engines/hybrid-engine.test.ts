// Who computes what, on the CUDA library's stand-in and with times that the test makes up.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { Thresholds } from '@shoal/core/similarity';
import { HybridEngine } from './hybrid-engine.ts';
import { graphFromEdges } from '../graphs/graph.ts';
import type { CudaEngine } from './cuda-engine.ts';
import { cpuEngine } from './kernels.ts';
import type { Engine } from './engine.ts';
import { measureThresholds } from '../measure/thresholds.ts';
import { openStandIn, standInEngine, withStandIn } from '../testing/stand-in.ts';
import { matrixOf, rowsOf, type RowBlock } from './vectors.ts';

const standIn = openStandIn();
const DIMS = 8;
const queries = matrixOf(
  Float32Array.from({ length: 2 * DIMS }, (_, i) => Math.cos(i)),
  DIMS,
);

function block(rows: number): RowBlock {
  return rowsOf(
    matrixOf(
      Float32Array.from({ length: rows * DIMS }, (_, i) => Math.sin(i * 78.233)),
      DIMS,
    ),
  );
}

/** The GPU is faster from 1,000 rows of 8 values on, whatever the queries; bringing rows there pays from 2 on. */
const MADE_UP = new Thresholds({
  thresholds: ['topk/f32', 'cosine/f32', 'rescore/f32', 'spread'].flatMap((kind) =>
    [1, 64].map((count) => ({ kind, queries: count, work: 8_000 })),
  ),
  passingQueries: { f32: 3 },
});

/** A CPU that starts threads above 100,000 values, and a GPU that works in parts above 250,000. */
const steppedCpuMs = (values: number): number => (values < 100_000 ? 0.01 + values / 4e6 : 0.03 + values / 2e7);
const steppedGpuMs = (values: number): number => 0.045 + values / 1e9 + (values < 250_000 ? 0 : 0.02);

/** Engines that compute nothing and take as long as the laws say, by a clock of their own. */
function madeUpEngines(cpuMs: (values: number, atMs: number) => number, gpuMs: (values: number) => number) {
  let clockMs = 0;
  const engineOf = (lawMs: (values: number, atMs: number) => number): Engine => {
    const takes = async (values: number): Promise<never> => void (clockMs += lawMs(values, clockMs)) as never;
    return {
      isa: 'plain',
      threads: 1,
      topK: (asked, rows) => takes(asked.rows * rows.rows * rows.dims),
      matrix: (asked, rows) => takes(asked.rows * rows.rows * rows.dims),
      rescore: (_asked, rows, _metric, _begin, candidates) => takes(candidates.length * rows.dims),
      spread: (graph, lanes, _activation, { steps }) => takes(lanes * steps * (graph.nodes + graph.source.length)),
    };
  };
  const gpu = Object.assign(engineOf(gpuMs), {
    keep: () => undefined,
    letGo: () => undefined,
  }) as unknown as CudaEngine;
  return { cpu: engineOf(cpuMs), gpu, nowMs: () => clockMs };
}

function setup(chooses: 'auto' | 'never' = 'auto') {
  const fellBack: string[] = [];
  const [cpu, gpu] = [cpuEngine({ isa: 'plain' }), standInEngine(standIn!)];
  return {
    fellBack,
    cpu,
    gpu,
    hybrid: new HybridEngine({
      cpu,
      gpu,
      chooses,
      thresholds: MADE_UP,
      onFellBack: ({ code }) => fellBack.push(code),
    }),
  };
}

test('at half of the threshold the CPU is faster and at twice the GPU, also where a side takes a step', async () => {
  const { thresholds } = await measureThresholds({ ...madeUpEngines(steppedCpuMs, steppedGpuMs), mostRows: 65_536 });
  expect(thresholds).toHaveLength(3 * 3 + 3 + 3 + 2);
  for (const { kind, queries: count, work } of thresholds) {
    if (work === undefined) continue;
    const values = work * count;
    expect(steppedCpuMs(values / 2), `${kind}, ${count}`).toBeLessThan(steppedGpuMs(values / 2));
    expect(steppedCpuMs(values * 2), `${kind}, ${count}`).toBeGreaterThan(steppedGpuMs(values * 2));
  }
  // one query with few candidates ends before the GPU is faster
  expect(thresholds.filter(({ work }) => work === undefined).length).toBeLessThanOrEqual(2);
});

/** Twice as slow in a third of all windows of 60 ms, which differ by the seed. */
function disturbedBy(seed: number): (values: number, atMs: number) => number {
  return (values, atMs) => {
    const isDisturbed = (Math.imul(Math.floor(atMs / 60) + 1, seed) >>> 8) % 3 === 0;
    return ((isDisturbed ? 2 : 1) * values) / 5e6;
  };
}

test.each([0x85ebca6b, 0xc2b2ae35, 0x27d4eb2f, 0x165667b1])(
  'somebody who wants the processor at times, for longer than the measuring of one kind, does not move it (%i)',
  async (seed) => {
    const truth = 0.04 * 5e6;
    const engines = madeUpEngines(disturbedBy(seed), () => 0.04);
    const { thresholds } = await measureThresholds({ ...engines, mostRows: 4_096 });
    const found = thresholds.filter(({ queries: count, work }) => count === 1 && work !== undefined);
    expect(found).toHaveLength(6);
    for (const { kind, work } of found) expect([kind, work! > truth / 2 && work! < truth * 2]).toEqual([kind, true]);
  },
);

describe.skipIf(standIn === undefined)('on the stand-in', () => {
  test('what is on the device runs where it is sooner done: little on the CPU, much on the GPU', async () => {
    const { hybrid, gpu, cpu } = setup();
    const [small, large] = [block(100), block(10_000)];
    for (const rows of [small, large]) {
      gpu.keep(rows);
      await gpu.topK(queries, rows, 'dot', 1);
      const found = await hybrid.topK(queries, rows, 'dot', 3);
      expect([...found.rows]).toEqual([...(await cpu.topK(queries, rows, 'dot', 3)).rows]);
    }
    expect(hybrid.takeUsage()).toEqual({ cpu: 1, gpu: 1, fellBack: undefined });
    expect(hybrid.takeUsage()).toEqual({ cpu: 0, gpu: 0, fellBack: undefined });
    gpu.close();
  });

  test('rows that stay come to the device when they are asked for a second time', async () => {
    const { hybrid, gpu } = setup();
    const rows = block(5_000);
    gpu.keep(rows);
    const where: boolean[] = [];
    for (let call = 0; call < 4; call++) {
      if (call === 3) gpu.letGo(rows);
      if (call === 3) gpu.keep(rows);
      await hybrid.topK(queries, rows, 'dot', 1);
      where.push(gpu.isHeld(rows));
    }
    expect(where).toEqual([false, true, true, false]); // what left has to be asked for twice again
    gpu.close();
  });

  test('what passes by, and what is asked for once, goes to the device only where that pays at once', async () => {
    const { hybrid, gpu } = setup();
    const many = matrixOf(new Float32Array(3 * DIMS).fill(0.5), DIMS);
    await hybrid.topK(queries, block(5_000), 'dot', 1);
    expect(hybrid.takeUsage()).toMatchObject({ cpu: 1, gpu: 0 });
    await hybrid.topK(many, block(5_000), 'dot', 1);
    expect(hybrid.takeUsage()).toMatchObject({ cpu: 0, gpu: 1 });
    const kept = block(5_000);
    gpu.keep(kept);
    await hybrid.topK(many, kept, 'dot', 1);
    expect(hybrid.takeUsage()).toMatchObject({ cpu: 0, gpu: 1 });
    await hybrid.rescore(many, block(5_000), 'dot', Uint32Array.of(0, 1_000, 2_000, 3_000), new Uint32Array(3_000));
    expect(hybrid.takeUsage()).toMatchObject({ cpu: 1, gpu: 0 });
    gpu.close();
  });

  test('told not to choose, everything runs on the GPU', async () => {
    const { hybrid } = setup('never');
    await hybrid.matrix(queries, block(1), 'dot');
    expect(hybrid.takeUsage()).toMatchObject({ cpu: 0, gpu: 1 });
  });

  test('running out of memory is for the caller to hear of, not for the CPU to hide', async () => {
    const { hybrid, fellBack } = setup('never');
    await withStandIn({ SHOAL_STAND_IN_MOST_WORK: 1 }, async () =>
      expect(await hybrid.topK(queries, block(5), 'dot', 1).catch((error: { code: string }) => error.code)).toBe(
        'OUT_OF_VRAM',
      ),
    );
    expect(fellBack).toEqual([]);
  });

  test('every kind has a threshold or none as far as was measured', async () => {
    const { thresholds } = await measureThresholds({ cpu: cpuEngine(), gpu: standInEngine(standIn!), mostRows: 256 });
    expect([...new Set(thresholds.map(({ kind }) => kind))].sort()).toEqual([
      'cosine/f32',
      'rescore/f32',
      'spread',
      'topk/f16',
      'topk/f32',
      'topk/i8',
    ]);
    expect(thresholds).toHaveLength(3 * 3 + 3 + 3 + 2);
    for (const { work } of thresholds) expect(work ?? 1).toBeGreaterThan(0);
  });

  // Last: what is lost stays lost in this process.
  test('a device that fails in mid-call costs no answer, and nothing is asked of it any more', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'shoal-hybrid-'));
    const lost = join(folder, 'lost');
    const { hybrid, cpu, fellBack } = setup('never');
    const graph = graphFromEdges({ from: Uint32Array.of(0, 1), to: Uint32Array.of(1, 2) });
    const rows = block(50);
    await withStandIn({ SHOAL_STAND_IN_LOST: lost }, async () => {
      await hybrid.topK(queries, rows, 'dot', 3);
      writeFileSync(lost, '');
      expect([
        ...(await hybrid.spread(graph, 1, Float32Array.of(1, 0, 0), { steps: 2, decay: 0.5, threshold: 0, k: 3 })),
      ]).toEqual([1, 0.5, 0.25]);
      expect(hybrid.takeUsage()).toEqual({ cpu: 1, gpu: 1, fellBack: 'DEVICE_LOST' });
      expect([...(await hybrid.topK(queries, rows, 'dot', 3)).rows]).toEqual([
        ...(await cpu.topK(queries, rows, 'dot', 3)).rows,
      ]);
      expect(hybrid.takeUsage()).toEqual({ cpu: 1, gpu: 0, fellBack: undefined });
    });
    expect([hybrid.isLost, fellBack]).toEqual([true, ['DEVICE_LOST']]);
    rmSync(folder, { recursive: true });
  });
});

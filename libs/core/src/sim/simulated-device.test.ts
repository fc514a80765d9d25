import { expect, test } from 'vitest';
import { fakeVector } from './fake-vector.ts';
import { describeInferenceBackend } from '../testing/inference-backend.conformance.ts';
import { ManualClock } from '../testing/manual-clock.ts';
import type { RunShape, Slot } from '../ports/device.ts';
import { REFUSAL_MS, WORKSPACE_BYTES, h200Law, runMs, tensorBytes } from './device-law.ts';
import { seededRandom } from '../base/seeded-random.ts';
import { SimulatedDevice, type SimulatedDeviceOptions } from './simulated-device.ts';
import { SimulatedMemory } from './simulated-memory.ts';

const quiet = h200Law({ noise: 0 });

function open(change: Partial<SimulatedDeviceOptions> = {}) {
  const clock = new ManualClock();
  const device = new SimulatedDevice({ law: quiet, clock, dims: 8, slotRows: 64, slotTokens: 4096, ...change });
  const filled = ({ rows, width }: RunShape): Slot => {
    const slot = device.lend()!;
    for (let row = 0; row < rows; row++) {
      slot.ids.fill(row + 1, row * width, (row + 1) * width);
      slot.lengths[row] = width;
    }
    return slot;
  };
  const run = async (shape: RunShape) => {
    const slot = filled(shape);
    const result = await clock.advanceUntilSettled(device.run(slot, shape));
    const vectors = Array.from({ length: shape.rows }, (_, row) => slot.embeddings.slice(row * 8, row * 8 + 8));
    device.giveBack(slot);
    return { result, vectors };
  };
  return { clock, device, filled, run };
}

describeInferenceBackend('the simulated device', async () => {
  const { clock, device } = open();
  return {
    backend: device,
    vocabularySize: 30_522,
    maxTokens: 64,
    wait: (promise) => clock.advanceUntilSettled(promise),
  };
});

test('runs take what every run takes and what their tokens take; the first waits for the start as well', async () => {
  const { clock, run } = open({ startMs: 500 });
  const shape = { rows: 8, width: 64 };
  await run(shape);
  expect(clock.nowMs()).toBeCloseTo(500 + runMs(quiet, shape));
  await run(shape);
  expect(clock.nowMs()).toBeCloseTo(500 + 2 * runMs(quiet, shape));
});

test('a run that finds no room is refused as a result, and its half still runs', async () => {
  const shape = { rows: 64, width: 64 };
  const fixed = quiet.contextBytes + quiet.weightsBytes + WORKSPACE_BYTES[0];
  const { clock, run } = open({ law: { ...quiet, totalBytes: fixed + 0.75 * tensorBytes(quiet, shape) } });
  expect((await run(shape)).result).toMatchObject({ ok: false, outOfVram: { needsRecycle: false } });
  expect(clock.nowMs()).toBe(REFUSAL_MS);
  expect((await run({ rows: 32, width: 64 })).result).toMatchObject({ ok: true });
});

test('a tensor of 2³¹ elements is refused on any device', () => {
  const memory = new SimulatedMemory(h200Law({ totalBytes: 1e15 }), seededRandom(1));
  expect(memory.take({ rows: 2048, width: 512 })).toBe('fits');
  expect(memory.take({ rows: 4096, width: 512 })).toBe('too-large');
});

test('the arena doubles, keeps what it took, and leaves no room for the workspace of a new class of widths', () => {
  const law = { ...quiet, totalBytes: 4e9 };
  const memory = new SimulatedMemory(law, seededRandom(1));
  const wide = { rows: 1, width: 512 };
  let rows = 64;
  for (; memory.take({ rows, width: 64 }) === 'fits'; rows = Math.floor(rows * 1.1));
  const { liveBytes, footprintBytes } = memory.reading();
  expect(footprintBytes).toBeGreaterThan(liveBytes!);
  memory.take({ rows: 1, width: 8 });
  expect(memory.reading().footprintBytes).toBe(footprintBytes);
  memory.othersBytes = memory.driver().freeBytes;
  expect(memory.take(wide)).toBe('needs-recycle');
  const fresh = new SimulatedMemory(law, seededRandom(1));
  fresh.othersBytes = memory.othersBytes;
  expect(fresh.take(wide)).toBe('fits');
});

test('the driver shows a co-tenant only where it can be seen, and the run fails either way', async () => {
  for (const isSeen of [true, false]) {
    const { device, run } = open({ law: { ...quiet, totalBytes: 4e9 } });
    const before = await device.read();
    device.setTenant(3.4e9, isSeen);
    const freed = before.freeBytes - (await device.read()).freeBytes;
    expect(freed > 0).toBe(isSeen);
    expect((await run({ rows: 64, width: 64 })).result.ok).toBe(false);
  }
});

const isMarked = (ids: ArrayLike<number>): boolean => ids[0] === 3;

test('every fault happens where it was put and nowhere else', async () => {
  const three = { rows: 3, width: 8 };
  const two = { rows: 2, width: 8 };

  const nan = open({ faults: { givesNanAtRow: isMarked } });
  const { vectors } = await nan.run(three);
  expect(vectors.map((vector) => Number.isNaN(vector[0]))).toEqual([false, false, true]);
  const slot = nan.filled(three);
  await nan.clock.advanceUntilSettled(nan.device.runExact!(slot, three));
  expect(slot.embeddings.slice(16, 24)).toEqual(fakeVector(slot.ids.subarray(16, 24), 8));

  const poison = open({ faults: { failsAtRow: isMarked } });
  await expect(poison.run(three)).rejects.toMatchObject({ code: 'INFERENCE_FAILED' });

  const lost = open({ faults: { losesDeviceAtRow: isMarked } });
  expect((await lost.run(two)).result.ok).toBe(true);
  await expect(lost.run(three)).rejects.toMatchObject({ code: 'DEVICE_LOST' });
  const after = lost.filled(two); // the failed run's slot was never given back; this is another
  await expect(lost.clock.advanceUntilSettled(lost.device.run(after, two))).rejects.toMatchObject({
    code: 'DEVICE_LOST',
  });

  const oom = open({ faults: { outOfMemoryAt: ({ rows }) => rows === 3 } });
  expect((await oom.run(two)).result.ok).toBe(true);
  expect((await oom.run(three)).result.ok).toBe(false);

  let aborts = 0;
  const aborting = open({ faults: { abortsAtRow: isMarked, abort: () => void aborts++ } });
  void aborting.device.run(aborting.filled(three), three);
  await aborting.clock.advance(1_000);
  expect(aborts).toBe(1);

  const hanging = open({ faults: { hangsAt: ({ rows }) => rows === 3 } });
  void hanging.device.run(hanging.filled(three), three);
  await hanging.clock.advance(10_000);
  expect(hanging.device.runningMs()).toBe(10_000);
});

test('a share of all runs runs out of memory, the same ones for the same seed', async () => {
  const first = await failuresOf(5);
  expect(first.length).toBeGreaterThan(20);
  expect(first.length).toBeLessThan(60);
  expect(await failuresOf(5)).toEqual(first);
  expect(await failuresOf(6)).not.toEqual(first);
});

async function failuresOf(seed: number): Promise<number[]> {
  const { run } = open({ faults: { outOfMemoryShare: 0.2 }, seed });
  const failed: number[] = [];
  for (let i = 0; i < 200; i++) if (!(await run({ rows: 1, width: 8 })).result.ok) failed.push(i);
  return failed;
}

// `shoal tune` of the native encoder, by the reference library in the place of the one for CUDA; and that a worker that
// starts afterwards takes what was found.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { systemClock, type RunResult } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { ENCODER_LIBRARIES, EncoderBackend, type EncoderBackendOptions } from '@shoal/inference';
import { buildReferenceEncoder } from '@shoal/inference/testing';
import { openModel, openTokenizer, readEncoder } from '@shoal/models';
import { openDeviceBudget } from './device-budget.ts';
import { nativeEncoder } from '../device/providers/native-encoder.ts';
import { encoderKey, storeProfile } from './profile-store.ts';
import { tuneEncoder, type EncoderTuneOptions } from './tune-encoder.ts';

let cacheDir: string;
beforeAll(async () => {
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-tune-encoder-'));
});
afterAll(() => rm(cacheDir, { recursive: true, force: true }));

const hasCompiler = buildReferenceEncoder('tuning the native encoder');

const CARD = { device: 'cuda:0', deviceKind: 'NVIDIA H200', library: ENCODER_LIBRARIES.reference };

/** Runs take as long as `msOf` says by a clock of their own, so that what is best is known on a machine of any speed. */
class TimedEncoder {
  /** When the runs end that are under way, by the clock of the test. */
  private readonly ends: { readonly atMs: number; readonly reached: () => void }[] = [];
  readonly runs: { readonly rows: number; readonly width: number }[] = [];
  running = 0;
  mostRunning = 0;
  readonly backend: EncoderBackend;

  constructor(backend: EncoderBackend, msOf: (tokens: number, padded: number) => number | 'out-of-memory') {
    this.backend = backend;
    const lanes: Promise<unknown>[] = Array.from({ length: backend.sessions }, () => Promise.resolve());
    let next = 0;
    backend.run = async (slot, shape) => {
      this.runs.push(shape);
      this.mostRunning = Math.max(this.mostRunning, ++this.running);
      const tokens = slot.lengths.subarray(0, shape.rows).reduce((sum, length) => sum + length, 0);
      const ms = msOf(tokens, shape.rows * shape.width);
      const at = next++ % lanes.length;
      const before = lanes[at]!;
      const turn = (async (): Promise<RunResult> => {
        await before;
        if (ms !== 'out-of-memory') await this.after(ms);
        this.running--;
        return ms === 'out-of-memory' ? { ok: false, outOfVram: { message: 'full' } } : { ok: true, runMs: ms };
      })();
      lanes[at] = turn;
      return turn;
    };
  }

  private after(ms: number): Promise<void> {
    return new Promise((reached) => {
      this.ends.push({ atMs: performance.now() + ms, reached });
      if (this.ends.length === 1) setImmediate(() => this.goOn());
    });
  }

  /** To the end of the run that ends first: whatever can begin has begun by now. */
  private goOn(): void {
    this.ends.sort((one, other) => one.atMs - other.atMs);
    const { atMs, reached } = this.ends.shift()!;
    vi.advanceTimersByTime(Math.max(0, atMs - performance.now()));
    reached();
    if (this.ends.length > 0) setImmediate(() => this.goOn());
  }
}

async function options(
  msOf?: ConstructorParameters<typeof TimedEncoder>[1],
  more: Partial<EncoderBackendOptions> = {},
): Promise<EncoderTuneOptions & { opened: Map<number, TimedEncoder | EncoderBackend> }> {
  const model = await openModel('tiny-random', { cacheDir });
  const opened = new Map<number, TimedEncoder | EncoderBackend>();
  return {
    opened,
    passMs: 50,
    lanes: [1, 2],
    vocabularySize: model.vocabularySize,
    maxTokens: 256,
    maxRows: 512,
    poolTokens: 24_576,
    open: async (lanes) => {
      const backend = await EncoderBackend.open({
        ...CARD,
        model: await readEncoder(model),
        slotRows: 512,
        slotTokens: 16_384,
        ...more,
        lanes,
      });
      const timed = msOf === undefined ? backend : new TimedEncoder(backend, msOf);
      opened.set(lanes, timed);
      return timed instanceof TimedEncoder ? timed.backend : timed;
    },
  };
}

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('the encoder itself is measured at night (npm run test:nightly): it takes half a minute');

describe.runIf(hasCompiler)('shoal tune of the native encoder', () => {
  test.runIf(isNightly)(
    'measures lanes and budgets on the encoder itself, and tells what is held to the byte',
    async () => {
      const asked = await options(undefined, { slotTokens: 8_192 });
      const { tried, chosen, memory } = await tuneEncoder(asked);
      expect(new Set(tried.map(({ lanes }) => lanes))).toEqual(new Set([1, 2]));
      expect(tried).toContainEqual(chosen);
      for (const { textsPerSecond } of tried) expect(textsPerSecond).toBeGreaterThan(0);
      expect(memory).toMatchObject({ arena: 'exact', loadedBytes: expect.any(Number) });
      for (const backend of asked.opened.values())
        // already stopped: nothing is left open
        await expect((backend as EncoderBackend).stop()).resolves.toBeUndefined();
    },
  );

  describe('by a clock that nobody delays', () => {
    beforeEach(() => void vi.useFakeTimers({ toFake: ['performance'] }));
    afterEach(() => void vi.useRealTimers());

    test('takes two lanes where two give clearly more, with a batch queued behind those that run', async () => {
      const asked = await options((tokens) => tokens / 2_000); // lanes side by side: twice the rate with two
      const { chosen } = await tuneEncoder(asked);
      expect(chosen.lanes).toBe(2);
      expect((asked.opened.get(2) as TimedEncoder).mostRunning).toBe(3);
    });

    test('goes on without budgets that find no memory, and says so where none does', async () => {
      const { tried } = await tuneEncoder({
        ...(await options((tokens, padded) => (padded > 5_000 ? 'out-of-memory' : tokens / 5_000))),
        lanes: [1],
      });
      expect(tried.map(({ maxPaddedTokens }) => maxPaddedTokens)).toEqual([4_096]);
      const asked = await options(() => 'out-of-memory');
      await expect(tuneEncoder(asked)).rejects.toMatchObject({
        code: 'OUT_OF_VRAM',
        message: expect.stringContaining('not even a batch of 4096'),
      });
    });
  });

  test('is what a worker begins with at its next start', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const log = new RecordingLogger();
    await storeProfile(cacheDir, encoderKey(model, CARD), { kneeTokens: 6_144, lanes: 2 }, log);
    const device = {
      device: 'gpu:0',
      precision: 'auto',
      slots: { dims: model.dims, slotRows: 512, slotTokens: 16_384 },
      model,
      tokenizer: await openTokenizer(model),
      cacheDir,
      threads: 1,
      environment: {},
      log,
    } as const;
    const backend = (await nativeEncoder(
      { ...device, encoder: 'native' },
      { ...CARD, usualLanes: 1, probe: { read: async () => ({ freeBytes: 1e11, totalBytes: 1.4e11 }) } },
    ))!;
    expect(backend.sessions).toBe(2);
    const limits = {
      maxRows: undefined,
      maxPaddedTokens: undefined,
      windowRows: 1,
      maxWaitMs: 1,
      minRows: 1,
      maxRowAgeMs: 1,
      memoryFraction: 0.8,
      latencyTargetMs: 100,
      maxDeviceBytes: undefined,
    };
    const { budget, stop } = await openDeviceBudget({
      backend,
      model,
      maxTokens: 256,
      settings: { limits, threads: 1, cacheDir },
      clock: systemClock,
      log,
    });
    expect(budget.current()).toMatchObject({ maxPaddedTokens: 6_144, limitedBy: 'knee' });
    stop();
    await backend.stop();
    const asked = (await nativeEncoder({ ...device, encoder: 'native', sessions: 1 }, CARD))!;
    expect(asked.sessions).toBe(1);
    await asked.stop();
  });
});

// A device whose memory has a limit that nobody was told of, through the real executor and the native encoder's
// reference: micro-batches far too large for it are split until they run, the row that fits nowhere is handed over, and
// nobody loses a text.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { encodeTokens, openResult } from '@shoal/contract';
import { Executor, createBudget, systemClock, type FromExecutor, type JobOrder } from '@shoal/core';
import { noFaults } from '@shoal/core/base';
import { FakeTokenizer, MemoryPayloadStore, RecordingLogger } from '@shoal/core/testing';
import { ENCODER_LIBRARIES, EncoderBackend } from '@shoal/inference';
import { buildReferenceEncoder } from '@shoal/inference/testing';
import { readEncoder, writeTinyModel } from '@shoal/models';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-memory-limit-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

const JOBS = 20;
const ROWS = 20;
const MAX_TOKENS = 256;
/** Padded tokens that the budget would run at once. */
const GREEDY_TOKENS = 8_192;
const hasEncoder = buildReferenceEncoder('a device with too little memory');

const tokenizer = new FakeTokenizer({ maxTokens: MAX_TOKENS });
const lengthOf = (row: number): number => 8 + ((row * 53) % 56);
const rowOf = (seed: number, tokens: number): number[] =>
  Array.from({ length: tokens }, (_, at) => 5 + ((seed * 31 + at * 7) % 150));

function orderOf([jobId, rows]: readonly [string, number[][]]): JobOrder {
  return {
    jobId,
    token: 'token',
    queuedMs: 0,
    input: { form: 'tokens', rows: rows.length, tokens: rows.flat().length, tokenizer: tokenizer.hash },
    fingerprint: undefined,
    class: 'bulk',
    truncate: 'end',
    prompt: undefined,
    output: { dtype: 'f32', dimensions: undefined },
    resultTtlMs: 1_000,
    remainingMs: undefined,
  };
}

test.runIf(hasEncoder)(
  'runs that find no room are split, what fits nowhere is handed over, and every other text gets its vector',
  async () => {
    const model = await readEncoder(
      await writeTinyModel(join(cacheDir, 'wide'), { hidden: 256, heads: 8, layers: 2, seed: 11 }),
    );
    const slots = { slotRows: 512, slotTokens: GREEDY_TOKENS, precision: 'fp32', device: 'small' } as const;
    const library = ENCODER_LIBRARIES.reference;
    const unlimited = await EncoderBackend.open({ ...slots, model, library });
    // room for half of the widest row alone, which is enough for a few of the usual ones
    const memoryLimit = unlimited.heldBytes() + unlimited.laneBytes(MAX_TOKENS / 2, 1);
    const backend = await EncoderBackend.open({ ...slots, model, library, memoryLimit });
    const jobs = new Map<string, number[][]>(
      Array.from({ length: JOBS }, (_, job) => [
        `job-${job}`,
        Array.from({ length: ROWS }, (_row, row) => rowOf(job * ROWS + row, lengthOf(job + row))),
      ]),
    );
    jobs.set('wide', [rowOf(1, 20), rowOf(2, MAX_TOKENS)]);

    const { outcomes, results, splits } = await runAll(backend, jobs);
    expect(outcomes.get('wide')).toMatchObject({ kind: 'hand-over', handOver: { reason: { code: 'OUT_OF_VRAM' } } });
    expect([...outcomes].filter(([jobId]) => jobId !== 'wide').every(([, { kind }]) => kind === 'committed')).toBe(
      true,
    );
    expect(outcomes.size).toBe(JOBS + 1);
    expect(splits).toBeGreaterThan(0);
    for (const [jobId, rows] of [...jobs].filter(([id]) => id !== 'wide')) {
      expect(await leastCosine(unlimited, rows, results.get(jobId)!)).toBeGreaterThan(0.999_999);
    }
    await Promise.all([backend.stop(), unlimited.stop()]);
    process.stdout.write(
      `room for half of a row of ${MAX_TOKENS} tokens: ${JOBS * ROWS} texts, ${splits} splits, 0 lost, 1 of 1 job ` +
        'handed over that fits nowhere\n',
    );
  },
);

type JobOutcome = Extract<FromExecutor, { kind: 'outcomes' }>['outcomes'][number];

interface Ran {
  readonly outcomes: ReadonlyMap<string, JobOutcome>;
  readonly results: ReadonlyMap<string, Float32Array>;
  readonly splits: number;
}

async function runAll(backend: EncoderBackend, jobs: ReadonlyMap<string, number[][]>): Promise<Ran> {
  const store = new MemoryPayloadStore();
  const outcomes = new Map<string, JobOutcome>();
  const ended = Promise.withResolvers<void>();
  let splits = 0;
  const executor = new Executor({
    store,
    backend,
    tokenizer,
    clock: systemClock,
    log: new RecordingLogger(),
    isLastLane: false,
    faults: noFaults,
    model: 'wide@0',
    prompts: { query: '', passage: '' },
    budget: createBudget({
      maxPaddedTokens: GREEDY_TOKENS,
      maxRows: 512,
      maxTokens: MAX_TOKENS,
      kneeTokens: GREEDY_TOKENS,
      startTokens: GREEDY_TOKENS,
    }),
    limits: { maxRowAgeMs: 250, windowRows: 512, maxWaitMs: 0, minRows: 1 },
    resultKey: (jobId) => jobId,
    send: (message: FromExecutor) => {
      if (message.kind === 'split') splits++;
      if (message.kind === 'outcomes') for (const outcome of message.outcomes) outcomes.set(outcome.jobId, outcome);
      if (message.kind === 'recycle') ended.reject(new Error(`recycled: ${message.reason}`));
      if (outcomes.size === jobs.size) ended.resolve();
    },
  });
  for (const [jobId, rows] of jobs) {
    store.locks.set(jobId, 'token');
    store.inputs.set(jobId, encodeTokens(rows));
  }
  executor.handle({ kind: 'run', jobs: [...jobs].map(orderOf), isQueueDrained: true });
  await ended.promise;
  await executor.stop();
  const results = new Map(
    [...store.results].map(([jobId, bytes]) => [
      jobId,
      new Float32Array(Uint8Array.from(openResult(bytes).body).buffer),
    ]),
  );
  return { outcomes, results, splits };
}

/** The least cosine of a job's rows, run together, with what was found. */
async function leastCosine(backend: EncoderBackend, rows: readonly number[][], found: Float32Array): Promise<number> {
  const slot = backend.lend()!;
  const width = Math.ceil(Math.max(...rows.map((ids) => ids.length)) / 8) * 8;
  slot.ids.fill(0, 0, rows.length * width);
  for (const [at, ids] of rows.entries()) {
    slot.ids.set(ids, at * width);
    slot.lengths[at] = ids.length;
  }
  await backend.run(slot, { rows: rows.length, width });
  const cosines = rows.map((_, at) =>
    slot.embeddings
      .subarray(at * backend.dims, (at + 1) * backend.dims)
      .reduce((sum, value, i) => sum + value * found[at * backend.dims + i]!, 0),
  );
  backend.giveBack(slot);
  return cosines.some(Number.isNaN) ? -1 : Math.min(...cosines);
}

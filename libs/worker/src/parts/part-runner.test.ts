// Parts at a real executor with a simulated device: their rows are small jobs of the same pool, of which nobody else hears;
// interactive jobs go before them, half of the pool is left to others, and what is stopped in the middle is gone on with.

import { mkdtemp, open, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { ShoalError, decodePartResult, partId, partName, type Part } from '@shoal/contract';
import { Executor, fixedBudget, systemClock, type FromExecutor, type JobOrder, type JobOutcome } from '@shoal/core';
import { noFaults } from '@shoal/core/base';
import { FakeBackend, FakeTokenizer, MemoryPayloadStore, RecordingLogger } from '@shoal/core/testing';
import { tokenizeInput } from '../executor/tokenized-input.ts';
import { writtenRows } from '../files/written-rows.ts';
import { PartPlaces } from './part-place.ts';
import { orderOf } from '../testing/part-order.ts';
import { PartRunner } from './part-runner.ts';
import { PartThreads } from './part-threads.ts';

const MODEL = 'fake@0123456789ab';
const ROWS = 20_000;
/** A row has four tokens, a small job 1,024. */
const POOL_TOKENS = 8_192;
let place: string;

beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), 'shoal-parts-'));
  await writeFile(join(place, 'docs.txt'), Array.from({ length: ROWS }, (_, row) => `text ${row}\n`).join(''));
});
afterEach(() => rm(place, { recursive: true, force: true }));

const until = (isTrue: () => boolean): Promise<boolean> => vi.waitUntil(isTrue, { timeout: 30_000, interval: 5 });

async function partOf(run: string): Promise<Part> {
  const path = join(place, 'docs.txt');
  const { size, mtimeMs } = await stat(path);
  return {
    run: run.padStart(16, '0'),
    number: 0,
    of: 1,
    source: { kind: 'file', path, bytes: size, modifiedMs: mtimeMs },
    format: 'text',
    range: { kind: 'bytes', from: 0, to: size, firstLine: 1, lines: ROWS },
    onError: 'fail',
    output: { kind: 'folder', folder: place, stem: `out-${run}`, format: 'parquet', dtype: 'f32', hasIds: false },
    model: { name: MODEL, truncate: 'end' },
  };
}

/** The list of the run and the pointers, without a server. */
class MemoryLedger {
  readonly pointers = new Map<string, Buffer>();
  readonly list = new Map<number, string>();
  pointer = async (jobId: string) => this.pointers.get(jobId);
  entries = async () => Object.fromEntries(this.list);
  entriesOf = async (_run: string, numbers: readonly number[]) => numbers.map((number) => this.list.get(number));
  keyOf = (jobId: string) => `out:${jobId}`;
  async commit({ jobId, pointer }: { readonly jobId: string; readonly pointer: Buffer }) {
    if (this.pointers.has(jobId)) return 'already' as const;
    this.pointers.set(jobId, pointer);
    return 'committed' as const;
  }
  async enter(_run: string, number: number, entry: string) {
    this.list.set(number, entry);
    return this.list.size;
  }
}

function setup(ledger = new MemoryLedger(), program?: URL) {
  const said: FromExecutor[] = [];
  const backend = new FakeBackend({ clock: systemClock, dims: 8, slotTokens: 1_024, slotRows: 64, runMs: () => 1 });
  const tokenizer = new FakeTokenizer();
  const log = new RecordingLogger();
  const store = new MemoryPayloadStore();
  const threads = new PartThreads({
    folders: [place],
    tokenizer: { model: 'tiny-random', cacheDir: place, maxTokens: 64 },
    log,
    program,
  });
  const tell = (message: FromExecutor): void => void said.push(message);
  const runner = new PartRunner({
    ledgerIn: () => ledger,
    places: new PartPlaces([place]),
    open: (terms) => threads.open(terms),
    model: { name: MODEL, dims: 8, isNormalized: true, device: 'fake', precision: 'fp32' },
    tokenizer: {
      hash: tokenizer.hash,
      encodeInput: async (input, prefix) => tokenizeInput(input, prefix, tokenizer),
    },
    prompts: { prompts: {} },
    poolTokens: POOL_TOKENS,
    tell,
    clock: systemClock,
    faults: noFaults,
    log,
  });
  const executor = new Executor({
    store: runner.storeBefore(store),
    backend,
    budget: fixedBudget({ maxPaddedTokens: 512, maxRows: 64 }),
    tokenizer,
    clock: systemClock,
    log,
    isLastLane: false,
    limits: { maxRowAgeMs: 250, windowRows: 64, maxWaitMs: 2, minRows: 4 },
    model: MODEL,
    prompts: {},
    resultKey: (jobId) => `out:${jobId}`,
    send: (message) => {
      const heard = runner.hear(message);
      if (heard !== undefined) tell(heard);
    },
    faults: noFaults,
  });
  runner.serve(executor);
  const outcomes = (): JobOutcome[] => said.flatMap((one) => (one.kind === 'outcomes' ? one.outcomes : []));
  return {
    ledger,
    said,
    backend,
    store,
    runner,
    executor,
    outcomes,
    until: (jobId: string) =>
      vi.waitUntil(() => outcomes().find((outcome) => outcome.jobId === jobId), { timeout: 30_000, interval: 5 }),
    ranRows: () => backend.runs.reduce((sum, { rows }) => sum + rows, 0),
    async stop() {
      await runner.stop();
      await executor.stop();
      await threads.stop();
    },
  };
}

test('a part runs in micro-batches of its device, two at a time, and the claimer hears of the parts alone', async () => {
  const own = setup();
  const [a, b] = [await partOf('a'), await partOf('b')];
  own.runner.run([orderOf(a, 't-a'), orderOf(b, 't-b'), orderOf(a, 't-a')]);
  for (const part of [a, b])
    expect(await own.until(partId(part))).toMatchObject({ kind: 'committed', value: { rows: ROWS, tokens: 4 * ROWS } });
  const pointers = [a, b].map((part) => decodePartResult(own.ledger.pointers.get(partId(part))!));
  expect(new Set(pointers.map(({ sha256 }) => sha256)).size).toBe(1);
  const ids = own.said.flatMap((message) =>
    message.kind === 'began'
      ? message.jobIds
      : message.kind === 'filled'
        ? message.jobs.map(({ jobId }) => jobId)
        : message.kind === 'outcomes'
          ? message.outcomes.map(({ jobId }) => jobId)
          : [],
  );
  expect(ids.toSorted()).toEqual([partId(a), partId(b)]);
  const told = own.said.reduce((sum, message) => sum + (message.kind === 'part-rows' ? message.rows : 0), 0);
  expect(told).toBe(2 * ROWS);
  await own.stop();
});

test('rows of parts fill half of the pool, and an interactive job goes before all of them', async () => {
  const own = setup();
  const part = await partOf('a');
  own.runner.run([orderOf(part, 't-a')]);
  await until(() => own.backend.runs.length > 40);
  const order: JobOrder = {
    jobId: 'now',
    token: 't',
    queuedMs: 0,
    class: 'interactive',
    input: { form: 'inline', texts: ['who waits for me'] },
    fingerprint: undefined,
    truncate: 'end',
    prompt: undefined,
    output: { dtype: 'f32', dimensions: undefined },
    resultTtlMs: 1_000,
    remainingMs: undefined,
  };
  const before = own.backend.runs.length;
  own.store.locks.set('now', 't');
  own.executor.handle({ kind: 'run', jobs: [order], isQueueDrained: false });
  expect(await own.until('now')).toMatchObject({ kind: 'committed' });
  const at = own.backend.runs.findIndex(({ ids }) => ids.some((row) => row.length === 6));
  // what is at the device, and what waits there
  expect(at - before).toBeLessThanOrEqual(3);
  expect(own.ranRows()).toBeLessThan(ROWS);
  await own.until(partId(part));
  const pools = own.said.flatMap((message) => (message.kind === 'ran' ? [message.poolTokens] : []));
  expect(Math.max(...pools)).toBeLessThanOrEqual(POOL_TOKENS / 2);
  expect(Math.max(...pools)).toBeGreaterThan(POOL_TOKENS / 4);
  await own.stop();
});

test('a part that is stopped goes back with a checkpoint, and whoever has it next goes on behind it', async () => {
  const own = setup();
  const [part, undisturbed] = [await partOf('a'), await partOf('b')];
  own.runner.run([orderOf(part, 't-1')]);
  await until(() => own.ranRows() > ROWS / 2);
  await own.stop();
  expect(own.outcomes()).toEqual([{ kind: 'unstarted', jobId: partId(part), token: 't-1' }]);
  expect(await readdir(place)).toContain('out-a-00000.parquet.checkpoint');
  own.runner.run([orderOf(part, 't-2')]);
  expect(own.outcomes().at(-1)).toMatchObject({ kind: 'unstarted', token: 't-2' });
  const next = setup(own.ledger);
  next.runner.run([orderOf(part, 't-3')]);
  await next.until(partId(part));
  expect(next.ranRows()).toBeLessThan(ROWS * 0.75);
  next.runner.run([orderOf(undisturbed, 't-4')]);
  await next.until(partId(undisturbed));
  const [goneOn, whole] = [part, undisturbed].map((one) => decodePartResult(own.ledger.pointers.get(partId(one))!));
  expect(goneOn).toMatchObject({ sha256: whole!.sha256, rows: ROWS, tokens: 4 * ROWS });
  await next.stop();
});

test('a cell that falls silent while its part is committed keeps what was written, and the next claim finds it', async () => {
  const ledger = new MemoryLedger();
  const own = setup(ledger);
  const commit = vi.spyOn(ledger, 'commit').mockImplementationOnce(async ({ jobId, pointer }) => {
    ledger.pointers.set(jobId, pointer); // it arrived, and its answer got lost
    throw new ShoalError('QUEUE_UNREACHABLE', 'the cell b does not answer');
  });
  const part = await partOf('a');
  const cell = { name: 'b', address: 'redis://b:6379' };
  own.runner.run([{ ...orderOf(part, 't-1'), cell }]);
  expect(await own.until(partId(part))).toEqual({ kind: 'unstarted', jobId: partId(part), token: 't-1' });
  expect(await readdir(place)).not.toContain('out-a-00000.parquet');
  own.runner.run([{ ...orderOf(part, 't-2'), cell }]);
  await until(() => own.outcomes().length === 2);
  expect(own.outcomes().at(-1)).toMatchObject({ kind: 'already', token: 't-2' });
  expect(await readdir(place)).toEqual(expect.arrayContaining(['out-a-00000.parquet', 'out-a.manifest.json']));
  expect(commit).toHaveBeenCalledTimes(1);
  await own.stop();
});

test('a part that is dropped runs no further row, says nothing, and may come again with another token', async () => {
  const own = setup();
  const part = await partOf('a');
  own.runner.run([orderOf(part, 't-1')]);
  await until(() => own.ranRows() > 1_000);
  own.runner.drop([partId(part)]);
  await until(() => own.backend.runningMs() === 0);
  const ran = own.ranRows();
  await new Promise((resolve) => setTimeout(resolve, 30));
  expect({ ran: own.ranRows(), outcomes: own.outcomes() }).toEqual({ ran, outcomes: [] });
  own.runner.run([orderOf(part, 't-2')]);
  own.runner.run([orderOf(part, 't-3')]); // its lease was lost and claimed here again
  expect(await own.until(partId(part))).toMatchObject({ kind: 'committed', token: 't-3' });
  await own.stop();
});

test('what cannot be run fails its part by file and rows, and nobody beside it', async () => {
  const own = setup();
  const part = { ...(await partOf('a')), model: { name: MODEL, truncate: 'end', normalize: false } as const };
  const other = await partOf('b');
  own.runner.run([orderOf(part, 't-1'), orderOf(other, 't-2')]);
  const outcome = await own.until(partId(part));
  expect(outcome).toMatchObject({
    kind: 'failed',
    failure: { code: 'JOB_INVALID', message: expect.stringMatching(/^docs\.txt, rows 1 to 256: .*not normalized/) },
  });
  expect(await own.until(partId(other))).toMatchObject({ kind: 'committed' });
  await own.stop();
});

/** Threads that end by themselves: before anything was read, and in the middle. */
const ENDS = {
  'that throws': 'throw new Error("out of luck")',
  'that exits': 'process.exit(3)',
};

test.each(Object.entries(ENDS))(
  'a thread of a part %s fails the part by name and is not used again',
  async (_, ends) => {
    const answers = `import { parentPort } from 'node:worker_threads';
    parentPort.on('message', ({ id, kind }) => {
      if (kind !== 'open') ${ends};
      parentPort.postMessage({ id, kind: 'done' });
    });`;
    const own = setup(new MemoryLedger(), new URL(`data:text/javascript,${encodeURIComponent(answers)}`));
    const [part, next] = [await partOf('a'), await partOf('b')];
    for (const one of [part, next]) {
      own.runner.run([orderOf(one, 't-1')]);
      expect(await own.until(partId(one))).toMatchObject({
        kind: 'failed',
        failure: {
          code: 'EXECUTOR_LOST',
          message: expect.stringMatching(/^the thread that had the files .*(luck|with 3)/),
        },
      });
    }
    await own.stop();
  },
);

const words = (row: number): number => (row % 7 === 3 ? 90 : 1 + (row % 20));

test('an object may say how many tokens each text has and which were cut; a text may lie within another field', async () => {
  const lines = Array.from({ length: 3_000 }, (_, row) =>
    row % 500 === 7
      ? '{"body": {"input": ["x"]}}\n'
      : `${JSON.stringify({ body: { input: 'x '.repeat(words(row)) } })}\n`,
  );
  await writeFile(join(place, 'docs.txt'), lines.join(''));
  const own = setup();
  const plain = await partOf('a');
  const output = { ...plain.output, withTokens: true };
  const part: Part = { ...plain, format: 'jsonl', textField: 'body.input', onError: 'skip', output };
  own.runner.run([orderOf(part, 't-1')]);
  expect(await own.until(partId(part))).toMatchObject({ kind: 'committed', value: { rows: 2_994 } });
  const path = join(place, partName(part));
  const file = await asyncBufferFromFile(path);
  const found = await parquetReadObjects({ file });
  const expected = lines.flatMap((_, row) => (row % 500 === 7 ? [] : [row]));
  expect(found.map(({ index, tokens, truncated }) => [Number(index), tokens, truncated])).toEqual(
    expected.map((row) => [row, Math.min(64, 2 + words(row)), words(row) > 62]),
  );
  let read = 0;
  await using object = await open(path);
  for await (const rows of writtenRows(object, 'x', 8))
    for (const [at, index] of rows.indexes.entries()) {
      const { tokens, truncated, embedding } = found[read++]!;
      expect([index, rows.tokens[at], rows.isTruncated(at)]).toEqual([BigInt(expected[read - 1]!), tokens, truncated]);
      expect([...rows.vectors.subarray(8 * at, 8 * at + 8)]).toEqual(embedding);
    }
  expect(read).toBe(2_994);
  await own.stop();
});

// What becomes of a batch's lines while its parts are done, fail, or leave objects that are not what was written. The lane
// is a hand of the test; the storage is a folder, and objects are written by the encoder that workers have.

import { createHash } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import {
  ShoalError,
  encodePartResult,
  encodeRunEntry,
  partFingerprint,
  partId,
  partName,
  type PartResult,
} from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import type { AddResult, JobEnding, NewJob } from '@shoal/queue';
import { ParquetEncoder } from '@shoal/worker/files/parquet-rows';
import { BatchParts } from './batch-parts.ts';
import type { Embeddings } from './calls.ts';
import { DiskStorage } from './disk-storage.ts';
import type { PartLane } from './part-clients.ts';
import { partOf } from './part-plan.ts';
import type { PartPlan } from './records.ts';
import { StorageFailure } from './storage.ts';

const DIMS = 4;
const FOLDER = 't/owner/parts/batch_1';
const LINES = 10;

let place: string;
let storage: DiskStorage;
let plan: PartPlan;
let log: RecordingLogger;
/** Of jobs by their ids. */
let states: Map<string, JobEnding['state']>;
let entries: Map<number, string>;
let pointers: Map<string, Buffer>;
let added: string[];
let cancelled: string[];
let awayTimes: number;
let isSilent: boolean;

beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), 'shoal-batch-parts-'));
  storage = await DiskStorage.open(place);
  plan = {
    run: '0123456789abcdef',
    source: { kind: 'file', path: join(place, 'input'), bytes: 1_000, modifiedMs: 1 },
    output: {
      ...(await storage.forWorkers.output(FOLDER)),
      stem: 'part',
      format: 'parquet',
      dtype: 'f32',
      hasIds: false,
      withTokens: true,
    },
    model: { name: 'fake@1', truncate: 'end' },
    dims: DIMS,
    group: 'group',
    tenant: 'default',
    ranges: [
      { from: 0, to: 500, firstLine: 1, lines: LINES },
      { from: 500, to: 1_000, firstLine: LINES + 1, lines: LINES },
    ],
  };
  log = new RecordingLogger();
  [states, entries, pointers] = [new Map(), new Map(), new Map()];
  [added, cancelled, awayTimes, isSilent] = [[], [], 0, false];
});
afterEach(() => rm(place, { recursive: true, force: true }));

const lane: PartLane = {
  producer: {
    async add(jobs: readonly NewJob[]): Promise<AddResult[]> {
      if (awayTimes-- > 0) throw new ShoalError('QUEUE_UNREACHABLE', 'away');
      return jobs.map(({ jobId }) => {
        added.push(jobId);
        if (!states.has(jobId)) states.set(jobId, 'open');
        return { jobId, outcome: 'added' };
      });
    },
    endings: async (jobIds) =>
      jobIds.map((jobId) => ({ jobId, state: states.get(jobId) ?? 'unknown', failedReason: 'FILE_UNREADABLE: no' })),
    workers: async () => [],
  },
  ledger: {
    pointer: async (jobId) => pointers.get(jobId),
    entriesOf: async (_, numbers) =>
      isSilent ? new Promise(() => undefined) : numbers.map((number) => entries.get(number)),
  },
  canceller: {
    async cancel(jobIds) {
      cancelled.push(...jobIds);
      return [];
    },
  },
};

/** Line 3 of each part is left out, the text of line 5 was cut. */
async function done(number: number, change: Partial<PartResult> = {}): Promise<string> {
  const part = partOf(plan, number);
  const first = plan.ranges[number]!.firstLine - 1;
  const records = Array.from({ length: LINES }, (_, at) => ({ id: undefined, index: first + at, text: '' })).filter(
    (__, at) => at !== 2,
  );
  const encoder = await ParquetEncoder.open({
    format: 'parquet',
    dims: DIMS,
    hasIds: false,
    withText: false,
    withTokens: true,
  });
  const vectors = Float32Array.from(
    { length: records.length * DIMS },
    (_, at) => records[Math.floor(at / DIMS)]!.index,
  );
  const rowTokens = Int32Array.from(records, ({ index }) => (index - first === 4 ? -9 : 7));
  const pieces = [
    ...encoder.encode({ records, dims: DIMS, vectors, rowTokens, position: records.length }),
    ...encoder.flush(),
  ];
  const bytes = Buffer.concat([encoder.head(), ...pieces.map((piece) => piece.bytes), encoder.tail()]);
  const path = join(place, FOLDER, partName(part));
  await writeFile(path, bytes);
  const result: PartResult = {
    name: partName(part),
    written: `${partName(part)}.1`,
    rows: records.length,
    dims: DIMS,
    bytes: bytes.length,
    sha256: createHash('sha256').update(bytes).digest('hex'),
    truncated: 1,
    tokens: 65,
    refused: { rows: 1, first: [] },
    ...change,
  };
  entries.set(number, encodeRunEntry(part, result));
  pointers.set(partId(part), encodePartResult(result, { fingerprint: partFingerprint(part), dtype: 'f32' }));
  states.set(partId(part), 'completed');
  return path;
}

function parts(signal = new AbortController().signal, onGivenUp = async (): Promise<void> => undefined): BatchParts {
  return new BatchParts({
    record: { id: 'batch_1', expires_at: Date.now() / 1_000 + 86_400 },
    plan,
    access: storage.forWorkers,
    folder: FOLDER,
    lane,
    calls: {
      embedded: (_, { vector, tokens }) => ({ body: { first: vector[0] }, tokens }),
    },
    signal,
    onGivenUp,
    log,
    timing: { lookMs: 5, nobodyMs: 200 },
  });
}

const call = (truncate: 'end' | 'error' = 'error'): Embeddings =>
  ({ kind: 'embeddings', texts: ['x'], asked: { truncate } }) as unknown as Embeddings;

/** What parts answer of these lines, by the first value of the vector. */
async function answers(own: BatchParts, from = 1, to = 2 * LINES): Promise<unknown[]> {
  const found: unknown[] = [];
  for (let line = from; line <= to; line++) {
    const answer = await own.answerOf(line, call());
    found.push(answer !== undefined && 'body' in answer ? Reflect.get(answer.body, 'first') : undefined);
  }
  return found;
}

const all = Array.from({ length: 2 * LINES }, (_, at) => ([2, 4].includes(at % LINES) ? undefined : at));
const reasons = (): unknown[] =>
  log.lines.filter(({ level }) => level === 'warn').map(({ fields }) => Reflect.get(fields, 'reason'));

test('rows answer their lines; one that was left out, or cut where nothing may be, is the caller’s', async () => {
  await Promise.all([done(0), done(1)]);
  const own = parts();
  expect(await answers(own)).toEqual(all);
  expect(await own.answerOf(2 * LINES + 1, call())).toBeUndefined();
  await own.close();
  const other = parts();
  expect(await other.answerOf(5, call('end'))).toEqual({ body: { first: 4 }, tokens: 9 });
  await other.close();
});

test('whoever goes on in the middle of a part gets what is behind it, and asks for nothing before', async () => {
  await Promise.all([done(0), done(1)]);
  const own = parts();
  expect(await answers(own, 14)).toEqual(all.slice(13));
  expect(added).toEqual([partId(partOf(plan, 1))]);
  await own.close();
});

test('parts are asked for before their first line comes, and a line between two of them is the caller’s at once', async () => {
  plan = { ...plan, ranges: [plan.ranges[0]!, { ...plan.ranges[1]!, firstLine: 2 * LINES + 1 }] };
  const own = parts();
  await own.begin(LINES + 1);
  expect(added).toEqual([partId(partOf(plan, 1))]);
  expect(await answers(own, LINES + 1, 2 * LINES)).toEqual(Array(LINES).fill(undefined));
  await done(1);
  expect(await own.answerOf(2 * LINES + 1, call())).toMatchObject({ body: { first: 2 * LINES } });
  await own.close();
});

test('a queue server that is away is waited for, and a part that is not done', async () => {
  awayTimes = 3;
  await done(0);
  const own = parts();
  expect(await answers(own, 1, LINES)).toEqual(all.slice(0, LINES));
  const waiting = own.answerOf(LINES + 1, call());
  await done(1);
  expect(await waiting).toMatchObject({ body: { first: LINES } });
  expect(reasons()).toEqual([]);
  await own.close();
});

test('a batch that ends is not held up', async () => {
  const end = new AbortController();
  const own = parts(end.signal);
  const waiting = own.answerOf(1, call());
  end.abort();
  expect(await waiting).toBeUndefined();
});

test('nor by a queue server that does not answer', async () => {
  const end = new AbortController();
  const own = parts(end.signal);
  isSilent = true;
  const waiting = own.answerOf(1, call());
  await new Promise((resolve) => setTimeout(resolve, 20));
  end.abort();
  expect(await waiting).toBeUndefined();
});

test('a storage that fails gives nothing up: the batch goes on when it is back', async () => {
  await done(0);
  const object = storage.forWorkers.object;
  Object.assign(storage.forWorkers, { object: async () => Promise.reject(new StorageFailure('away')) });
  await expect(parts().answerOf(1, call())).rejects.toThrow(StorageFailure);
  Object.assign(storage.forWorkers, { object });
  const own = parts();
  expect(await own.answerOf(1, call())).toMatchObject({ body: { first: 0 } });
  expect([reasons(), cancelled]).toEqual([[], []]);
  await own.close();
});

test.each<[string, RegExp, () => Promise<unknown>]>([
  ['a part that fails', /part 0 failed: FILE_UNREADABLE no/, async () => states.set(partId(partOf(plan, 0)), 'failed')],
  ['an object that is gone', /gone, or not what was written/, async () => rm(await done(0))],
  ['an object that was changed', /gone, or not what was written/, async () => writeFile(await done(0), 'PAR1')],
  ['a pointer that is gone', /is not there, or another's/, async () => done(0).then(() => pointers.clear())],
  ['vectors of other dimensions', /do not agree/, () => done(0, { dims: 8 })],
  [
    'a part that ends and leaves nothing',
    /ended 5 times/,
    async () => states.set(partId(partOf(plan, 0)), 'completed'),
  ],
  ['workers that went away', /without these folders, or there were none/, async () => undefined],
])('%s gives parts up: all lines are the caller’s, what waits is taken back', async (_, reason, make) => {
  await make();
  let givenUp = 0;
  const own = parts(undefined, async () => void givenUp++);
  expect(await answers(own)).toEqual(all.map(() => undefined));
  expect(reasons()).toEqual([expect.stringMatching(reason)]);
  expect([givenUp, cancelled]).toEqual([1, [0, 1].map((number) => partId(partOf(plan, number)))]);
});

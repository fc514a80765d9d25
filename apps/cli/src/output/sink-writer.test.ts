import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { MemoryStore } from '../testing/memory-sink.ts';
import { SINK_FORM, sinkConformance, sinkRow } from '../testing/sink-conformance.ts';
import { SkippedList } from './beside.ts';
import type { Block } from '@shoal/worker/files/row-form';
import { readRunState, type RunState } from './run-state.ts';
import { SinkWriter, type SinkWriterOptions } from './sink-writer.ts';
import type { FileTarget } from './target.ts';

sinkConformance('memory, for tests', async () => {
  const store = new MemoryStore();
  return {
    place: store.place,
    rows: async () => new Map([...store.rows].map(([id, { text, vector }]) => [id, { text, vector: [...vector] }])),
  };
});

const state: RunState = {
  v: 1,
  runId: 'r',
  request: { inputs: [], model: 'm@1', options: {} },
  rows: 0,
  position: 0,
  shard: 0,
  bytes: 0,
};

function block(from: number, to: number): Block {
  const rows = Array.from({ length: to - from }, (_, at) => sinkRow(from + at));
  return {
    records: rows.map(({ id, text }, at) => ({ id, text, index: from + at })),
    dims: 3,
    vectors: Float32Array.from(rows.flatMap(({ vector }) => [...vector])),
    position: to,
  };
}

describe('rows into a table', () => {
  let folder: string;
  let store: MemoryStore;
  let away: string[];
  let options: SinkWriterOptions;
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'shoal-sink-'));
    [store, away] = [new MemoryStore(), []];
    const path = join(folder, 'table');
    const target: FileTarget = {
      kind: 'file',
      name: 'memory://table',
      path,
      partial: `${path}.to`,
      state: `${path}.json`,
    };
    options = {
      place: store.place,
      form: SINK_FORM,
      target,
      skipped: new SkippedList(),
      isRepeatable: true,
      signal: new AbortController().signal,
      onAway: (problem) => away.push(problem),
      patienceMs: [0, 0],
    };
  });
  afterEach(() => rm(folder, { recursive: true }));

  test('come in batches; a store that goes away is waited for, and has each row once', async () => {
    const writer = await SinkWriter.open(options, state, false);
    store.failing = ['before', 'behind'];
    await writer.write(block(0, 700));
    await writer.write(block(700, 1_300));
    await writer.finish();
    expect([store.rows.size, store.writes, away]).toEqual([1_300, 5, ['memory is away', 'memory went away']]);
    expect(await readdir(folder)).toEqual([]);
  });

  test('stay where the store does not come back, and a later run goes on behind them', async () => {
    const writer = await SinkWriter.open(options, state, false);
    await writer.write(block(0, 512));
    store.failing = ['behind', 'before', 'before'];
    await expect(writer.write(block(512, 1_100))).rejects.toThrow('the same command goes on behind them');
    expect(await writer.abandon()).toEqual({ kind: 'kept', rows: 512, file: 'memory://table' });
    const kept = (await readRunState(options.target.state))!;
    expect([kept.rows, kept.position]).toEqual([512, 512]);
    const next = await SinkWriter.open(options, kept, true);
    await next.write(block(512, 1_100));
    await next.finish();
    expect([store.rows.size, next.counts]).toEqual([1_100, { added: 76, replaced: 512 }]);
  });
});

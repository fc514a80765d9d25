import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import type { Cell } from '@shoal/core';
import { CellList } from './cell-list.ts';
import { chooseCell, type CellLoad } from './choose-cell.ts';
import { PerCell } from './per-cell.ts';

const A = { name: 'a', address: 'redis://one:6379' };
const B = { name: 'b', address: 'redis://two:6379' };

function openFile(cells: unknown): { list: CellList; log: RecordingLogger; path: string; seen: (readonly Cell[])[] } {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-cells-'));
  const path = join(folder, 'cells.json');
  writeFileSync(path, JSON.stringify(cells));
  const log = new RecordingLogger();
  const list = new CellList({ cells: path, log, everyMs: 3_600_000 });
  const seen: (readonly Cell[])[] = [];
  list.onChange((now) => seen.push(now));
  onTestFinished(() => {
    list.close();
    rmSync(folder, { recursive: true });
  });
  return { list, log, path, seen };
}

test('a file that changes is in force once it was read, also where it was put in the place of another', async () => {
  const { list, path, seen } = openFile([A]);
  expect(list.cells).toEqual([A]);
  await list.readAgain();
  expect(seen).toEqual([]);
  writeFileSync(`${path}.new`, JSON.stringify([{ ...A, write: false }, B]));
  renameSync(`${path}.new`, path);
  await list.readAgain();
  expect(list.cells).toEqual([{ ...A, write: false }, B]);
  writeFileSync(
    path,
    JSON.stringify([
      { ...A, write: false },
      { ...B, write: true },
    ]),
  );
  await list.readAgain();
  expect(seen).toHaveLength(1); // "write": true says what is so anyhow
});

test.each<[string, string | undefined, string]>([
  ['is no JSON', '[{"name":"a","address":"redis://me:secret@one"', 'not valid JSON'],
  ['has one name twice', JSON.stringify([A, { ...B, name: 'a' }]), 'two cells are called "a"'],
  ['has an address that is none', JSON.stringify([{ name: 'a', address: 'redis://one/x' }]), 'redis://one'],
  ['is empty, as one that is being written', '', 'not valid JSON'],
  ['is huge', ' '.repeat(2 << 20), 'at most 1,048,576'],
  ['has a word where yes or no is wanted', JSON.stringify([{ ...A, write: 'no' }]), 'neither true nor false'],
  ['is gone', undefined, 'ENOENT'],
])('a file that %s leaves the list before in force, is told once, and heals', async (_, content, problem) => {
  const { list, log, path, seen } = openFile([A, B]);
  if (content === undefined) rmSync(path);
  else writeFileSync(path, content);
  await list.readAgain();
  await list.readAgain();
  expect(list.cells).toEqual([A, B]);
  const told = log.lines.filter(({ level }) => level === 'warn');
  expect(told).toHaveLength(1);
  expect(JSON.stringify(told)).toContain(problem.replaceAll('"', String.raw`\"`));
  expect(JSON.stringify(log.lines)).not.toContain('secret');
  writeFileSync(path, JSON.stringify([B]));
  await list.readAgain();
  expect(seen).toEqual([[B]]);
});

test('what is opened for each cell is there as long as its cell is listed at this address', async () => {
  const { path } = openFile([A, B]);
  const closed: string[] = [];
  const parts = new PerCell({ cells: path, everyMs: 5 }, ({ name, address }) => {
    return { address, close: async () => closed.push(name) };
  });
  const told = (): string[] => parts.all.map(({ cell, part }) => `${cell.name} ${part.address}`);
  expect(told()).toEqual(['a redis://one:6379', 'b redis://two:6379']);
  writeFileSync(
    path,
    JSON.stringify([
      { ...A, write: false },
      { ...B, address: 'redis://three:6379' },
    ]),
  );
  await expect.poll(told).toEqual(['a redis://one:6379', 'b redis://three:6379']);
  expect(closed).toEqual(['b']);
  await parts.close();
  expect(closed).toEqual(['b', 'a', 'b']);
});

test('a list that cannot be used at the start is refused', () => {
  expect(() => new CellList({ cells: '/nowhere/cells.json' })).toThrow('/nowhere/cells.json');
  expect(() => new CellList({ cells: [{ name: 'a', address: 'redis://h:1?ca=x' }] })).toThrow('"ca" is about TLS');
});

test('an id has the same two cells whatever the order of the list, and the emptier one gets it', () => {
  const names = ['a', 'b', 'c', 'd'];
  const empty = names.map((name) => ({ name, jobs: 0, workers: 1 }));
  const counts = new Map<string, number>();
  for (let at = 0; at < 400; at++) {
    const id = `job-${at}`;
    const first = chooseCell(empty, id)!;
    counts.set(first, (counts.get(first) ?? 0) + 1);
    expect(chooseCell(empty.toReversed(), id)).toBe(first);
    const second = chooseCell(
      empty.map((cell) => (cell.name === first ? { ...cell, jobs: 9 } : cell)),
      id,
    )!;
    expect(second).not.toBe(first);
    // however full both are, no third is looked at
    const full = empty.map((cell) => ([first, second].includes(cell.name) ? { ...cell, jobs: 1_000 } : cell));
    expect([first, second]).toContain(chooseCell(full, id));
    // one that is taken out moves nobody else's first
    const without = empty.filter(({ name }) => name !== second);
    expect(chooseCell(without, id)).toBe(first);
  }
  for (const name of names) expect(counts.get(name)).toBeGreaterThan(60);
});

test('jobs are counted for each worker, and a cell without any is passed over until the other is far fuller', () => {
  const ids = Array.from({ length: 50 }, (_, at) => `job-${at}`);
  expect(ids.map((id) => chooseCell(besideUnserved(500), id))).toEqual(ids.map(() => 'a'));
  expect(ids.map((id) => chooseCell(besideUnserved(5_000), id))).toEqual(ids.map(() => 'b'));
  expect(chooseCell([], 'x')).toBeUndefined();
});

test('where neither of the two has workers a job goes to a cell that has some, until that is far fuller', () => {
  const ids = Array.from({ length: 50 }, (_, at) => `job-${at}`);
  expect(new Set(ids.map((id) => chooseCell(aloneServed(40), id)))).toEqual(new Set(['a']));
  expect(ids.map((id) => chooseCell(aloneServed(500), id))).not.toContain('a');
  const none = aloneServed(0).map((cell) => ({ ...cell, workers: 0 }));
  expect(new Set(ids.map((id) => chooseCell(none, id))).size).toBe(4);
});

test('of two that are about as full a producer takes the one in which it has less itself, else the emptier one', () => {
  const ids = Array.from({ length: 20 }, (_, at) => `job-${at}`);
  const chosen = (a: number, b: number): ReadonlySet<string | undefined> => {
    const two = [
      { name: 'a', jobs: a, open: 5, workers: 2 },
      { name: 'b', jobs: b, open: 4, workers: 2 },
    ];
    return new Set(ids.map((id) => chooseCell(two, id)));
  };
  expect(chosen(300, 590)).toEqual(new Set(['b']));
  expect(chosen(300, 610)).toEqual(new Set(['a']));
  expect(chosen(0, 0)).toEqual(new Set(['b']));
});

/** The other has ten jobs and no worker. */
function besideUnserved(jobs: number): readonly CellLoad[] {
  return [
    { name: 'a', jobs, workers: 1 },
    { name: 'b', jobs: 10, workers: 0 },
  ];
}

/** Of four cells the first one has a worker. */
function aloneServed(jobs: number): readonly CellLoad[] {
  return ['a', 'b', 'c', 'd'].map((name) => ({ name, jobs: name === 'a' ? jobs : 0, workers: name === 'a' ? 1 : 0 }));
}

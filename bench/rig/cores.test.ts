import { expect, test } from 'vitest';
import { placesOf } from '../queue/cells-places.ts';
import { cpusIn } from './cores.ts';
import { siblingsFound } from './siblings.ts';

test('a list of processors is read as Linux writes it', () => {
  expect(cpusIn('0-3,8,10-11\n')).toEqual([0, 1, 2, 3, 8, 10, 11]);
  expect(cpusIn('')).toEqual([]);
});

test.each([
  ['next to each other', (cpu: number) => cpu ^ 1],
  ['far from each other', (cpu: number) => (cpu + 8) % 16],
  ['nobody shares a core', () => -1],
])('processors that slow each other down are threads of one core: %s', async (_, other) => {
  const cpus = Array.from({ length: 16 }, (__, cpu) => cpu);
  const cores = await siblingsFound(cpus, async ([first = 0, ...more]) => (more.includes(other(first)) ? 60 : 100));
  expect(cores.flat().toSorted((a, b) => a - b)).toEqual(cpus);
  for (const [cpu = 0, ...more] of cores) expect(more).toEqual(other(cpu) < 0 ? [] : [other(cpu)]);
});

test('a command thread has a core for itself, and no processor is given twice', () => {
  const cores = Array.from({ length: 16 }, (_, at) => [at, at + 16]);
  const { commands, workers, producers, harness, clock } = placesOf(cores, 4)!;
  expect(commands).toEqual([0, 2, 4, 6]);
  const others = [...workers.flat(), ...producers, harness, clock];
  expect(new Set([...commands, ...others]).size).toBe(commands.length + others.length);
  for (const cpu of commands) expect(others).not.toContain(cpu + 16);
  expect(placesOf(cores.slice(0, 9), 4)).toBeUndefined();
});

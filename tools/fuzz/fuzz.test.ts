// Every reader meets some damaged files with every test run, the same ones each time, and 600 new ones at night. And
// the fuzzer itself notices whatever a reader may not do.

import { afterAll, describe, expect, test } from 'vitest';
import { BROKEN_READERS } from './broken-readers.ts';
import { Dice } from './dice.ts';
import { caseOf, fuzz } from './fuzz.ts';
import { KeptProcess } from './kept-process.ts';
import { LIMITS } from './limits.ts';
import { READERS } from './readers.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const seed = isNightly ? Date.now() % 2 ** 31 : 34;
const cases = isNightly ? 600 : 40;
const hardCharacters = isNightly ? 30_000 : 300;
if (isNightly) console.log(`fuzzing every reader with seed ${seed}`);

const kept = new KeptProcess(LIMITS);
afterAll(() => kept.stop());

test.for(READERS)(
  '$name: damaged files are refused by code, or read as a second reader reads them',
  async (reader, { signal }) => {
    const { findings, refused, equal, undecided } = await fuzz(reader, kept, { seed, cases, hardCharacters, signal });
    if (isNightly) console.log(`${reader.name}: ${refused} refused, ${equal} compared equal, ${undecided} undecided`);
    expect(findings.map(({ number, what }) => `${replay(reader.name, number)}: ${what}`)).toEqual([]);
    // a second reader that knows sound files alone has read these before, or nothing of this were reached
    expect(equal).toBeGreaterThanOrEqual((reader.mostUndecided ?? 0) < 1 ? 1 : 0);
    expect(undecided).toBeLessThanOrEqual(Math.max(1, cases * (reader.mostUndecided ?? 0.02)));
  },
);

function replay(name: string, number: number): string {
  return `node --conditions=@shoal/source tools/fuzz/main.ts --reader ${name} --seed ${seed} --from ${number} --cases 1`;
}

describe('a fuzzer', () => {
  const strict = new KeptProcess({ clockMs: 1_000, memoryBytes: 2 ** 28 });
  afterAll(() => strict.stop());

  test.each([
    ['ends the process', /the process ended: exit 3/],
    ['never answers', /no answer in time/],
    ['takes memory', /MiB more memory/],
    ['throws what has no code', /an error without a code: RangeError: out of range/],
    ['throws a code that is not its own', /refused with RESULT_TAKEN: gone/],
    ['says too much', /a message of 200000 characters/],
    ['reads other values', /a second reader finds other values in it/],
    ['reads what is damaged', /a second reader finds it damaged/],
    ['refuses what is sound', /a sound file is refused: no/],
  ])('finds a reader that %s, and goes on with the next', async (harm, what) => {
    const reader = BROKEN_READERS.find(({ name }) => name === `broken: ${harm}`)!;
    const { findings } = await fuzz(reader, strict, { seed: 1, cases: 50, mostFindings: 1 });
    expect(findings.map((finding) => finding.what)).toEqual([expect.stringMatching(what)]);
    const after = await fuzz(READERS[0]!, strict, { seed: 1, cases: 2 });
    expect(after.findings).toEqual([]);
  });

  test('does not begin where the second reader cannot tell what a sound file holds', async () => {
    const reader = BROKEN_READERS.find(({ name }) => name === 'broken: nobody can tell')!;
    await expect(fuzz(reader, strict, { seed: 1, cases: 1 })).rejects.toThrow('cannot tell what sound file 0 holds');
  });

  test('counts what was refused, compared equal and left undecided', async () => {
    const reader = READERS.find(({ name }) => name === 'arrow')!;
    const { refused, equal, undecided, findings } = await fuzz(reader, strict, { seed: 1, cases: 30 });
    expect(findings).toEqual([]);
    expect(refused + equal + undecided).toBe(30);
    expect(Math.min(refused, equal)).toBeGreaterThan(0);
  });

  test('makes the same case from the same seed, and another from another', async () => {
    const [reader] = READERS;
    const seeds = await reader!.seeds();
    const made = (from: number): string =>
      Array.from({ length: 20 }, (_, number) => caseOf(reader!, seeds, from, number).toString('hex')).join();
    expect(made(7)).toBe(made(7));
    expect(made(7)).not.toBe(made(8));
    expect(new Dice(1, 2).below(1e9)).not.toBe(new Dice(2, 1).below(1e9));
  });

  test('cuts every sound file at every length', async () => {
    const seeds = [Buffer.from('abc'), Buffer.from('xy')];
    const cut = Array.from({ length: 8 }, (_, at) => caseOf(READERS[0]!, seeds, 1, 8 * at).toString());
    expect(new Set(cut)).toEqual(new Set(['', 'a', 'ab', 'abc', 'x', 'xy']));
  });
});

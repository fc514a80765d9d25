import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { MAX_VALUE, firstIncomparable } from '@shoal/contract';
import { createCollection, openCollection } from '../collections/collections.ts';
import { openKernels } from './kernels.ts';
import { nativeAddon, nativeProblem } from './native-addon.ts';
import { describedRows } from './native-engine.ts';
import { METRICS, matrixOf, rowsOf, type RowBlock } from './vectors.ts';

const root = fileURLToPath(new URL('../../../../', import.meta.url));
const script = join(root, 'native/similarity/build.sh');
const hasCompiler = spawnSync('sh', ['-c', 'command -v "${CXX:-c++}"']).status === 0;
if (!hasCompiler) console.warn('there is no C++ compiler: the kernels are not tested by themselves');

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-native-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

test.skipIf(!hasCompiler)('the kernels pass their own test, without Node', () => {
  const { stdout, stderr, status } = spawnSync('sh', [script, 'test', '40'], { encoding: 'utf8' });
  expect([stdout, stderr, status]).toEqual([
    expect.stringMatching(/^40 cases, seed \d+, instruction sets: .*\n40 cases passed\n$/),
    '',
    0,
  ]);
});

test('where there is no compiler, the build says so and nothing else', () => {
  const bin = join(folder, 'bin');
  mkdirSync(bin);
  for (const tool of ['sh', 'dirname', 'pwd', 'mkdir', 'uname', 'find', 'head'])
    symlinkSync(
      spawnSync('sh', ['-c', `command -v ${tool}`], { encoding: 'utf8' }).stdout.trim() || '/bin/true',
      join(bin, tool),
    );
  const environment = { PATH: bin };
  expect(spawnSync(join(bin, 'sh'), [script, 'addon'], { encoding: 'utf8', env: environment })).toMatchObject({
    status: 3,
    stderr: 'build.sh: no C++ compiler (c++)\n',
  });
});

test('without the native code every test passes in plain code', () => {
  // Loading the addon is what fails where it was not built, or was built for another system.
  const hide = join(folder, 'hide.mjs');
  writeFileSync(
    hide,
    'const load = process.dlopen; process.dlopen = (module, path, ...rest) => { if ' +
      `(path.endsWith('similarity.node')) throw new Error('hidden'); return load(module, path, ...rest); };`,
  );
  const { stdout, stderr, status } = spawnSync(
    process.execPath,
    [
      '--conditions=@shoal/source',
      join(root, 'node_modules/vitest/vitest.mjs'),
      'run',
      '--reporter=verbose',
      'libs/similarity/src/engines/kernels',
      'libs/similarity/src/collections/',
    ],
    {
      // verbose: the name of a suite is else printed where one of its tests is slow
      cwd: root,
      encoding: 'utf8',
      env: { ...process.env, NODE_OPTIONS: `--import=${hide}`, SHOAL_TEST_CASES: '100', NO_COLOR: '1' },
    },
  );
  expect(`${stdout}${stderr}`).toContain('hidden');
  expect(`${stdout}${stderr}`).toMatch(/plain: 100 cases/);
  expect(status, `${stdout}${stderr}`).toBe(0);
});

test(
  'a mapped collection that is cut within its last page, where the system says nothing and gives zeros, gets no ' +
    'answer',
  async () => {
    if (nativeAddon() === undefined) return console.warn(`not mapped here, so nothing can be cut: ${nativeProblem()}`);
    const vectors = Float32Array.from({ length: 40 * 16 }, (_, i) => ((i * 37) % 101) - 50);
    const { path, bytes } = await createCollection(folder, 'docs', [{ dims: 16, vectors }]);
    const collection = await openCollection(folder, 'docs');
    const search = () =>
      openKernels().topK(matrixOf(vectors.slice(0, 16), 16), collection.block, { k: 3, metric: 'dot' });
    expect((await search()).found).toEqual(Uint32Array.of(3));
    truncateSync(path, bytes - 1);
    await expect(search()).rejects.toMatchObject({ code: 'COLLECTION_CORRUPT' });
    expect(() => collection.checkIntact()).toThrow('it was cut while it was open');
  },
);

test('values are looked at as in plain code, wherever the first that is too large stands', () => {
  if (nativeAddon() === undefined) return console.warn(`nothing is looked at in native code here: ${nativeProblem()}`);
  const least = Math.fround(MAX_VALUE); // in fp32 a little more than MAX_VALUE
  const largest = new Float32Array(new Int32Array([new Int32Array(Float32Array.of(least).buffer)[0]! - 1]).buffer)[0]!;
  for (const [value, isWithin] of [
    [0, true],
    [-1e-45, true],
    [largest, true],
    [-largest, true],
    [least, false],
    [-least, false],
    [1e17, false],
    [Infinity, false],
    [-Infinity, false],
    [NaN, false],
    [-NaN, false],
  ] as const) {
    for (let length = 1; length <= 40; length++) {
      for (let at = 0; at < length; at++) {
        const values = new Float32Array(length + 1).fill(-1).subarray(1); // not on a cache line
        values[at] = value;
        if (
          nativeAddon()!.allWithin(values, MAX_VALUE) !== isWithin ||
          (firstIncomparable(values) === undefined) !== isWithin
        )
          throw new Error(`${value} at ${at} of ${length}`);
      }
    }
  }
  expect(nativeAddon()!.allWithin(new Float32Array(), MAX_VALUE)).toBe(true);
});

function onesOf(rows: number): RowBlock {
  return rowsOf(matrixOf(new Float32Array(rows * 16).fill(1), 16));
}

/** Of rows of 16 ones each score is 16. Gives the last one as it is when the call has returned, and when it is done. */
async function scoresAsked(
  threads: number,
  rows: RowBlock,
): Promise<{ readonly last: number; readonly lastAfterwards: number }> {
  const scores = new Float32Array(rows.rows);
  const done = nativeAddon()!.matrix(
    0,
    threads,
    ...describedRows(rows, null, 0),
    new Float32Array(16).fill(1),
    1,
    METRICS.indexOf('dot'),
    scores,
    new Uint8Array(1),
  );
  const last = scores.at(-1)!;
  await done;
  return { last, lastAfterwards: scores.at(-1)! };
}

/** Every thread of libuv has work for 50 ms and more work waits. Says how much of it is done. */
function keepThreadsBusy(): { readonly done: () => number; readonly all: Promise<unknown> } {
  let done = 0;
  const all = Promise.all(
    Array.from({ length: 8 }, () =>
      nativeAddon()!
        .peak(0, 1, new Float64Array(1))
        .then(() => done++),
    ),
  );
  return { done: () => done, all };
}

test(
  'asked for no thread, a call has its answer when it returns; where it might wait for a disk it does not, and ' +
    'is done elsewhere',
  async () => {
    if (nativeAddon() === undefined) return console.warn(`nothing is computed in native code here: ${nativeProblem()}`);
    const mapped = (rows: number): RowBlock => {
      const path = join(folder, `ones-${rows}`);
      writeFileSync(path, onesOf(rows).data);
      return { ...onesOf(rows), data: new Uint8Array(nativeAddon()!.mapFile(path)) };
    };
    const [little, much] = [mapped(20), mapped(200_000)]; // 13 MB are not looked for in memory
    const busy = keepThreadsBusy();
    expect(await scoresAsked(0, onesOf(20))).toEqual({ last: 16, lastAfterwards: 16 });
    expect(await scoresAsked(0, little)).toEqual({ last: 16, lastAfterwards: 16 });
    expect(busy.done()).toBe(0);
    expect(await Promise.all([scoresAsked(0, much), scoresAsked(1, onesOf(20))])).toEqual([
      { last: 0, lastAfterwards: 16 },
      { last: 0, lastAfterwards: 16 },
    ]);
    await busy.all;
  },
);

test('one little call after the other leaves the event loop its turns', async () => {
  if (nativeAddon() === undefined) return console.warn(`nothing is computed in native code here: ${nativeProblem()}`);
  const kernels = openKernels();
  const values = Float32Array.from({ length: 100 * 16 }, (_, i) => Math.sin(i));
  const [query, rows] = [matrixOf(values.slice(0, 16), 16), rowsOf(matrixOf(values, 16))];
  let calls = 0;
  let turnAt: number | undefined;
  setImmediate(() => (turnAt = calls));
  for (; calls < 1_000; calls++) await kernels.topK(query, rows, { k: 1, metric: 'cosine' });
  expect(turnAt).toBeLessThan(500);
});

test('what is little waits for no thread that is busy', async () => {
  if (nativeAddon() === undefined) return console.warn(`nothing is computed in native code here: ${nativeProblem()}`);
  const values = Float32Array.from({ length: 100 * 16 }, (_, i) => Math.sin(i));
  const busy = keepThreadsBusy();
  const found = await openKernels().topK(matrixOf(values.slice(0, 16), 16), rowsOf(matrixOf(values, 16)), {
    k: 1,
    metric: 'cosine',
  });
  expect([[...found.ids], busy.done()]).toEqual([[0n], 0]);
  await busy.all;
});

// The interface of the addon under arguments that nobody should pass: each call is computed or throws, and none takes
// the process with it. By night with new seeds, and once more with the addon built for AddressSanitizer.

import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { nativeAddon, nativeProblem } from './native-addon.ts';

const ROOT = fileURLToPath(new URL('../../../../', import.meta.url));
const LIBRARY = join(ROOT, 'dist/native/similarity/similarity.node');
const MAIN = fileURLToPath(new URL('../testing/call-addon-main.ts', import.meta.url));
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';

const addon = nativeAddon();
if (addon === undefined) console.log(`the addon's arguments are not tried: ${nativeProblem()}`);

function calls(library: string, seed: number, count: number, environment: Readonly<Record<string, string>> = {}) {
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, [MAIN, library, String(seed), String(count)], {
    env: { ...process.env, ...environment },
    encoding: 'utf8',
    timeout: 120_000,
  });
  return { seed, status, signal, stdout, stderr: status === 0 ? '' : stderr.slice(-4_000) };
}

const well = (seed: number) => ({ seed, status: 0, signal: null, stdout: 'done', stderr: '' });

test.skipIf(addon === undefined)('whatever is passed to the addon is computed or thrown, and nothing crashes', () => {
  const seeds = isNightly ? Array.from({ length: 40 }, () => Math.floor(Math.random() * 2 ** 31)) : [3, 7, 8];
  for (const seed of seeds) expect(calls(LIBRARY, seed, 1_500)).toEqual(well(seed));
});

test.skipIf(addon === undefined)('what is missing or cannot be is a TypeError or a RangeError with its place', () => {
  const { lengths, peak, topK, spread } = addon! as unknown as Record<string, (...args: unknown[]) => unknown>;
  const rows = [new Uint8Array(16), 2, 2, 8, 0, null, 1];
  expect(() => peak!(0, 1)).toThrow(new TypeError('argument 2 is not a typed array'));
  expect(() => peak!(99, 1, new Float64Array(1))).toThrow(RangeError);
  expect(() => lengths!(0, 1, new Uint8Array(16), Number.NaN, 2, 8, 0, null, 1, new Float64Array(2))).toThrow(
    RangeError,
  );
  expect(() => lengths!(0, 1, ...rows, new Float64Array(1))).toThrow('argument 9 is not a typed array of that length');
  expect(() => lengths!(0, 1, ...rows, new Float32Array(2))).toThrow('argument 9 is not a typed array of that kind');
  const best = [new Uint32Array(2), null, new Uint8Array(1)];
  expect(() => topK!(0, 1, ...rows, new Float32Array(2), 1, 0, 1, ...best)).toThrow(
    new TypeError('argument 14 is not a typed array'),
  );
  expect(() => spread!(0, 0, 0, new Uint32Array(1), null, null, 1, 0, 1, 0.5, 0, null, null, null)).toThrow(RangeError);
});

test.skipIf(addon === undefined)('an edge from no node is an error and not a read beyond the graph', async () => {
  const begin = Uint32Array.of(0, 1);
  const [source, weight] = [Uint32Array.of(7), Float32Array.of(1)];
  const [activation, scratch, stop] = [new Float32Array(1), new Float32Array(2), new Uint8Array(1)];
  const asked = addon!.spread(0, 1, 1, begin, source, weight, 1, 0, 2, 0.5, 0, activation, scratch, stop);
  await expect(asked).rejects.toMatchObject({ code: 'INVALID', message: 'an edge comes from no node' });
});

const why = isNightly ? noSanitizer() : 'it is tried by night (SHOAL_TEST_NIGHTLY=1)';
if (why !== undefined) console.log(`the addon is not tried under AddressSanitizer: ${why}`);

function noSanitizer(): string | undefined {
  try {
    const library = execFileSync('g++', ['-print-file-name=libasan.so'], { encoding: 'utf8' }).trim();
    return existsSync(library) ? undefined : 'g++ has no libasan.so';
  } catch (error) {
    return `there is no g++ (${(error as Error).message})`;
  }
}

test.skipIf(why !== undefined)('under AddressSanitizer no call reads or writes beyond its arguments', () => {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-asan-'));
  try {
    const compiler = join(folder, 'g++-asan');
    // GCC's libraries as they are: what is linked into the addon is not the one that the sanitizer replaces.
    const flags = '-fsanitize=address -fno-omit-frame-pointer -g';
    writeFileSync(compiler, `#!/bin/sh\nexec g++ ${flags} "$@"\n`, { mode: 0o755 });
    execFileSync('sh', [join(ROOT, 'native/similarity/build.sh'), 'addon'], {
      env: { ...process.env, CXX: compiler, SHOAL_NATIVE_OUT: folder },
      stdio: 'pipe',
    });
    const preload = execFileSync('g++', ['-print-file-name=libasan.so'], { encoding: 'utf8' }).trim();
    const environment = { LD_PRELOAD: preload, ASAN_OPTIONS: 'detect_leaks=0' };
    for (let turn = 0; turn < 10; turn++) {
      const seed = Math.floor(Math.random() * 2 ** 31);
      expect(calls(join(folder, 'similarity.node'), seed, 1_000, environment)).toEqual(well(seed));
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

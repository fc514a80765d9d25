// The interface of the encoder's addon under arguments that nobody should pass, over the reference encoder, which needs
// no GPU: each call is computed, refused or thrown, each promise settled, and none takes the process with it. By night
// with new seeds, and once more with addon and reference built for AddressSanitizer. What the CUDA library does with
// checked arguments is the business of encoder_test.cc.

import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { encoderAddon, ENCODER_LIBRARIES, type EncoderAddon } from './encoder-addon.ts';
import { buildReferenceEncoder } from './testing.ts';

const BUILD = fileURLToPath(new URL('../../../native/encoder/build.sh', import.meta.url));
const BUILT = fileURLToPath(new URL('../../../dist/native/encoder/', import.meta.url));
const MAIN = fileURLToPath(new URL('testing/call-encoder-main.ts', import.meta.url));
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';
const canBuild = buildReferenceEncoder("what the encoder's addon does with odd arguments");

function calls(folder: string, seed: number, encoders: number, environment: Readonly<Record<string, string>> = {}) {
  const files = ['encoder.node', 'libshoal_encoder_reference.so'].map((name) => join(folder, name));
  const { status, signal, stdout, stderr } = spawnSync(
    process.execPath,
    [MAIN, ...files, String(seed), String(encoders)],
    { env: { ...process.env, ...environment }, encoding: 'utf8', timeout: 120_000 },
  );
  return { seed, status, signal, stdout, stderr: status === 0 ? '' : stderr.slice(-4_000) };
}

function weights(length: number, count = 21): readonly Float32Array[] {
  return Array.from({ length: count }, () => new Float32Array(length).fill(0.01));
}

const well = (seed: number) => ({ seed, status: 0, signal: null, stdout: 'done', stderr: '' });

test.skipIf(!canBuild)('whatever is passed is computed, refused or thrown, and every promise is settled', () => {
  const seeds = isNightly ? Array.from({ length: 40 }, () => 1 + Math.floor(Math.random() * 2 ** 30)) : [3, 7];
  for (const seed of seeds) expect(calls(BUILT, seed, 40)).toEqual(well(seed));
});

test.skipIf(!canBuild)('what the library would read or write beyond an array is refused by its place', async () => {
  const addon = encoderAddon()! as EncoderAddon;
  const encoder = addon.encoder(ENCODER_LIBRARIES.reference);
  const sizes = Float64Array.of(32, 1, 1, 64, 10, 16, 1e-12, 0, 1, 0, 0, 1, 0);
  const room = [new Int32Array(2), new Int32Array(2).fill(1), new Float32Array(2), 2, 1, false] as const;
  expect(() => addon.open(encoder, sizes, weights(1), 0)).toThrow('argument 2 is not a typed array of that length');
  expect(() => addon.open(encoder, sizes, weights(2_048, 20), 0)).toThrow('argument 2 is not as many arrays');
  expect(() => addon.run(encoder, ...room)).toThrow('argument 0 is not an encoder that is open');
  await addon.open(encoder, sizes, weights(2_048), 0);
  expect(() => addon.open(encoder, sizes, weights(2_048), 0)).toThrow('an encoder that was not opened before');
  expect(() => addon.run(encoder, ...room)).toThrow('argument 3 is not a typed array of that length');
  await addon.close(encoder);
  for (const late of [() => addon.close(encoder), () => addon.shrink(encoder), () => addon.run(encoder, ...room)])
    expect(late).toThrow(RangeError);
});

test.skipIf(!canBuild)('an encoder that could not be opened says so to whoever asks, and closes', async () => {
  const addon = encoderAddon()!;
  const encoder = addon.encoder(ENCODER_LIBRARIES.reference);
  const opening = addon.open(encoder, Float64Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0), weights(1, 5), 0);
  const running = addon.run(encoder, new Int32Array(1), new Int32Array(1), new Float32Array(1), 1, 1, false);
  await expect(opening).rejects.toMatchObject({ status: 3 });
  await expect(running).rejects.toMatchObject({ status: 3, message: 'the encoder could not be opened' });
  await addon.close(encoder);
});

const why = isNightly ? noSanitizer() : 'it is tried by night (SHOAL_TEST_NIGHTLY=1)';
if (why !== undefined) console.log(`the encoder's addon is not tried under AddressSanitizer: ${why}`);

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
    writeFileSync(compiler, '#!/bin/sh\nexec g++ -fsanitize=address -fno-omit-frame-pointer -g "$@"\n', {
      mode: 0o755,
    });
    for (const part of ['addon', 'reference'])
      execFileSync('sh', [BUILD, part], {
        env: { ...process.env, CXX: compiler, SHOAL_ENCODER_OUT: folder },
        stdio: 'pipe',
      });
    const preload = execFileSync('g++', ['-print-file-name=libasan.so'], { encoding: 'utf8' }).trim();
    const environment = { LD_PRELOAD: preload, ASAN_OPTIONS: 'detect_leaks=0' };
    for (let turn = 0; turn < 10; turn++) {
      const seed = 1 + Math.floor(Math.random() * 2 ** 30);
      expect(calls(folder, seed, 40, environment)).toEqual(well(seed));
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

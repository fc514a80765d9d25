// The CUDA library of native/encoder, compiled for one architecture with the compiler that is here or fetched,
// opened through the addon and asked for devices: without a driver it has to say so in a line.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { cacheFolder } from '@shoal/core';
import { nativeEncoderProblem } from '@shoal/inference';
import { nvccProblem } from './fetch-nvcc.ts';

const PROJECT = join(import.meta.dirname, '..');
/** 30 s of CPU; several times that on two busy cores. */
const MINUTES = 60_000;

function build(part: string, environment = {}): ReturnType<typeof spawnSync> {
  return spawnSync('sh', ['native/encoder/build.sh', part], {
    cwd: PROJECT,
    encoding: 'utf8',
    env: { ...process.env, ARCH: '80', SHOAL_CACHE_DIR: cacheFolder(process.env['SHOAL_CACHE_DIR']), ...environment },
  });
}

test(
  'the native encoder compiles without cuBLAS, opens without a driver, and says when there is no device',
  async ({ skip }) => {
    if (process.env['SHOAL_TEST_NIGHTLY'] === undefined) skip('half a minute of nvcc is for SHOAL_TEST_NIGHTLY=1');
    const absence = await nvccProblem(cacheFolder(process.env['SHOAL_CACHE_DIR']));
    if (absence !== undefined) skip(absence);
    const out = mkdtempSync(join(tmpdir(), 'shoal-encoder-cuda-'));
    try {
      const [addon, cuda] = [build('addon'), build('cuda', { SHOAL_ENCODER_OUT: out })];
      if (addon.status === 3 || cuda.status === 3)
        skip(`a compiler is missing: ${String(addon.stderr)}${String(cuda.stderr)}`);
      expect([addon.status, cuda.status]).toEqual([0, 0]);
      const problem = nativeEncoderProblem(join(out, 'libshoal_encoder.so'));
      expect(problem ?? 'the native encoder finds no device: one is here, and is found').toMatch(
        /^the native encoder finds no device: [^\n]+$/,
      );
    } finally {
      rmSync(out, { recursive: true, force: true });
    }
  },
  10 * MINUTES,
);

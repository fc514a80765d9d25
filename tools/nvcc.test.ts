// The CUDA library of native/similarity, compiled for the oldest architecture with the compiler that is here or fetched,
// linked to its test, and asked for devices: without a driver it has to say so, and with a GPU, which every architecture
// is compiled for, the test has to pass. Of Hopper's own instructions the one file is compiled that needs them. Needs a
// C++ compiler, and prints why where there is none.

import { spawnSync } from 'node:child_process';
import { accessSync, constants, existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { cacheFolder } from '@shoal/core';
import { nvccProblem } from './fetch-nvcc.ts';

const PROJECT = join(import.meta.dirname, '..');
/**
 * Compiling for all seven architectures takes 6.3 minutes of CPU, eleven minutes on two busy cores (2026-11-22): `sh
 * native/similarity/build.sh cuda` does.
 */
const MINUTES = 60_000;
/** Every architecture at night and beside a GPU: the oldest alone takes a minute of CPU (2026-11-26). */
const isWhole = process.env['SHOAL_TEST_NIGHTLY'] !== undefined || existsSync('/dev/nvidiactl');
const ARCHES = isWhole ? '75 80 86 89 90a 100 120' : '75';
const HOPPER = 'native/similarity/cuda/search/coarse_hopper.cu';
const out = mkdtempSync(join(tmpdir(), 'shoal-cuda-'));
afterAll(() => rmSync(out, { recursive: true, force: true }));

function isOnPath(tool: string): boolean {
  return (process.env['PATH'] ?? '').split(delimiter).some((folder) => {
    try {
      accessSync(join(folder, tool), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

function sh(
  args: readonly string[],
  arches = ARCHES,
): { readonly status: number | null; readonly stdout: string; readonly stderr: string } {
  return spawnSync('sh', [...args], {
    cwd: PROJECT,
    encoding: 'utf8',
    env: {
      ...process.env,
      ARCHES: arches,
      SHOAL_NATIVE_OUT: out,
      SHOAL_CACHE_DIR: cacheFolder(process.env['SHOAL_CACHE_DIR']),
    },
  });
}

test(
  'the CUDA library compiles for the oldest architecture and its kernel for Hopper, and says when there is no device',
  async ({ skip }) => {
    const compiler = process.env['CXX'] ?? 'c++';
    if (!isOnPath(compiler) && !compiler.startsWith('/')) skip(`there is no C++ compiler (${compiler})`);
    const problem = await nvccProblem(cacheFolder(process.env['SHOAL_CACHE_DIR']));
    if (problem !== undefined) skip(problem);
    // Compiled once for these sources, this compiler and these architectures; what comes out is tested every time.
    const compilers = spawnSync('sh', ['tools/nvcc.sh', '--version'], { cwd: PROJECT, encoding: 'utf8' }).stdout;
    const isKept = sh(['tools/native-cache.sh', 'restore', 'similarity', out, ARCHES, compilers]).status === 0;
    const isDone = isKept || isWhole;
    const hopper = isDone ? { status: 0 } : sh(['tools/nvcc.sh', '-c', HOPPER, '-o', join(out, 'hopper.o')], '90a');
    expect(hopper).toMatchObject({ status: 0 });
    const built = sh(['native/similarity/build.sh', 'cuda']);
    expect(built).toMatchObject({ status: 0, stdout: expect.stringMatching(/similarity_cuda\.so\n$/) as string });
    const linked = spawnSync('ldd', [built.stdout.trim()], { encoding: 'utf8' });
    expect(linked.stdout ?? '').not.toMatch(/cuda(rt)?\.so|cublas|nvrtc/); // there may be no ldd
    const tested = sh(['native/similarity/build.sh', 'cuda-test', '50']);
    if (!isKept && tested.status === 0) sh(['tools/native-cache.sh', 'keep', 'similarity', out, ARCHES, compilers]);
    expect(tested).toMatchObject({ status: 0, stdout: expect.stringMatching(/^no device: .+|\nOK\n$/) as string });
  },
  40 * MINUTES,
);

test('without a CUDA compiler, building the library is refused with what to do', () => {
  const nowhere = spawnSync('/bin/sh', ['tools/nvcc.sh', '--where'], {
    cwd: PROJECT,
    encoding: 'utf8',
    env: { PATH: '/nonexistent', SHOAL_CACHE_DIR: '/nonexistent' },
  });
  expect(nowhere).toMatchObject({ status: 3, stdout: '' });
  expect(nowhere.stderr).toContain('npm run fetch-nvcc');
});

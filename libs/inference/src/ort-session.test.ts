// What a session ran on is read from the runtime's own trace, and a provider that is not there is said to be missing by
// name.

import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Tensor } from 'onnxruntime-node';
import { afterAll, describe, expect, test } from 'vitest';
import { openGraph, openModel, writeTinyModel } from '@shoal/models';
import { OrtBackend } from './ort-backend.ts';
import { openSession, openTracedSession } from './ort-session.ts';
import { readTrace, strays } from './ort-trace.ts';
import { CUDA_PROVIDER_FILES, cudaProviderProblem, installedRuntime, missingLibraries } from './provider.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-session-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

const isCudaThere = (await cudaProviderProblem()) === undefined;

async function tinyGraph(): Promise<{ graphPath: string; dims: number }> {
  const model = await openModel('tiny-random', { cacheDir });
  return { graphPath: await openGraph(model, { cacheDir, kind: 'fused-fp16' }), dims: model.dims };
}

describe('the trace of a first run', () => {
  test('says where the work was done, and leaves no file behind', async () => {
    const before = readdirSync(tmpdir()).filter((name) => name.startsWith('shoal-trace-'));
    const { session, nodes } = await openTracedSession({ ...(await tinyGraph()), provider: 'cpu', threads: 1 });
    expect(strays(nodes, 'CPUExecutionProvider')).toEqual([]);
    expect(strays(nodes, 'CUDAExecutionProvider')).toEqual(
      expect.arrayContaining(['MatMul on CPUExecutionProvider', 'Attention on CPUExecutionProvider']),
    );
    expect(Math.max(...nodes.map(({ inUsePeakBytes }) => inUsePeakBytes))).toBeGreaterThan(0);
    expect(readdirSync(tmpdir()).filter((name) => name.startsWith('shoal-trace-'))).toEqual(before);
    await session.release();
  });

  test('without any work proves nothing', () => {
    expect(strays([], 'CPUExecutionProvider')).toBeUndefined();
    expect(
      strays(
        [
          {
            operator: 'Shape',
            name: 's',
            provider: 'CUDAExecutionProvider',
            microseconds: 1,
            inUseBytes: 0,
            inUsePeakBytes: 0,
            heldBytes: 0,
          },
        ],
        'CUDAExecutionProvider',
      ),
    ).toBeUndefined();
  });
});

/** Bytes that live at most during one run of this shape beside what the open graph holds, by the runtime's trace. */
async function liveBytes(graphPath: string, rows: number, width: number): Promise<number> {
  const folder = mkdtempSync(join(cacheDir, 'trace-'));
  const session = await openSession({ graphPath, provider: 'cpu', threads: 1 }, folder);
  await session.run({
    input_ids: new Tensor('int32', new Int32Array(rows * width).fill(7), [rows, width]),
    lengths: new Tensor('int32', new Int32Array(rows).fill(width), [rows]),
  });
  session.endProfiling();
  await session.release();
  const nodes = readTrace(readFileSync(join(folder, readdirSync(folder)[0]!), 'utf8'));
  const atRest = Math.min(...nodes.map(({ inUseBytes }) => inUseBytes));
  return Math.max(...nodes.map(({ inUsePeakBytes }) => inUsePeakBytes)) - atRest;
}

test(
  'the fused graph in fp16, whose sizes have no names, keeps no buffer alive for the next layer: it lives on less ' +
    'than the one in fp32, even where it is computed in fp32',
  async () => {
    const model = await writeTinyModel(join(cacheDir, 'wide'), { hidden: 256, heads: 8, layers: 2, seed: 11 });
    const [half, full] = await Promise.all(
      (['fused-fp16', 'fused-fp32'] as const).map(async (kind) =>
        liveBytes(await openGraph(model, { cacheDir, kind }), 32, 64),
      ),
    );
    expect(half! / full!).toBeLessThan(0.85);
  },
);

test.runIf(!isCudaThere)(
  'a backend on CUDA is refused where there is none, and is not served by the CPU instead',
  async () => {
    await expect(
      OrtBackend.open({ ...(await tinyGraph()), provider: 'cuda', threads: 1, slotRows: 8, slotTokens: 64 }),
    ).rejects.toMatchObject({ code: 'INFERENCE_FAILED' });
  },
);

describe('the CUDA provider', () => {
  test('that is not installed is missed by the name of its file, with the way to get it', async () => {
    expect(await cudaProviderProblem({ folder: cacheDir, version: '1.30.0' })).toMatch(
      /libonnxruntime_providers_shared\.so is not in .*"shoal gpu install"/,
    );
  });

  test('that is installed, but cannot be loaded, is told by each library it misses', async () => {
    const folder = join(cacheDir, 'installed');
    mkdirSync(folder);
    for (const file of CUDA_PROVIDER_FILES)
      // needs libonnxruntime.so.1 beside it
      copyFileSync(join(installedRuntime().folder, 'onnxruntime_binding.node'), join(folder, file));
    expect(await cudaProviderProblem({ folder, version: '1.30.0' })).toContain('libonnxruntime.so.1');
  });

  test('is not said to miss anything when the loader cannot be asked', async () => {
    const path = join(cacheDir, 'no-library');
    writeFileSync(path, 'text');
    expect(await missingLibraries(path)).toEqual([]);
  });
});

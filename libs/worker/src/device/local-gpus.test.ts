// Which GPUs are found by whoever starts a worker on each, from what nvidia-smi printed on real machines.

import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { localGpus, type LocalGpus } from './local-gpus.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-gpus-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const fixture = (name: string): string =>
  `cat '${fileURLToPath(new URL(`../../../ops/fixtures/${name}`, import.meta.url))}'`;

interface Machine {
  /** What its nvidia-smi does; none without it. */
  readonly script?: string;
  readonly visible?: string;
  readonly problem?: string;
}

async function found({ script, visible, problem }: Machine): Promise<LocalGpus> {
  const program = join(folder, 'nvidia-smi');
  await writeFile(program, `#!/bin/sh\n${script ?? ''}\n`);
  await chmod(program, 0o755);
  return localGpus({
    cacheDir: folder,
    environment: { CUDA_VISIBLE_DEVICES: visible },
    providerProblem: async () => problem,
    tool: { programs: [script === undefined ? join(folder, 'missing') : program] },
  });
}

test('every GPU of the machine, in the order of the driver', async () => {
  expect(await found({ script: fixture('four-h200.csv') })).toEqual({ ids: ['0', '1', '2', '3'], refusals: [] });
});

test('those that CUDA_VISIBLE_DEVICES shows, under the names it has there', async () => {
  const script = fixture('four-h200.csv');
  expect((await found({ script, visible: '2,0' })).ids).toEqual(['2', '0']);
  expect((await found({ script, visible: 'GPU-a9350980-b1ed' })).ids).toEqual(['GPU-a9350980-b1ed']);
  expect((await found({ script, visible: 'MIG-1' })).ids).toEqual(['MIG-1']);
  expect(await found({ script, visible: '' })).toEqual({ ids: [], refusals: [] });
});

test('of what CUDA_VISIBLE_DEVICES lists each GPU once, and nothing from the first entry on that is none', async () => {
  const script = fixture('four-h200.csv');
  expect(await found({ script, visible: '0,7,1' })).toEqual({
    ids: ['0'],
    refusals: [expect.stringContaining('names 7, which the driver does not know')],
  });
  expect((await found({ script, visible: '0,GPU-ffff,1' })).ids).toEqual(['0']);
  expect((await found({ script, visible: '0,0,MIG-1,MIG-1,3,GPU-a9350980-b1ed' })).ids).toEqual(['0', 'MIG-1', '3']);
});

test('slices in the place of a GPU that is cut into them', async () => {
  const script = `case "$*" in
-L)
  printf 'GPU 0: NVIDIA H200 (UUID: GPU-1)\\n'
  printf '  MIG 1g.18gb     Device  0: (UUID: MIG-a)\\n'
  printf '  MIG 1g.18gb     Device  1: (UUID: MIG-b)\\n'
  printf 'GPU 1: NVIDIA H200 (UUID: GPU-2)\\n' ;;
*)
  printf '0, GPU-1, 580.1, 100, 0, 100, 0, 30, 70, Enabled, 9.0, NVIDIA H200\\n'
  printf '1, GPU-2, 580.1, 100, 0, 100, 0, 30, 70, Disabled, 9.0, NVIDIA H200\\n' ;;
esac`;
  expect((await found({ script })).ids).toEqual(['MIG-a', 'MIG-b', '1']);
});

test('one that is too old is left out with the reason, also where it is asked for', async () => {
  const script =
    `printf '0, GPU-1, 580.1, 100, 0, 100, 0, 30, 70, [N/A], 6.1, NVIDIA GeForce GTX 1080\\n1, GPU-2, 580.1, ` +
    `100, 0, 100, 0, 30, 70, [N/A], 9.0, NVIDIA H200\\n'`;
  const refusals = [expect.stringContaining('GTX 1080 (index 0) has compute capability 6.1')];
  expect(await found({ script })).toEqual({ ids: ['1'], refusals });
  expect(await found({ script, visible: '0,1' })).toEqual({ ids: ['1'], refusals });
});

test('none without the tool, and none without the provider, whose reason is told', async () => {
  expect(await found({})).toEqual({ ids: [], refusals: [] });
  expect(await found({ script: fixture('four-h200.csv'), problem: 'no provider' })).toEqual({
    ids: [],
    refusals: ['no provider'],
  });
  expect((await found({ script: 'echo failed >&2; exit 9' })).refusals).toHaveLength(1);
});

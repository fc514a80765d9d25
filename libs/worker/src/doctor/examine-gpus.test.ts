// What the doctor says of machines with GPUs, from what their tool says: a shell script stands in for it.

import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openModel } from '@shoal/models';
import { standInLibrary, withStandIn } from '@shoal/similarity/testing';
import { examineGpus, type ExamineGpusOptions } from './examine-gpus.ts';
import { examineModel } from './examine-model.ts';
import type { Finding } from './finding.ts';

const standIn = standInLibrary(); // says why where it cannot be built

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-examine-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

interface Told {
  readonly devices?: string;
  readonly details?: string;
  readonly list?: string;
}

const H200 = '0, GPU-1, 580.159.04, 143771, 0, 143156, 0, 33, 78.50, Disabled, 9.0, NVIDIA H200';
const WELL = '0, Enabled, 0, Disabled, Default, Enabled, 700.00, 616';

let machines = 0;
async function machine({ devices = H200, details = WELL, list = '' }: Told = {}): Promise<ExamineGpusOptions> {
  const path = join(folder, `nvidia-smi-${++machines}`);
  await writeFile(
    path,
    `#!/bin/sh\ncase "$*" in *memory.total*) echo '${devices}';; *compute-apps*) echo '4711, GPU-1, 547, ` +
      `python3';; *ecc.mode*) echo '${details}';; *) echo '${list}';; esac\n`,
  );
  await chmod(path, 0o755);
  return {
    programs: [path],
    environment: {},
    deviceFolder: join(folder, 'dev'),
    providerProblem: async () => undefined,
  };
}

async function broken(options: ExamineGpusOptions): Promise<readonly string[]> {
  return (await examineGpus(options))
    .filter(({ state }) => state === 'broken')
    .map(({ about, found, cure }) => `${about}: ${found} → ${cure ?? ''}`);
}

async function lineOf(cudaLibrary: string): Promise<Finding | undefined> {
  return (await examineGpus({ ...(await machine()), cudaLibrary })).find(({ about }) => about === 'CUDA similarity');
}

describe('a machine with a GPU', () => {
  test('that is well is said to be so, with who else is on it', async () => {
    const findings = await examineGpus(await machine());
    expect(findings.filter(({ state }) => state === 'broken')).toEqual([]);
    expect(findings.map(({ about }) => about)).toEqual(
      expect.arrayContaining(['driver', 'gpu:0', 'gpu:0 memory', 'gpu:0 ECC', 'CUDA provider']),
    );
    expect(findings.find(({ about }) => about === 'gpu:0 memory')?.found).toMatch(
      /150\.1 of 150\.8 GB free, 1 other process on it/,
    );
  });

  test('is told whether there are CUDA kernels for similarity, and which devices they see', async () => {
    expect(await lineOf(join(folder, 'absent.so'))).toMatchObject({
      state: 'absent',
      found: expect.stringMatching(/not here \(.*absent\.so\).*the CPU compares/),
      cure: expect.stringContaining('shoal gpu install'),
    });
    await writeFile(join(folder, 'broken.so'), 'no library');
    expect(await lineOf(join(folder, 'broken.so'))).toMatchObject({
      state: 'warning',
      found: expect.stringMatching(/broken\.so|native code/),
      cure: expect.any(String),
    });
    if (standIn === undefined) return;
    expect(await lineOf(standIn)).toMatchObject({
      state: 'ok',
      found: expect.stringMatching(/stand_in_cuda\.so has the interface asked for and sees stand-in \(9\.0, 1\.1 GB\)/),
    });
    expect(await withStandIn({ SHOAL_STAND_IN_DEVICES: 0 }, () => lineOf(standIn))).toMatchObject({
      state: 'warning',
      found: expect.stringContaining('find no device: the stand-in was told to have no device'),
    });
  });

  test.each<[string, Told, RegExp]>([
    [
      'an old driver',
      { devices: H200.replace('580.159.04', '550.54') },
      /gpu:0: .*driver is 550\.54; CUDA 13 needs 580/,
    ],
    ['an old card', { devices: H200.replace(' 9.0,', ' 6.1,') }, /compute capability 6\.1/],
    [
      'memory errors',
      { details: '0, Enabled, 3, Disabled, Default, Enabled, 700, 616' },
      /ECC: 3 uncorrected memory errors .* → restart/,
    ],
    [
      'MIG without slices',
      { details: '0, Enabled, 0, Enabled, Default, Enabled, 700, 616' },
      /MIG is on and there is no slice/,
    ],
    [
      'a forbidden mode',
      { details: '0, Enabled, 0, Disabled, Prohibited, Enabled, 700, 616' },
      /compute mode is Prohibited/,
    ],
  ])('with %s is broken, with its cure', async (_, told, message) => {
    expect(await broken(await machine(told))).toEqual([expect.stringMatching(message)]);
  });

  test('in slices is told which there are', async () => {
    const findings = await examineGpus(
      await machine({
        details: '0, Enabled, 0, Enabled, Default, Enabled, 700, 616',
        list: 'GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb     Device  0: (UUID: MIG-a)',
      }),
    );
    expect(findings.find(({ about }) => about === 'gpu:0 MIG')).toMatchObject({
      state: 'ok',
      found: expect.stringContaining('MIG-a (1g.18gb)'),
    });
  });

  test('without the provider, or with GPUs hidden, is broken', async () => {
    expect(
      await broken({
        ...(await machine()),
        providerProblem: async () => 'ONNX Runtime’s CUDA provider is not installed',
      }),
    ).toEqual([expect.stringMatching(/CUDA provider: .*not installed → shoal gpu install/)]);
    expect(await broken({ ...(await machine()), environment: { CUDA_VISIBLE_DEVICES: '-1' } })).toEqual([
      expect.stringMatching(/hides every GPU/),
    ]);
  });

  test('whose device files this user may not open is broken', async () => {
    await mkdir(join(folder, 'closed'));
    await writeFile(join(folder, 'closed', 'nvidia0'), '');
    expect(
      await broken({ ...(await machine()), deviceFolder: join(folder, 'closed'), mayOpen: async () => false }),
    ).toEqual([expect.stringMatching(/permission: this user may not open .*nvidia0/)]);
  });
});

test('a machine without a driver has nothing broken', async () => {
  expect(
    await broken({ programs: [join(folder, 'absent')], environment: {}, providerProblem: async () => 'not installed' }),
  ).toEqual([]);
});

test('a tool that hangs is broken, and the answer comes all the same', async () => {
  const path = join(folder, 'hung');
  await writeFile(path, '#!/bin/sh\nsleep 60\n');
  await chmod(path, 0o755);
  expect(
    await broken({ programs: [path], timeoutMs: 200, environment: {}, providerProblem: async () => undefined }),
  ).toEqual([expect.stringMatching(/did not answer within 200 ms.*dmesg/s)]);
});

test('the model is run where a worker would run it', async () => {
  const model = await openModel('tiny-random', { cacheDir: folder });
  expect(
    await examineModel({ model, device: 'cpu', precision: 'auto', cacheDir: folder, environment: {} }),
  ).toMatchObject({ about: 'tiny-random on cpu', state: 'ok', found: expect.stringContaining('runs on cpu in fp32') });
  expect(
    await examineModel({
      model,
      device: 'gpu:0',
      precision: 'auto',
      cacheDir: folder,
      environment: { CUDA_VISIBLE_DEVICES: '' },
    }),
  ).toMatchObject({ state: 'broken', found: expect.stringContaining('hides every GPU') });
});

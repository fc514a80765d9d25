// Details of GPUs, their slices and their processes, in the forms in which drivers tell them or do not. A shell script
// stands in for the tool. The table of four H200s is what driver 580.159.04 printed; the others are made up from its
// documented forms.

import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readDetails, readProcesses, readSlices } from './nvidia-details.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-details-'));
});
afterAll(async () => rm(folder, { recursive: true, force: true }));

let tools = 0;
async function saying(output: string, exitCode = 0): Promise<{ programs: string[] }> {
  const path = join(folder, `nvidia-smi-${++tools}`);
  await writeFile(path, `#!/bin/sh\ncat <<'END'\n${output}\nEND\nexit ${exitCode}\n`);
  await chmod(path, 0o755);
  return { programs: [path] };
}

test('error correction, slices and modes are yes, no or not told', async () => {
  const details = await readDetails(
    await saying(
      '0, Enabled, 0, Disabled, Default, Enabled, 700.00, 616\n1, [N/A], [N/A], Enabled, Exclusive_Process, ' +
        'Disabled, [N/A], [Not Supported]\n2, Disabled, 3, [Insufficient Permissions], Prohibited, [Unknown ' +
        'Error], 250.00 W, 616 MiB',
    ),
  );
  expect(details[0]).toEqual({
    index: 0,
    isEccOn: true,
    uncorrectedErrors: 0,
    isMigOn: false,
    computeMode: 'Default',
    isPersistent: true,
    powerLimitWatts: 700,
    reservedBytes: 616 * 1_048_576,
  });
  expect(details[1]).toEqual({
    index: 1,
    isEccOn: undefined,
    uncorrectedErrors: undefined,
    isMigOn: true,
    computeMode: 'Exclusive_Process',
    isPersistent: false,
    powerLimitWatts: undefined,
    reservedBytes: undefined,
  });
  expect(details[2]).toMatchObject({
    isEccOn: false,
    uncorrectedErrors: 3,
    isMigOn: undefined,
    isPersistent: undefined,
    powerLimitWatts: 250,
  });
});

test('processes are told with their memory, where the driver tells it', async () => {
  expect(
    await readProcesses(await saying('4711, GPU-1, 547, /usr/bin/python3\n4712, GPU-1, [N/A], [Not Found]')),
  ).toEqual([
    { pid: 4711, deviceUuid: 'GPU-1', usedBytes: 547 * 1_048_576, name: '/usr/bin/python3' },
    { pid: 4712, deviceUuid: 'GPU-1', usedBytes: undefined, name: undefined },
  ]);
  expect(await readProcesses(await saying(''))).toEqual([]);
});

test('slices are found under their GPUs', async () => {
  const slices = await readSlices(
    await saying(
      'GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb     Device  0: (UUID: MIG-a)\n  MIG 2g.35gb     Device  ' +
        '1: (UUID: MIG-b)\nGPU 1: NVIDIA H200 (UUID: GPU-2)',
    ),
  );
  expect(slices).toEqual([
    { deviceIndex: 0, profile: '1g.18gb', id: 'MIG-a' },
    { deviceIndex: 0, profile: '2g.35gb', id: 'MIG-b' },
  ]);
});

test.each(['hello', 'Failed to initialize NVML', '<xml/>'])(
  '%j tells nothing, and nothing is thrown',
  async (output) => {
    const options = await saying(output, output === 'hello' ? 0 : 9);
    expect([await readDetails(options), await readProcesses(options), await readSlices(options)]).toEqual([[], [], []]);
  },
);

test('a tool that is missing tells nothing', async () => {
  expect(await readDetails({ programs: [join(folder, 'absent')] })).toEqual([]);
});

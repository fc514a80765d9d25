// What nvidia-smi says is understood, in all its forms, and whatever the tool does, the worker gets an answer. A shell
// script stands in for the tool; where the tables are from: fixtures/README.md.

import { chmod, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { nvidiaMemoryProbe, parseDevices, readDevices } from './nvidia-smi.ts';

const MIB = 1_048_576;
let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-smi-'));
});
afterAll(async () => rm(folder, { recursive: true, force: true }));

function fixturePath(name: string): string {
  return fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url));
}

let tools = 0;
async function tool(script: string): Promise<string[]> {
  const path = join(folder, `nvidia-smi-${++tools}`);
  await writeFile(path, `#!/bin/sh\n${script}\n`);
  await chmod(path, 0o755);
  return [path];
}

describe('a table is understood', () => {
  test('of four GPUs', async () => {
    const devices = parseDevices(await readFile(fixturePath('four-h200.csv'), 'utf8'));
    expect(devices).toHaveLength(4);
    expect(devices?.[3]).toEqual({
      index: 3,
      uuid: 'GPU-a9350980-b1ed-ca40-8091-d6d59a4c78a2',
      name: 'NVIDIA H200',
      driverVersion: '580.159.04',
      computeCapability: '9.0',
      migMode: 'Disabled',
      totalBytes: 143_771 * MIB,
      usedBytes: 0,
      freeBytes: 143_156 * MIB,
      utilization: 0,
      temperatureCelsius: 33,
      powerWatts: 76.9,
    });
  });

  test('of a driver that tells little: what it does not tell is undefined, everything else is there', async () => {
    const [slices, refused, reset] = parseDevices(await readFile(fixturePath('untold.csv'), 'utf8')) ?? [];
    expect(slices).toMatchObject({
      index: 0,
      migMode: 'Enabled',
      totalBytes: 143_771 * MIB,
      usedBytes: undefined,
      freeBytes: undefined,
      utilization: undefined,
      powerWatts: 78.5,
    });
    expect(refused).toMatchObject({
      totalBytes: undefined,
      usedBytes: 0,
      freeBytes: undefined,
      temperatureCelsius: undefined,
      migMode: undefined,
      name: 'NVIDIA GeForce GTX 1080, Founders Edition',
    });
    expect(reset).toMatchObject({
      uuid: undefined,
      totalBytes: 8_192 * MIB,
      utilization: 0.07,
      powerWatts: 25,
      computeCapability: undefined,
      name: undefined,
    });
  });

  test.each(['', '\n', 'hello', 'a, b, c, d, e, f, g, h, i, j, k, l', '-1, x, x, 1, 1, 1, 1, 1, 1, x, x, x', '<xml/>'])(
    '%j is not taken for one',
    (output) => {
      expect(parseDevices(output)).toBeUndefined();
    },
  );
});

describe('the tool', () => {
  test('is asked for this table, in English, and for one device where one is meant', async () => {
    const programs = await tool(
      `[ "$LC_ALL" = C ] || exit 1\ncase "$*" in *--format=csv,noheader,nounits*--id=GPU-7*) cat ` +
        `'${fixturePath('one-h200.csv')}';; *) exit 3;; esac`,
    );
    expect(await readDevices({ programs, device: 'GPU-7' })).toMatchObject({
      ok: true,
      devices: [{ name: 'NVIDIA H200', temperatureCelsius: 33 }],
    });
  });

  test('that is older and refuses a field is asked for what it knows', async () => {
    const programs = await tool(
      `case "$*" in *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;; ` +
        `esac\necho '0, GPU-1, 418.1, 100, 40, 60, 5, 50, 20.5, Tesla K80'`,
    );
    expect(await readDevices({ programs })).toMatchObject({
      ok: true,
      devices: [{ name: 'Tesla K80', freeBytes: 60 * MIB, computeCapability: undefined }],
    });
  });

  test('is missing', async () => {
    expect(await readDevices({ programs: [join(folder, 'absent'), join(folder, 'absent', 'too')] })).toMatchObject({
      ok: false,
      reason: 'no-tool',
      message: expect.stringContaining('no nvidia-smi'),
    });
  });

  test('is looked for in the second place when it is not in the first', async () => {
    const programs = await tool(`cat '${fixturePath('one-h200.csv')}'`);
    expect(await readDevices({ programs: [join(folder, 'absent'), ...programs] })).toMatchObject({ ok: true });
  });

  test('knows no device of that index', async () => {
    const programs = await tool("echo 'No devices were found'; exit 6");
    expect(await readDevices({ programs, device: '9' })).toEqual({
      ok: false,
      reason: 'no-device',
      message: 'the driver knows no device 9',
    });
    expect(await readDevices({ programs })).toEqual({ ok: true, devices: [] });
  });

  test('fails: its own words come back', async () => {
    const programs = await tool("echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18");
    expect(await readDevices({ programs })).toEqual({
      ok: false,
      reason: 'failed',
      message: 'nvidia-smi ended with exit code 18: Failed to initialize NVML: Driver/library version mismatch',
    });
  });

  test('warns of one GPU: all of them are read', async () => {
    const programs = await tool(
      `cat '${fixturePath('four-h200.csv')}'; echo 'WARNING: infoROM is corrupted at gpu 0000:1E:00.0'; exit 14`,
    );
    expect(await readDevices({ programs })).toMatchObject({ ok: true, devices: { length: 4 } });
    expect(
      await readDevices({ programs: await tool("echo 'WARNING: infoROM is corrupted at gpu 0000:1E:00.0'; exit 14") }),
    ).toMatchObject({ ok: false, reason: 'not-understood', message: expect.stringContaining('infoROM') });
  });

  test('is killed by a signal', async () => {
    expect(await readDevices({ programs: await tool('kill -9 $$') })).toMatchObject({
      ok: false,
      reason: 'failed',
      message: expect.stringContaining('a signal'),
    });
  });

  test.each(['echo hello', 'true', 'head -c 3000000 /dev/zero'])('talks nonsense: %s', async (script) => {
    const read = await readDevices({ programs: await tool(script) });
    expect(read.ok ? read : read.reason).toMatch(/not-understood|failed/);
  });

  test('hangs, with a child of its own holding its output: it is killed and not waited for', async () => {
    const pidFile = join(folder, 'pid');
    const programs = await tool(`echo $$ > '${pidFile}'; sleep 600 & wait`);
    expect(await readDevices({ programs, timeoutMs: 300 })).toMatchObject({ ok: false, reason: 'no-answer' });
    const pid = Number(await readFile(pidFile, 'utf8'));
    await expect.poll(() => isAlive(pid)).toBe(false);
  });
});

describe('the memory probe', () => {
  test('reads free and total bytes of its device', async () => {
    const probe = nvidiaMemoryProbe({ device: '0', programs: await tool(`cat '${fixturePath('one-h200.csv')}'`) });
    expect(await probe.read()).toEqual({ freeBytes: 143_156 * MIB, totalBytes: 143_771 * MIB });
  });

  test('has no answer where the driver has none, or there is no tool', async () => {
    expect(
      await nvidiaMemoryProbe({ device: '0', programs: await tool(`head -1 '${fixturePath('untold.csv')}'`) }).read(),
    ).toBeUndefined();
    expect(await nvidiaMemoryProbe({ device: '0', programs: [join(folder, 'absent')] }).read()).toBeUndefined();
  });

  test('runs the tool once for readings that are close together', async () => {
    const runs = join(folder, 'runs');
    const probe = nvidiaMemoryProbe({
      device: '0',
      maxAgeMs: 60_000,
      programs: await tool(`echo x >> '${runs}'; cat '${fixturePath('one-h200.csv')}'`),
    });
    await Promise.all([probe.read(), probe.read()]);
    await probe.read();
    expect((await readFile(runs, 'utf8')).trim().split('\n')).toHaveLength(1);
  });
});

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

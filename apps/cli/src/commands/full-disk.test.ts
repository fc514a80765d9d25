// Commands beside a private queue server whose folder is on a disk that is full or read-only, for real: who looks sees
// the queue, who would write is told what is missing. Linux and root only.

import { rmSync, symlinkSync } from 'node:fs';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { SmallDisk } from '@shoal/fetch/testing';
import { attachServer, type AttachedServer } from '@shoal/private-server';
import { closeConnection, openConnection, writeRefusal, type Redis } from '@shoal/queue';
import { Sandbox } from '../testing/shoal-process.ts';

vi.setConfig({ testTimeout: 120_000 }); // a handful of processes

const disk = SmallDisk.make(2_000_000);
if (typeof disk === 'string') console.log(`full and read-only disks are not tried: ${disk}`);

const box = new Sandbox();
let server: AttachedServer;
let connection: Redis;

beforeAll(async () => {
  if (typeof disk === 'string') return;
  rmSync(box.cacheDir, { recursive: true });
  symlinkSync(disk.folder, box.cacheDir);
  vi.stubEnv('PATH', box.environment()['PATH'] ?? '');
  server = await attachServer({ cacheDir: box.cacheDir });
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  if (typeof disk === 'string') return;
  disk.empty();
  await closeConnection(connection);
  await server.release();
  box.remove();
  disk.remove();
  vi.unstubAllEnvs();
});

async function looks(): Promise<void> {
  const counts = await box.run(['queue', 'counts']);
  expect(counts).toMatchObject({ code: 0, stdout: expect.stringMatching(/embed-tiny-random/) });
  const fleet = await box.run(['fleet', 'status']);
  expect([fleet.code, fleet.stderr]).toEqual([0, '']);
}

test.skipIf(typeof disk === 'string')('on a full disk who looks sees the queue, and who writes is told', async () => {
  if (typeof disk === 'string') return;
  disk.fill();
  await connection.set('big', Buffer.alloc(20_000)).catch(() => undefined);
  await vi.waitUntil(async () => (await writeRefusal(connection)) !== undefined, { timeout: 20_000 });
  await looks();
  const doctor = await box.run(['doctor', '--device', 'sim:8000']);
  expect(doctor).toMatchObject({
    code: 1,
    stdout: expect.stringMatching(/✗ queue server +Valkey .* takes no writes: MISCONF .*No space left on device/),
  });
  const embed = await box.run(['embed', '-'], { input: 'a text\n' });
  expect(embed).toMatchObject({ code: 1, stderr: expect.stringMatching(/cannot be written: the disk is full/) });
  expect(embed.stderr).toContain(box.cacheDir);
  expect(embed.stderr).not.toMatch(/bug worth|\n {4}at /);
  disk.empty();
});

test.skipIf(typeof disk === 'string')('on a disk that is read-only the same', async () => {
  if (typeof disk === 'string') return;
  rmSync(box.cacheDir);
  symlinkSync(disk.readOnlyView(), box.cacheDir);
  await looks();
  const embed = await box.run(['embed', '-'], { input: 'a text\n' });
  expect(embed).toMatchObject({ code: 1, stderr: expect.stringMatching(/models, .*, is read-only/) });
  expect(embed.stderr).not.toMatch(/bug worth|\n {4}at /);
});

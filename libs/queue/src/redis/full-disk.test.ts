// A queue server whose disk is full, for real: a file system of one megabyte that holds its append-only file.

import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { encodeTexts } from '@shoal/contract';
import { SmallDisk } from '@shoal/fetch/testing';
import { JobProducer } from '../producer/job-producer.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { closeConnection, openConnection, type Redis } from './connection.ts';
import { checkServer } from './server-check.ts';
import { writeRefusal } from './write-refusal.ts';

const disk = SmallDisk.make(1_000_000);
if (typeof disk === 'string') console.log(`a full disk is not tried: ${disk}`);
const isTold = process.env['SHOAL_TEST_TOPOLOGY'] === undefined;

let server: TestServer;
let connection: Redis;

beforeAll(async () => {
  if (typeof disk === 'string') return;
  server = await startTestServer({ args: ['--dir', disk.folder] });
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  if (typeof disk === 'string') return;
  await closeConnection(connection);
  await server.stop();
  disk.remove();
});

test.skipIf(typeof disk === 'string' || !isTold)(
  'what is added to a server whose disk is full is refused at once in its own words, and taken when there is room',
  async () => {
    if (typeof disk === 'string') return;
    const producer = await JobProducer.connect({ redisUrl: server.url, queue: 'embed-full' });
    const add = () =>
      producer.add([
        {
          jobId: 'a~1',
          data: { v: 1, fingerprint: '00000000000000aa', input: { form: 'texts', rows: 1 } },
          input: encodeTexts(['a']),
        },
      ]);
    expect(await writeRefusal(connection)).toBeUndefined();
    disk.fill();
    await connection.set('big', Buffer.alloc(20_000)).catch(() => undefined);
    await vi.waitUntil(async () => (await writeRefusal(connection)) !== undefined, { timeout: 20_000 });
    expect(await writeRefusal(connection)).toMatch(/^MISCONF .*No space left on device/);
    await expect(add()).rejects.toMatchObject({
      code: 'QUEUE_REFUSES_WRITES',
      message: expect.stringMatching(/takes no writes \(MISCONF .*No space left on device\)\. .*free space/),
      fields: { reply: expect.stringMatching(/^MISCONF/) },
    });
    expect((await checkServer(connection)).warnings.join('\n')).toMatch(/aof_last_write_status is err/);
    disk.empty();
    await vi.waitUntil(async () => (await writeRefusal(connection)) === undefined, { timeout: 20_000 });
    expect(await add()).toMatchObject([{ outcome: 'added' }]);
    await producer.close();
  },
);

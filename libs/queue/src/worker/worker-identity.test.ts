// A worker that starts under the name of one that died has its claims back in the queue at once; one that lives keeps
// its own.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { identityOf } from '@shoal/fetch';
import { RecordingLogger } from '@shoal/core/testing';
import { Queue } from 'bullmq';
import { BullJobSource } from './bull-job-source.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { claimAll } from '../testing/claims.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { isPredecessors, tokenPrefixOf } from './worker-identity.ts';

const PREFIX = '{t-identity}';
let server: TestServer;
let connection: Redis;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

/** A token as a process of this name made it that has gone since. */
async function tokenOfTheDead(name: string): Promise<string> {
  const child = spawn(process.execPath, ['-e', 'setInterval(() => undefined, 1000)']);
  await once(child, 'spawn');
  const { startTime } = identityOf(child.pid!)!;
  child.kill('SIGKILL');
  await once(child, 'exit');
  const [, place] = tokenPrefixOf(name).split('~');
  return `${name}~${place}~${child.pid}~${startTime}~uuid:7`;
}

test("tokens tell a dead process of one's own name from a living one, a stranger, and another machine", async () => {
  const dead = await tokenOfTheDead('host-cpu');
  const [name, , pid, startTime] = dead.split('~');
  expect(isPredecessors(dead, 'host-cpu')).toBe(true);
  expect(isPredecessors(dead, 'host-gpu-0')).toBe(false);
  expect(isPredecessors(`${tokenPrefixOf('host-cpu')}~uuid:1`, 'host-cpu')).toBe(false);
  expect(isPredecessors(`${name}~elsewhere~${pid}~${startTime}~uuid:7`, 'host-cpu')).toBe(false);
  expect(isPredecessors('some-uuid:1', 'host-cpu')).toBe(false);
  expect(isPredecessors('', 'host-cpu')).toBe(false);
});

test(
  'claims of a dead worker of the same name go back at the start, with a stall counted and no attempt; others ' +
    'stay',
  async () => {
    const queue = new Queue('embed-x', { prefix: PREFIX, connection });
    const open = (workerName: string) =>
      new BullJobSource({
        redisUrl: server.url,
        prefix: PREFIX,
        queue: 'embed-x',
        workerName,
        leaseMs: 60_000,
        stalledCheckMs: 60_000,
        log: new RecordingLogger(),
      });
    await queue.addBulk(['a', 'b', 'c'].map((jobId) => ({ name: 'embed', data: {}, opts: { jobId } })));
    const living = open('host-cpu');
    await living.start();
    const [first, second] = [...(await living.claim(1)), ...(await living.claim(1))];
    await connection.set(`${PREFIX}:embed-x:${first!.jobId}:lock`, await tokenOfTheDead('host-cpu'), 'PX', 60_000);
    const next = open('host-cpu');
    await next.start();
    const claims = await claimAll(next, 2);
    expect(claims.map(({ jobId, attempt, stalls }) => ({ jobId, attempt, stalls }))).toContainEqual({
      jobId: first!.jobId,
      attempt: 0,
      stalls: 1,
    });
    expect(claims.map(({ jobId }) => jobId)).not.toContain(second!.jobId);
    await Promise.all([living.stop(), next.stop()]);
    await queue.close();
  },
);

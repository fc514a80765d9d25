// The ways in which claiming is known to fall silent (a connection killed under a wait, a peer that swallows replies, a
// paused server, a paused queue): each either heals by itself or is seen by the question that the watchdog asks, and
// none is mistaken for another.

import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import { Queue } from 'bullmq';
import { BullJobSource } from './bull-job-source.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';

let server: TestServer;
let connection: Redis;
let scenes = 0;

beforeAll(async () => {
  server = await startTestServer({ topology: 'single' }); // its replies go through a proxy for one socket
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

/** Passes everything on, and on command swallows what the server says to the connections there are by then. */
class DeafProxy {
  private readonly server: Server;
  private readonly sockets = new Set<Socket>();
  private readonly deaf = new Set<Socket>();

  private constructor(port: number) {
    this.server = createServer((client) => {
      const upstream = connect(port, '127.0.0.1');
      for (const socket of [client, upstream]) {
        this.sockets.add(socket);
        socket.on('error', () => undefined);
        socket.on('close', () => [client, upstream].forEach((end) => end.destroy()));
      }
      client.pipe(upstream);
      upstream.on('data', (chunk) => (this.deaf.has(client) ? undefined : client.write(chunk)));
    });
  }

  static async open(target: string): Promise<{ proxy: DeafProxy; url: string }> {
    const proxy = new DeafProxy(Number(new URL(target).port));
    proxy.server.listen(0, '127.0.0.1');
    await once(proxy.server, 'listening');
    return { proxy, url: `redis://127.0.0.1:${(proxy.server.address() as AddressInfo).port}` };
  }

  swallow(): void {
    for (const socket of this.sockets) this.deaf.add(socket);
  }

  async close(): Promise<void> {
    for (const socket of this.sockets) socket.destroy();
    this.server.close();
    await once(this.server, 'close');
  }
}

describe('a worker that waits for jobs', () => {
  let prefix: string;
  let queue: Queue;

  beforeEach(() => {
    prefix = `{t-wedge-${++scenes}}`;
    queue = new Queue('embed-x', { prefix, connection });
    return () => queue.close();
  });

  async function waiting(
    redisUrl = server.url,
  ): Promise<{ source: BullJobSource; claimed: Promise<readonly string[]> }> {
    const source = new BullJobSource({
      redisUrl,
      prefix,
      queue: 'embed-x',
      leaseMs: 2_000,
      stalledCheckMs: 60_000,
      log: new RecordingLogger(),
    });
    await source.start();
    const claimed = source.claim(1).then((claims) => claims.map(({ jobId }) => jobId));
    await vi.waitFor(async () => expect(String(await server.command('CLIENT', 'LIST'))).toMatch(/cmd=bzpopmin/), {
      timeout: 10_000,
    });
    return { source, claimed };
  }

  test('goes on when all its connections are killed, the one that waits for a marker included', async () => {
    const { source, claimed } = await waiting();
    for (const line of String(await server.command('CLIENT', 'LIST')).split('\n')) {
      const id = /^id=(\d+) .*name=(shoal|\{t-wedge)/.exec(line)?.[1];
      if (id !== undefined) await server.command('CLIENT', 'KILL', 'ID', id);
    }
    await queue.add('embed', {}, { jobId: 'a' });
    expect(await claimed).toEqual(['a']);
    await source.stop();
  });

  test('in a numbered database goes on through many cuts, and no rejection is left that nobody handles', async () => {
    const unhandled: unknown[] = [];
    const note = (error: unknown): void => void unhandled.push(error);
    process.on('unhandledRejection', note);
    const own = openConnection({ url: `${server.url}/2`, name: 'test-2' });
    const second = new Queue('embed-x', { prefix, connection: own });
    second.on('error', () => undefined);
    const { source, claimed } = await waiting(`${server.url}/2`);
    for (let cut = 0; cut < 15; cut++) {
      await server.command('CLIENT', 'KILL', 'TYPE', 'pubsub');
      await server.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
      // cuts during connecting, selecting and subscribing
      await new Promise((resolve) => setTimeout(resolve, 20 * (cut % 5)));
    }
    await second.add('embed', {}, { jobId: 'a' });
    expect(await claimed).toEqual(['a']);
    await source.stop();
    await second.close();
    await closeConnection(own);
    process.off('unhandledRejection', note);
    expect(unhandled).toEqual([]);
  });

  test('goes on after a pause of the whole server', async () => {
    const { source, claimed } = await waiting();
    await server.command('CLIENT', 'PAUSE', 1_500, 'ALL');
    await queue.add('embed', {}, { jobId: 'a' });
    expect(await claimed).toEqual(['a']);
    await source.stop();
  });

  test('and whose replies are swallowed is found out: the question goes another way', async () => {
    const { proxy, url } = await DeafProxy.open(server.url);
    const { source } = await waiting(url);
    proxy.swallow();
    expect(await source.claimable()).toBe(0);
    await queue.add('embed', {}, { jobId: 'a' });
    expect(await source.claimable()).toBe(1);
    const stopped = source.stop();
    await proxy.close();
    await stopped;
  });

  test('at a paused queue, or one at its own limits, is not stuck', async () => {
    const { source, claimed } = await waiting();
    await queue.pause();
    await queue.add('embed', {}, { jobId: 'a' });
    expect(await source.claimable()).toBe(0);
    await queue.resume();
    expect(await claimed).toEqual(['a']);
    await queue.add('embed', {}, { jobId: 'b' });
    expect(await source.claimable()).toBe(1);
    await queue.setGlobalConcurrency(1);
    expect(await source.claimable()).toBe(0);
    await source.stop();
  });

  test('learns nothing from a server that is away, and says so', async () => {
    const away = await startTestServer({ topology: 'single' }); // nobody succeeds it
    const source = new BullJobSource({
      redisUrl: away.url,
      prefix,
      queue: 'embed-x',
      leaseMs: 2_000,
      stalledCheckMs: 60_000,
      log: new RecordingLogger(),
    });
    await source.start();
    await away.kill9();
    await expect(source.claimable()).rejects.toMatchObject({ code: 'QUEUE_UNREACHABLE' });
    await source.stop();
    await away.stop();
  });
});

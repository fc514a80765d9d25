// A wire of some length: a process of its own that passes bytes between clients and a server, each chunk half a round
// trip late. In the process of a client it would wait for that client's work, and take its time for the wire's.

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { median } from '@shoal/core/base';
import { closeConnection, openConnection, untilReady } from '@shoal/queue';

export interface Delay {
  readonly url: string;
  /** A PING through it, ms: timers and the way through another process add to what was asked for. */
  readonly roundTripMs: number;
  close(): Promise<void>;
}

export async function openDelay(target: string, roundTripMs: number): Promise<Delay> {
  const child = fork(fileURLToPath(import.meta.url), [target, String(roundTripMs / 2)], {
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  const [port] = (await once(child, 'message')) as [number];
  const url = `redis://127.0.0.1:${port}`;
  return {
    url,
    roundTripMs: await pingMs(url),
    close: async () => {
      const gone = once(child, 'exit');
      child.disconnect();
      await gone;
    },
  };
}

async function pingMs(url: string): Promise<number> {
  const connection = openConnection({ url, name: 'bench-ping' });
  await untilReady(connection, url);
  const times: number[] = [];
  for (let ping = 0; ping < 101; ping++) {
    const startedMs = performance.now();
    await connection.ping();
    times.push(performance.now() - startedMs);
  }
  await closeConnection(connection);
  return Math.round(median(times) * 100) / 100;
}

function passOn(target: string, delayMs: number): void {
  const { hostname, port } = new URL(target);
  const server = createServer((near) => {
    const far = connect(Number(port), hostname);
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      from.setNoDelay(true);
      from.on('data', (chunk: Buffer) => setTimeout(() => to.destroyed || to.write(chunk), delayMs));
      from.on('error', () => to.destroy());
      from.on('close', () => to.destroy());
    }
  }).listen(0, '127.0.0.1', () => process.send?.((server.address() as AddressInfo).port));
  process.on('disconnect', () => process.exit(0));
}

if (process.send !== undefined && process.argv[1] === fileURLToPath(import.meta.url))
  passOn(process.argv[2]!, Number(process.argv[3]));

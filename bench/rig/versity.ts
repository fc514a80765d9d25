// A server of S3's protocol that keeps objects as files: versitygw, which whoever runs a bench has built and put on the PATH.
// moto, which tests have, holds what it is given, and answers one request at a time.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const CREDENTIALS = { AWS_ACCESS_KEY_ID: 'key', AWS_SECRET_ACCESS_KEY: 'secret', AWS_REGION: 'us-east-1' };

export interface VersityServer {
  readonly endpoint: string;
  readonly credentials: Readonly<Record<string, string>>;
  makeBucket(name: string): Promise<void>;
  stop(): Promise<void>;
}

/** Objects lie in `folder`, which is made. */
export async function startVersity(folder: string): Promise<VersityServer> {
  mkdirSync(folder, { recursive: true });
  const port = await freePort();
  const child = spawn('versitygw', ['--port', `127.0.0.1:${port}`, '--quiet', 'posix', folder], {
    env: { ...process.env, ROOT_ACCESS_KEY: 'key', ROOT_SECRET_KEY: 'secret' },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const ended = once(child, 'exit').then(() => {
    throw new Error('versitygw has ended');
  });
  ended.catch(() => undefined);
  const endpoint = `http://127.0.0.1:${port}`;
  await Promise.race([answers(endpoint), ended]);
  return {
    endpoint,
    credentials: CREDENTIALS,
    makeBucket: async (name) => mkdirSync(join(folder, name)), // a folder of its own is a bucket
    async stop() {
      const gone = once(child, 'exit');
      child.kill('SIGTERM');
      await gone;
    },
  };
}

async function answers(endpoint: string): Promise<void> {
  for (;;) {
    const answer = await fetch(endpoint).catch(() => undefined);
    if (answer !== undefined) return;
    await sleep(50);
  }
}

async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address() as AddressInfo;
  const closed = once(probe, 'close');
  probe.close();
  await closed;
  return port;
}

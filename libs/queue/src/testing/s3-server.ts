// For tests: a server of S3's protocol, moto's, from PyPI; its folder stays in the cache. At night alone, because it takes
// minutes to come the first time.

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { cacheFolder } from '@shoal/core';
import { makeOnce } from '@shoal/fetch/testing';

const MOTO = '5.2.5';

/** What it lets in. */
const CREDENTIALS = { AWS_ACCESS_KEY_ID: 'key', AWS_SECRET_ACCESS_KEY: 'secret', AWS_REGION: 'us-east-1' };

export interface S3Server {
  readonly endpoint: string;
  /** The environment of who asks it. */
  readonly credentials: Readonly<Record<string, string>>;
  makeBucket(name: string): Promise<void>;
  /** Freezes it, and lets it go on: a store that is away. */
  pause(): void;
  resume(): void;
  stop(): Promise<void>;
}

/** What it holds is gone when it stops. */
export async function startS3Server(): Promise<S3Server> {
  const folder = join(cacheFolder(process.env['SHOAL_CACHE_DIR']), `test-moto-${MOTO}`);
  await makeOnce(folder, () => {
    execFileSync('python3', ['-m', 'venv', folder], { stdio: 'inherit' });
    execFileSync(join(folder, 'bin/python'), ['-m', 'pip', 'install', '--quiet', `moto[s3,server]==${MOTO}`], {
      stdio: 'inherit',
      timeout: 500_000,
    });
  });
  const moto = spawn(join(folder, 'bin/python'), ['-m', 'moto.server', '-H', '127.0.0.1', '-p', '0'], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let said = '';
  const endpoint = await new Promise<string>((resolve, reject) => {
    moto.stderr!.on('data', (chunk) => {
      said += String(chunk);
      const url = /Running on (http:\/\/127\.0\.0\.1:\d+)/.exec(said)?.[1];
      if (url !== undefined) resolve(url);
    });
    moto.once('exit', () => reject(new Error(`moto has ended: ${said}`)));
  });
  return {
    endpoint,
    credentials: CREDENTIALS,
    makeBucket: async (name) => {
      const { ok, status } = await fetch(`${endpoint}/${name}`, { method: 'PUT' });
      if (!ok) throw new Error(`moto makes no bucket: ${status}`);
    },
    pause: () => void moto.kill('SIGSTOP'),
    resume: () => void moto.kill('SIGCONT'),
    stop: async () => {
      const gone = once(moto, 'exit');
      moto.kill('SIGTERM');
      await gone;
    },
  };
}

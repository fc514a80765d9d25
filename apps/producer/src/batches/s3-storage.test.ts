// The storage in a bucket against a real server of S3's protocol, moto's, which is installed from PyPI: at night alone.

import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { cacheFolder } from '@shoal/core';
import { S3Storage, parseS3 } from './s3-storage.ts';
import { describeStorage } from '../testing/storage-conformance.ts';

const MOTO = '5.2.5';
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('the storage in a bucket is tried at night alone, with moto (npm run test:nightly)');

const CREDENTIALS = { AWS_ACCESS_KEY_ID: 'key', AWS_SECRET_ACCESS_KEY: 'secret', AWS_REGION: 'us-east-1' };

describe('an address', () => {
  test.each([
    ['s3://bucket', { bucket: 'bucket', folder: '' }],
    ['s3://my.bucket-1/a/b/', { bucket: 'my.bucket-1', folder: 'a/b' }],
  ])('%s is read', (url, place) => {
    expect(parseS3(url, undefined)).toEqual({ ...place, endpoint: undefined });
  });

  test.each(['s3://', 's3://B', 'https://bucket', 's3://bucket/../x', 's3://bucket//x'])('%s is refused', (url) => {
    expect(() => parseS3(url, undefined)).toThrow(TypeError);
  });
});

describe.skipIf(!isNightly)('with a server', () => {
  let moto: ChildProcess;
  let endpoint: string;

  beforeAll(async () => {
    Object.assign(process.env, CREDENTIALS);
    ({ moto, endpoint } = await startMoto());
    const client = new S3Client({ endpoint, forcePathStyle: true, region: 'us-east-1' });
    await client.send(new CreateBucketCommand({ Bucket: 'shoal' }));
    client.destroy();
  }, 600_000);
  afterAll(async () => {
    const gone = once(moto, 'exit');
    moto.kill('SIGTERM');
    await gone;
  });

  describeStorage('a bucket', async () => {
    const place = parseS3('s3://shoal/batches', endpoint);
    return {
      one: await S3Storage.open(place),
      other: await S3Storage.open(place),
      close: async () => undefined,
    };
  });

  test('a bucket that is not there says so when it is opened', async () => {
    await expect(S3Storage.open(parseS3('s3://nothing-here', endpoint))).rejects.toThrow(
      /s3:\/\/nothing-here: .*NoSuchBucket/,
    );
  });
});

async function startMoto(): Promise<{ readonly moto: ChildProcess; readonly endpoint: string }> {
  const folder = join(cacheFolder(process.env['SHOAL_CACHE_DIR']), `test-moto-${MOTO}`);
  if (!existsSync(folder)) {
    const part = `${folder}.part`;
    await rm(part, { recursive: true, force: true });
    execFileSync('python3', ['-m', 'venv', part], { stdio: 'inherit' });
    execFileSync(join(part, 'bin/python'), ['-m', 'pip', 'install', '--quiet', `moto[s3,server]==${MOTO}`], {
      stdio: 'inherit',
      timeout: 500_000,
    });
    await rename(part, folder); // run by its python, which does not ask where it lies
  }
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
  return { moto, endpoint };
}

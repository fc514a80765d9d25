// The storage in a bucket against a real server of S3's protocol, moto's, which is installed from PyPI: at night alone.

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startS3Server, type S3Server } from '@shoal/queue/testing';
import { S3Storage, parseS3 } from './s3-storage.ts';
import { describeStorage } from '../testing/storage-conformance.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('the storage in a bucket is tried at night alone, with moto (npm run test:nightly)');

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
  let s3: S3Server;
  let endpoint: string;

  beforeAll(async () => {
    s3 = await startS3Server();
    ({ endpoint } = s3);
    Object.assign(process.env, s3.credentials);
    await s3.makeBucket('shoal');
  }, 600_000);
  afterAll(() => s3.stop());

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

// What needs no store. Buckets themselves are tried where they are used (bucket-bodies.test.ts, embed's s3 tests).

import { expect, onTestFinished, test, vi } from 'vitest';
import { S3Bucket } from './s3.ts';

test.each(['nonsense', 'minio:9000', 'ftp://store', 'http://me:secret@'])(
  'an endpoint that is no address, "%s", is refused by the name of its variable, without a password',
  async (endpoint) => {
    onTestFinished(() => void vi.unstubAllEnvs());
    for (const name of ['AWS_ENDPOINT_URL', 'AWS_ENDPOINT_URL_S3']) {
      vi.stubEnv(name, endpoint);
      const message = expect.stringMatching(`^${name} is "(?!.*secret).*write https://HOST or http://HOST:PORT`);
      await expect(S3Bucket.open('bucket')).rejects.toMatchObject({ code: 'CONFIG_INVALID', message });
    }
  },
);

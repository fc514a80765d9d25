// What needs no store. Buckets themselves are tried where they are used (bucket-bodies.test.ts, embed's s3 tests).

import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { S3Bucket } from './s3.ts';

/** Nothing of who runs these tests says where buckets are. */
function forget(): void {
  onTestFinished(() => void vi.unstubAllEnvs());
  for (const name of ['AWS_REGION', 'AWS_DEFAULT_REGION', 'AWS_PROFILE', 'AWS_ENDPOINT_URL', 'AWS_ENDPOINT_URL_S3'])
    vi.stubEnv(name, undefined);
  vi.stubEnv('AWS_CONFIG_FILE', '/dev/null');
  vi.stubEnv('AWS_SHARED_CREDENTIALS_FILE', '/dev/null');
}

async function whereOf(options?: { readonly endpoint: string }): Promise<string> {
  const bucket = await S3Bucket.open('bucket', options);
  bucket.close();
  return bucket.where;
}

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

function body(code: string, more: string): string {
  return `<?xml version="1.0"?><Error><Code>${code}</Code>${more}</Error>`;
}

describe('the region of a bucket', () => {
  test('is what two variables or the profile say, and who said so is told', async () => {
    forget();
    const folder = await mkdtemp(join(tmpdir(), 'shoal-aws-'));
    onTestFinished(() => rm(folder, { recursive: true }));
    const file = join(folder, 'config');
    await writeFile(file, '[default]\nregion = eu-west-1\n[profile other]\nregion = ap-south-1\n');
    vi.stubEnv('AWS_CONFIG_FILE', file);
    expect(await whereOf()).toBe('region eu-west-1 (the profile default)');
    vi.stubEnv('AWS_PROFILE', 'other');
    expect(await whereOf()).toBe('region ap-south-1 (the profile other)');
    vi.stubEnv('AWS_DEFAULT_REGION', 'eu-north-1');
    expect(await whereOf()).toBe('region eu-north-1 (AWS_DEFAULT_REGION)');
    vi.stubEnv('AWS_REGION', 'us-west-2');
    expect(await whereOf()).toBe('region us-west-2 (AWS_REGION)');
    const endpoint = 'http://me:secret@minio:9000';
    expect(await whereOf({ endpoint })).toBe('http://***@minio:9000, region us-west-2 (AWS_REGION)');
  });

  test('is not guessed: of AWS it is asked for by name, of another store what most go by is taken and told', async () => {
    forget();
    const message = expect.stringMatching(
      /region of the bucket bucket is set nowhere: set AWS_REGION.*AWS_ENDPOINT_URL_S3/,
    );
    await expect(S3Bucket.open('bucket')).rejects.toMatchObject({ code: 'CONFIG_INVALID', message });
    expect(await whereOf({ endpoint: 'http://minio:9000' })).toBe('http://minio:9000, region us-east-1 (set nowhere)');
  });

  const named =
    "<Message>The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'</Message>";
  test.each([
    ['moved (AWS)', 301, { 'x-amz-bucket-region': 'eu-west-1' }, body('PermanentRedirect', '<Bucket>bucket</Bucket>')],
    ['moving (AWS)', 307, { 'x-amz-bucket-region': 'eu-west-1' }, body('TemporaryRedirect', '<Bucket>bucket</Bucket>')],
    ['signed for another (AWS)', 400, {}, body('AuthorizationHeaderMalformed', '<Region>eu-west-1</Region>')],
    ['signed for another (MinIO, VersityGW)', 400, {}, body('AuthorizationHeaderMalformed', named)],
  ])('is named where the one that was asked is wrong: %s', async (_, status, headers, answer) => {
    forget();
    vi.stubEnv('AWS_ACCESS_KEY_ID', 'key');
    vi.stubEnv('AWS_SECRET_ACCESS_KEY', 'secret');
    const store = createServer(({ method }, response) => {
      response.writeHead(status, { ...headers, 'content-type': 'application/xml' });
      response.end(method === 'HEAD' ? undefined : answer);
    }).listen(0, '127.0.0.1');
    await once(store, 'listening');
    const { port } = store.address() as AddressInfo;
    const bucket = await S3Bucket.open('bucket', { endpoint: `http://127.0.0.1:${port}` });
    onTestFinished(() => {
      bucket.close();
      store.close();
    });
    const failure = {
      kind: 'refused',
      message: expect.stringContaining('in the region eu-west-1: set AWS_REGION=eu-west-1'),
    };
    await expect(bucket.get('key')).rejects.toMatchObject(failure);
    await expect(bucket.head('key')).rejects.toMatchObject(failure);
    await expect(bucket.put('key', Buffer.from('bytes'))).rejects.toMatchObject(failure);
  });
});

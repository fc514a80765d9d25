// What doctor says of a real bucket in which workers leave what they did not commit.

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { WORKER_FACTS, emptyLane, mayHaveS3Server, startS3Server, type S3Server } from '@shoal/queue/testing';
import type { QueueSeen } from './fleet-checks.ts';
import { checkPartBuckets } from './part-checks.ts';

test('nothing is said without a bucket', async () => {
  expect(await checkPartBuckets('/mnt/files', [telling('/mnt/others')], [])).toEqual([]);
});

function telling(...partFolders: string[]): QueueSeen {
  const lanes = { main: emptyLane('embed-x'), cpu: emptyLane('embed-x-cpu') };
  const workers = [{ workerId: 'a', facts: { ...WORKER_FACTS, partFolders } }];
  return { queue: 'embed-x', view: { lanes, workers, starting: [] } as unknown as QueueSeen['view'] };
}

if (!mayHaveS3Server) console.warn('buckets of parts are looked at where moto of PyPI is in the cache, and at night');

describe.skipIf(!mayHaveS3Server)('(moto of PyPI)', () => {
  let s3: S3Server;
  beforeAll(async () => {
    s3 = await startS3Server();
    await s3.makeBucket('shoal');
    Object.assign(process.env, s3.credentials, { AWS_ENDPOINT_URL_S3: s3.endpoint });
  }, 600_000);
  afterAll(async () => {
    delete process.env['AWS_ENDPOINT_URL_S3'];
    await s3.stop();
  });

  test('a rule that is missing is given whole, of each prefix that is written to, until it is there', async () => {
    const outputs = [{ bucket: 'shoal', prefix: 'v/' }];
    const [ofWorkers, written, ...none] = await checkPartBuckets('s3://shoal', [telling('s3://shoal/w')], outputs).then(
      (findings) => findings.toSorted((a, b) => (a.about > b.about ? -1 : 1)),
    );
    expect(none).toEqual([]);
    expect(ofWorkers).toMatchObject({ about: 'parts of files in s3://shoal/w/', state: 'warning' });
    expect(written).toMatchObject({
      about: 'parts of files in s3://shoal/v/',
      state: 'warning',
      found: 'no lifecycle rule of shoal deletes objects of the prefix v/_temporary/',
    });
    const [rule] = /\{.*\}/.exec(written?.cure ?? '') ?? [];
    expect(JSON.parse(rule!)).toEqual({
      ID: 'shoal-parts',
      Filter: { Prefix: 'v/_temporary/' },
      Status: 'Enabled',
      Expiration: { Days: 2 },
    });
    const body =
      '<LifecycleConfiguration><Rule><ID>shoal-parts</ID><Filter><Prefix>v/_temporary/</Prefix></Filter>' +
      '<Status>Enabled</Status><Expiration><Days>2</Days></Expiration></Rule></LifecycleConfiguration>';
    await s3.ask('shoal?lifecycle', { method: 'PUT', body });
    expect(await checkPartBuckets(undefined, [], outputs)).toMatchObject([{ state: 'ok' }]);
  });

  test('a bucket that cannot be looked at is a warning with what was said', async () => {
    const found = expect.stringContaining('NoSuchBucket');
    expect(await checkPartBuckets('s3://nothing-here/x', [], [])).toMatchObject([{ state: 'warning', found }]);
  });
});

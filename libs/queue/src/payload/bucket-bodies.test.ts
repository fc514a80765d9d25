// Bodies in a bucket: a real server of S3's protocol (moto's, of PyPI) that is killed, emptied, frozen, at the end of its
// strength or closed to us. What it cannot take goes elsewhere, in seconds; what it cannot give is PAYLOAD_LOST.

import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { ShoalError } from '@shoal/contract';
import { S3Bucket } from '@shoal/fetch/s3';
import { RecordingLogger } from '@shoal/core/testing';
import { bodiesConformance } from '../testing/bodies-conformance.ts';
import { S3Gate, mayHaveS3Server, startS3Server, type S3Credentials, type S3Server } from '../testing.ts';
import { BucketBodies } from './bucket-bodies.ts';
import { PayloadServers } from './payload-servers.ts';

if (!mayHaveS3Server)
  console.warn('bodies in a bucket are tried at night (npm run test:nightly), or once moto is in the cache');

const STORE = 's3://shoal/a/bodies';
const TTL_MS = 60_000;
/** Longer than the first pause of PayloadServer. */
const PAUSED_MS = 600;

function use(credentials: S3Credentials): void {
  Object.assign(process.env, credentials);
}

const put = (payloads: PayloadServers, key: string, value = 'x'): Promise<string | undefined> =>
  payloads.put('job', key, Buffer.from(value), TTL_MS);
const nameOf = (key: string): string => `a/bodies/${createHash('sha256').update(key).digest('hex')}`;
const rule = (prefix: string, more = '', status = 'Enabled'): string =>
  `<Rule><ID>r</ID><Filter><Prefix>${prefix}</Prefix></Filter><Status>${status}</Status>` +
  `<Expiration><Days>2</Days></Expiration>${more}</Rule>`;

/** As the first warning has it. */
async function reasonOfFirst(log: RecordingLogger): Promise<unknown> {
  await expect.poll(() => log.messages('warn').length).toBeGreaterThan(0);
  const { fields } = log.lines.find(({ level }) => level === 'warn')!;
  return (fields as { readonly reason?: unknown }).reason;
}

describe.skipIf(!mayHaveS3Server)('(moto of PyPI)', () => {
  let s3: S3Server;
  let gate: S3Gate;
  /** Past the gate, with every right. */
  let bucket: S3Bucket;
  const opened: PayloadServers[] = [];

  beforeAll(async () => {
    s3 = await startS3Server();
    gate = await S3Gate.open(s3.endpoint);
    use(s3.credentials);
    process.env['AWS_ENDPOINT_URL_S3'] = gate.endpoint;
    await s3.makeBucket('shoal');
    bucket = await S3Bucket.open('shoal', { endpoint: s3.endpoint });
    await bucket.remove('x'); // looks for its credentials now
  }, 600_000);

  afterEach(async () => {
    gate.refuse(undefined);
    await s3.trustAll();
    use(s3.credentials);
    await Promise.all(opened.splice(0).map((payloads) => payloads.close()));
  });

  afterAll(async () => {
    delete process.env['AWS_ENDPOINT_URL_S3'];
    bucket.close();
    await gate.close();
    await s3.stop();
  });

  async function connect(payloadServers = STORE, log = new RecordingLogger()): Promise<PayloadServers> {
    const payloads = await PayloadServers.connect({ payloadServers, clientName: 'test', log });
    opened.push(payloads);
    return payloads;
  }

  async function lifecycle(rules: string): Promise<void> {
    const body = `<LifecycleConfiguration>${rules}</LifecycleConfiguration>`;
    await s3.ask('shoal?lifecycle', { method: 'PUT', body });
  }

  async function found(): Promise<string[]> {
    const [tried] = await (await connect()).tried();
    expect(tried).toMatchObject({ name: STORE, problem: undefined });
    return tried!.remarks.map(({ found: said }) => said);
  }

  bodiesConformance('a bucket', async () => ({
    bodies: await BucketBodies.open({ bucket: 'shoal', prefix: '' }),
    takeAway: () => s3.kill9(),
    giveBack: () => s3.restart(),
    stop: async () => undefined,
  }));

  test('what was put lies below the prefix, and is gone once its job is over', async () => {
    const payloads = await connect(`${STORE}/`);
    expect(await put(payloads, 'k')).toBe(STORE);
    expect(await bucket.head(nameOf('k'))).toMatchObject({ bytes: 1 });
    const { headers } = await s3.ask(`shoal/${nameOf('k')}`);
    expect(Date.parse(headers.get('x-amz-meta-expires') ?? '') - Date.now()).toBeGreaterThan(TTL_MS - 10_000);
    payloads.note('job', { store: STORE, key: 'k' });
    payloads.forget(['job']);
    await expect.poll(() => bucket.head(nameOf('k'))).toBeUndefined();
  });

  test('no body replaces another: what a pointer leads to stays', async () => {
    const log = new RecordingLogger();
    const payloads = await connect(STORE, log);
    await put(payloads, 'once', 'first');
    expect(await put(payloads, 'once', 'other')).toBeUndefined();
    expect(await reasonOfFirst(log)).toContain('other bytes under the name');
    expect(String(await payloads.get({ store: STORE, key: 'once' }))).toBe('first');
  });

  test('a store that knows no conditional PUT is asked for plain ones', async () => {
    gate.refuse({ status: 501, code: 'NotImplemented', methods: ['PUT'], having: 'if-none-match' });
    const payloads = await connect();
    expect([await put(payloads, 'plain'), await put(payloads, 'plain 2')]).toEqual([STORE, STORE]);
    expect(gate.refused.get('PUT')).toBe(1);
  });

  test('a store that asks for patience is asked again, and then passed over', async () => {
    const log = new RecordingLogger();
    const payloads = await connect(STORE, log);
    gate.refuse({ status: 503, code: 'SlowDown', methods: ['PUT', 'GET'], times: 2 });
    expect(await put(payloads, 'throttled')).toBe(STORE);
    expect([gate.refused.get('PUT'), log.messages('warn')]).toEqual([2, []]);
    gate.refuse({ status: 503, code: 'SlowDown', methods: ['PUT', 'GET'] });
    expect(await put(payloads, 'throttled 2')).toBeUndefined();
    expect(await reasonOfFirst(log)).toContain('SlowDown');
    await expect(payloads.get({ store: STORE, key: 'throttled' })).rejects.toMatchObject({
      code: 'PAYLOAD_LOST',
      message: expect.stringContaining('SlowDown'),
    });
    gate.refuse(undefined);
    await expect.poll(() => put(payloads, 'throttled 3'), { timeout: 20_000 }).toBe(STORE);
    expect(String(await payloads.get({ store: STORE, key: 'throttled' }))).toBe('x');
    expect(log.messages('warn')).toHaveLength(1);
  });

  test.each([
    [507, 'InsufficientStorage'],
    [403, 'QuotaExceeded'],
  ])('a store that is full (%i %s) is passed over, and still gives what it has', async (status, code) => {
    const log = new RecordingLogger();
    const payloads = await connect(STORE, log);
    await put(payloads, code);
    gate.refuse({ status, code, methods: ['PUT'] });
    expect(await put(payloads, `${code} 2`)).toBeUndefined();
    expect(await reasonOfFirst(log)).toContain(code);
    expect(String(await payloads.get({ store: STORE, key: code }))).toBe('x');
  });

  test('a store that does not answer is given up after three seconds', async () => {
    const log = new RecordingLogger();
    const payloads = await connect(STORE, log);
    await put(payloads, 'slow');
    s3.pause();
    const [got, taken] = await Promise.allSettled([
      payloads.get({ store: STORE, key: 'slow' }),
      put(payloads, 'slow 2'),
    ]);
    s3.resume();
    expect(got).toMatchObject({ status: 'rejected', reason: { code: 'PAYLOAD_LOST' } });
    expect(taken).toEqual({ status: 'fulfilled', value: undefined });
    expect(await reasonOfFirst(log)).toContain('no answer within 3 s');
    await expect.poll(() => put(payloads, 'slow 3'), { timeout: 20_000 }).toBe(STORE);
  });

  test('what the bucket lost is PAYLOAD_LOST', async () => {
    const payloads = await connect();
    await put(payloads, 'lost');
    await s3.empty();
    await expect(payloads.get({ store: STORE, key: 'lost' })).rejects.toMatchObject({
      code: 'PAYLOAD_LOST',
      message: expect.stringMatching(/s3:\/\/shoal\/a\/bodies has nothing there/),
    });
  });

  test.each([
    ['s3:PutObject', [undefined, 'x'], false],
    ['s3:GetObject', [STORE, 'PAYLOAD_LOST'], false],
    ['s3:DeleteObject', [STORE, 'x'], true],
  ])('without the right to %s the log says so, and the rest works', async (right, outcome, stays) => {
    await bucket.put(nameOf('mine'), Buffer.from('x'));
    const all = ['s3:PutObject', 's3:GetObject', 's3:DeleteObject', 's3:ListBucket'];
    use(await s3.onlyAllow(all.filter((one) => one !== right)));
    const log = new RecordingLogger();
    const payloads = await connect(STORE, log);
    const read = payloads.get({ store: STORE, key: 'mine' }).catch(({ code }: ShoalError) => code);
    expect([await put(payloads, right), String(await read)]).toEqual(outcome);
    await sleep(PAUSED_MS); // what does not take bodies is left alone for a while
    payloads.note('job', { store: STORE, key: 'mine' });
    payloads.forget(['job']);
    expect(await reasonOfFirst(log)).toMatch(/AccessDenied/);
    await s3.trustAll();
    await expect.poll(async () => (await bucket.head(nameOf('mine'))) !== undefined).toBe(stays);
  });

  test.each<[string, string, S3Credentials | undefined]>([
    ['s3://no-such-bucket/a', 'NoSuchBucket', undefined],
    [STORE, 'InvalidAccessKeyId', { AWS_ACCESS_KEY_ID: 'nobody' }],
    [STORE, 'SignatureDoesNotMatch', { AWS_SECRET_ACCESS_KEY: 'wrong' }],
  ])('%s: %s is named', async (store, code, wrong) => {
    if (wrong !== undefined) use({ ...(await s3.onlyAllow(['s3:*'])), ...wrong });
    const log = new RecordingLogger();
    const payloads = await connect(store, log);
    expect(await put(payloads, 'k')).toBeUndefined();
    expect(await reasonOfFirst(log)).toContain(code);
    await expect(payloads.get({ store, key: 'k' })).rejects.toMatchObject({ code: 'PAYLOAD_LOST' });
  });

  describe('tried', () => {
    test('it says whether a lifecycle rule deletes what is left there', async () => {
      const none = [expect.stringContaining('no lifecycle rule of shoal deletes objects of the prefix a/bodies/')];
      expect(await found()).toEqual(none);
      for (const other of ['b/', 'a/bodies/deeper/']) {
        await lifecycle(rule(other));
        expect(await found()).toEqual(none);
      }
      await lifecycle(rule('a/', '', 'Disabled'));
      expect(await found()).toEqual(none);
      for (const ours of ['', 'a/', 'a/bodies/']) {
        await lifecycle(rule(ours));
        expect(await found()).toEqual([]);
      }
    });

    test('it says that versions stay where the bucket keeps them', async () => {
      const body = '<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>';
      await s3.ask('shoal?versioning', { method: 'PUT', body });
      await lifecycle(rule('a/'));
      expect(await found()).toEqual([expect.stringContaining('keeps versions')]);
      await lifecycle(
        rule('a/', '<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>'),
      );
      expect(await found()).toEqual([]);
      await s3.empty();
    });

    test('it says which rights are missing', async () => {
      use(await s3.onlyAllow(['s3:PutObject', 's3:GetObject']));
      const said = await found();
      expect(said).toEqual([
        expect.stringMatching(/deletes nothing.*AccessDenied/),
        expect.stringMatching(/lifecycle.*AccessDenied/),
      ]);
      use(await s3.onlyAllow(['s3:GetObject']));
      const [tried] = await (await connect()).tried();
      expect(tried?.problem).toMatch(/^takes no body \(AccessDenied/);
    });
  });
});

// Files into a bucket: addresses by day; at night a real server of S3's protocol, moto's, behind a proxy that can be taken
// away, and the whole command, which is killed while it uploads.

import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { gathered } from '@shoal/fetch/s3';
import { checkTarget } from '../output/target.ts';
import { Sandbox } from '../testing/shoal-process.ts';
import { S3BehindWay } from '../testing/s3-behind-way.ts';
import { objectPlace } from '@shoal/worker/files/object-place';
import { S3Object, type BegunUpload, type UploadTerms } from './s3.ts';

describe('an address', () => {
  test.each([
    ['s3://bucket/a/b c.jsonl', { bucket: 'bucket', key: 'a/b c.jsonl' }],
    ['s3://my.bucket-1/x', { bucket: 'my.bucket-1', key: 'x' }],
    ['file.jsonl', undefined],
    ['http://bucket/x', undefined],
  ])('%s is read', (address, place) => {
    expect(objectPlace(address, 'output')).toEqual(place && { name: address, ...place });
  });

  test.each(['s3://', 's3://bucket', 's3://bucket/', 's3://B/x', 's3://bucket/folder/'])('%s is refused', (address) => {
    expect(() => objectPlace(address, 'output')).toThrow('must be s3://BUCKET/KEY');
  });
});

test('other commands write no objects', async () => {
  await expect(checkTarget('s3://bucket/x.jsonl', [])).rejects.toThrow('which shoal embed alone writes');
});

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('uploads into a bucket are tried at night alone, with moto (npm run test:nightly)');

const opened = (key: string): Promise<S3Object> => S3Object.open(objectPlace(`s3://shoal/${key}`, 'output')!);

interface Heard {
  readonly away: string[];
  readonly sent: number[];
  begun: BegunUpload | undefined;
}

const hearing = (): Heard => ({ away: [], sent: [], begun: undefined });

describe.skipIf(!isNightly)('(nightly: moto of PyPI)', () => {
  const PART = 5 << 20; // S3 takes no smaller parts but for the last
  let s3: S3BehindWay;
  let folder: string;

  beforeAll(async () => {
    s3 = await S3BehindWay.start();
    folder = mkdtempSync(join(tmpdir(), 'shoal-s3-'));
  }, 600_000);
  afterAll(async () => {
    await s3.stop();
    rmSync(folder, { recursive: true });
  });

  const objectOf = async (key: string): Promise<Buffer> => gathered((await s3.bucket.get(key))!.pieces);

  function fileOf(bytes: number): { readonly path: string; readonly content: Buffer } {
    const path = join(folder, `${bytes}`);
    const blocks = Array.from({ length: Math.ceil(bytes / 32) }, (_, at) =>
      createHash('sha256').update(`${at}`).digest(),
    );
    const content = Buffer.concat(blocks).subarray(0, bytes);
    writeFileSync(path, content);
    return { path, content };
  }

  function terms(heard: Heard, change: Partial<UploadTerms> = {}): UploadTerms {
    return {
      signal: new AbortController().signal,
      begun: heard.begun,
      onBegun: async (begun) => void (heard.begun = begun),
      onProgress: (bytes) => void heard.sent.push(bytes),
      onAway: (problem) => void heard.away.push(problem),
      patienceMs: [10, 10],
      partBytes: PART,
      ...change,
    };
  }

  test.each([0, 17, 2 * PART + 7])('a file of %i bytes becomes the object', async (bytes) => {
    const { path, content } = fileOf(bytes);
    const [object, heard] = [await opened(`plain/${bytes}`), hearing()];
    await object.upload(path, '', terms(heard));
    object.close();
    expect((await objectOf(`plain/${bytes}`)).equals(content)).toBe(true);
    expect(heard.sent.at(-1)).toBe(bytes);
  });

  test('a store that goes away half-way is waited for, and a later command sends only what is missing', async () => {
    const { path, content } = fileOf(3 * PART + 5);
    const [object, heard] = [await opened('half'), hearing()];
    const leaving = terms(heard, {
      onProgress: (bytes) => {
        heard.sent.push(bytes);
        if (bytes === PART) void s3.way.close();
      },
    });
    await expect(object.upload(path, '', leaving)).rejects.toMatchObject({
      code: 'FILE_UNWRITABLE',
      message: expect.stringContaining('cannot write s3://shoal/half'),
    });
    object.close();
    expect([heard.sent, heard.away.length]).toEqual([[PART], 2]);
    await s3.way.open();
    const [next, id] = [await opened('half'), heard.begun?.id];
    await next.upload(path, '', terms(heard));
    next.close();
    expect(heard.begun?.id).toBe(id);
    expect((await objectOf('half')).equals(content)).toBe(true);
  });

  test.each([17, PART + 1])('what somebody else wrote meanwhile stays: %i bytes', async (bytes) => {
    const { path } = fileOf(bytes);
    for (const before of [undefined, 'first']) {
      const key = `changed/${bytes}/${before}`;
      const put = (content: string) => s3.bucket.put(key, Buffer.from(content));
      if (before !== undefined) await put(before);
      const object = await opened(key);
      await put('theirs');
      await expect(object.upload(path, '', terms(hearing()))).rejects.toThrow('was written by somebody else since');
      object.close();
      expect((await objectOf(key)).toString()).toBe('theirs');
      const again = await opened(key);
      await again.upload(path, '', terms(hearing()));
      again.close();
      expect(await objectOf(key)).toHaveLength(bytes);
    }
  });

  test('a bucket that is not there is refused before anything is computed', async () => {
    await expect(S3Object.open(objectPlace('s3://nothing-here/x', 'output')!)).rejects.toThrow(
      'cannot write s3://nothing-here/x: there is no bucket nothing-here',
    );
  });

  test('a command that is killed while the store is away uploads what it has computed, and leaves nothing here', async () => {
    const sandbox = new Sandbox();
    try {
      writeFileSync(sandbox.path('texts.txt'), Array.from({ length: 300 }, (_, at) => `text ${at}`).join('\n'));
      const place = s3.environment;
      const args = ['embed', sandbox.path('texts.txt'), '-o'];
      const options = { environment: place, folder: sandbox.files };
      const hidden = (): string[] => readdirSync(sandbox.files).filter((name) => name.startsWith('.shoal-s3'));
      const files = (): string[] => hidden().flatMap((name) => readdirSync(join(sandbox.files, name)));
      const first = sandbox.start([...args, 's3://shoal/out.jsonl'], options);
      await expect.poll(files, { timeout: 120_000 }).toContainEqual(expect.stringMatching(/shoal-partial$/));
      await s3.way.close();
      await expect.poll(first.stderr, { timeout: 120_000 }).toContain('trying again in');
      first.child.kill('SIGKILL');
      await first.ended;
      await s3.way.open();
      const second = await sandbox.start([...args, 's3://shoal/out.jsonl'], options).ended;
      expect(second.stderr).toMatch(/goes on with .* behind 300 rows/);
      expect(second.stderr).toMatch(/300 rows → s3:\/\/shoal\/out\.jsonl/);
      expect([second.code, hidden()]).toEqual([0, []]);
      const local = await sandbox.start([...args, 'out.jsonl'], options).ended;
      expect(local.code).toBe(0);
      expect(String(await objectOf('out.jsonl'))).toBe(readFileSync(sandbox.path('out.jsonl'), 'utf8'));
      writeFileSync(
        sandbox.path('rows.jsonl'),
        '{"id": "a", "text": "one"}\n{"id": "b"}\n{"id": "c", "text": "three"}\n',
      );
      const rows = ['embed', sandbox.path('rows.jsonl'), '--on-error', 'skip', '--dtype', 'i8', '--json', '-o'];
      const told = await sandbox.start([...rows, 's3://shoal/rows.npy'], options).ended;
      expect(JSON.parse(told.stdout)).toMatchObject({
        isDone: true,
        rows: 2,
        output: 's3://shoal/rows.npy',
        ids: 's3://shoal/rows.npy.ids.jsonl',
        scales: 's3://shoal/rows.npy.scales.npy',
        skippedList: 's3://shoal/rows.npy.skipped.jsonl',
      });
      expect(String(await objectOf('rows.npy.ids.jsonl'))).toBe('"a"\n"c"\n');
      expect(String(await objectOf('rows.npy.skipped.jsonl'))).toContain('"line":2');
      expect((await objectOf('rows.npy')).subarray(1, 6).toString()).toBe('NUMPY');
      expect(hidden()).toEqual([]);
      const none = await sandbox.start([...args, 's3://nothing-here/out.jsonl'], options).ended;
      expect([none.code, none.stderr]).toEqual([1, expect.stringContaining('there is no bucket nothing-here')]);
    } finally {
      sandbox.remove();
    }
  });
});

// Objects as inputs, at night with a real server of S3's protocol, moto's, behind a way that can be taken away.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { gathered } from '@shoal/fetch/s3';
import { runInside } from '../testing/command-here.ts';
import { Sandbox } from '../testing/shoal-process.ts';
import { S3BehindWay } from '../testing/s3-behind-way.ts';
import { checkInputs, readInputs } from './files.ts';
import { ObjectSource } from '@shoal/worker/files/object-source';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('objects as inputs are tried at night alone, with moto (npm run test:nightly)');

async function records(name: string) {
  const found = [];
  const { signal } = new AbortController();
  const options = { textField: undefined, idField: undefined, stdin: process.stdin, signal, onBytes: () => undefined };
  for await (const record of readInputs(await checkInputs([name], undefined), options)) found.push(record);
  return found;
}

const texts = (found: readonly object[]) => found.map((record) => Reflect.get(record, 'text'));

test.each(['s3://', 's3://bucket', 's3://bucket/', 's3://B/x.txt'])('%s is refused', async (address) => {
  await expect(checkInputs([address], 'text')).rejects.toMatchObject({
    code: 'USAGE',
    message: expect.stringContaining('an object is called s3://BUCKET/KEY'),
  });
});

describe.skipIf(!isNightly)('(nightly: moto of PyPI) an object', () => {
  let s3: S3BehindWay;

  beforeAll(async () => {
    s3 = await S3BehindWay.start();
  }, 600_000);
  afterAll(() => s3.stop());

  const large = Buffer.concat(
    Array.from({ length: 300_000 }, (_, at) => createHash('sha256').update(`${at}`).digest()), // 9.6 MB
  );

  test('is read as a file of its name would be, also compressed and Parquet', async () => {
    await s3.bucket.put('a/b c.jsonl', Buffer.from('{"id":1,"text":"one"}\n{"text":"two"}\n'));
    expect(await records('s3://shoal/a/b c.jsonl')).toMatchObject([
      { id: 1, text: 'one' },
      { line: 2, text: 'two' },
    ]);
    const fixtures = join(import.meta.dirname, '../../fixtures/parquet');
    const parquet = readFileSync(join(fixtures, 'codec-zstd.parquet'));
    await s3.bucket.put('rows.parquet', parquet);
    expect(texts(await records('s3://shoal/rows.parquet'))).toEqual(
      texts(await records(join(fixtures, 'codec-zstd.parquet'))),
    );
  });

  test('goes on behind the last byte where the connection breaks, and waits for a store that is away', async () => {
    await s3.bucket.put('large', large);
    const source = await ObjectSource.open('s3://shoal/large');
    const [told, pieces] = [[] as string[], [] as Buffer[]];
    let breaks = 0;
    const terms = [(problem: string) => void told.push(problem), [10, 200, 200, 200]] as const;
    for await (const piece of source.chunks(...terms)) {
      pieces.push(piece);
      const bytes = pieces.reduce((sum, { length }) => sum + length, 0);
      if (breaks === 0 && bytes > 1_000_000) [breaks] = [1, s3.way.break()];
      if (breaks === 1 && bytes > 3_000_000) {
        breaks = 2;
        await s3.way.close();
        setTimeout(() => void s3.way.open(), 100);
      }
    }
    expect(Buffer.concat(pieces).equals(large)).toBe(true);
    expect(breaks).toBe(2);
    const [at, into] = [source.openAt(), Buffer.alloc(100)];
    expect(await at.read(into, 0, 100, large.length - 60)).toEqual({ bytesRead: 60 });
    expect(into.subarray(0, 60).equals(large.subarray(-60))).toBe(true);
  });

  test('that was replaced or removed while it was read is refused, and never mixed', async () => {
    await s3.bucket.put('changing', large);
    const source = await ObjectSource.open('s3://shoal/changing');
    await s3.bucket.put('changing', Buffer.from('another'));
    await expect(gathered(source.chunks())).rejects.toThrow('the object was replaced while it was read');
    await expect(source.openAt().read(Buffer.alloc(4), 0, 4, 0)).rejects.toThrow('was replaced while it was read');
    const gone = await ObjectSource.open('s3://shoal/changing');
    await s3.bucket.remove('changing');
    await expect(gathered(gone.chunks())).rejects.toThrow('was removed while it was read');
    await expect(records('s3://shoal/changing.txt')).rejects.toThrow('there is no such object, or no such bucket');
  });

  test('is closed with all others where one cannot be read or a later check refuses the run', async () => {
    await s3.bucket.put(
      'large.txt',
      large.subarray(0, 1_000_000).map((byte) => (byte % 26) + 97),
    );
    await s3.bucket.put('broken.parquet', large.subarray(0, 1_000));
    const sandbox = new Sandbox();
    sandbox.shareModels();
    try {
      for (const [code, ...args] of [
        [1, 's3://shoal/large.txt', 's3://shoal/nothing.txt'],
        [1, 's3://shoal/broken.parquet'],
        [2, 's3://shoal/large.txt', '--with-text', '-o', 'a.npy'],
        [2, 's3://shoal/large.txt', '--dimensions', '9999', '-o', 'a.jsonl'],
      ] as const) {
        s3.way.break();
        const { code: found, stderr } = await runInside(sandbox, ['embed', ...args]);
        expect([args, found, stderr]).toEqual([args, code, expect.not.stringContaining('stack')]);
        await expect.poll(() => s3.way.connections).toBe(0);
      }
    } finally {
      sandbox.remove();
    }
  });

  test('that is closed breaks off what is read of it, and waits for no store that is away', async () => {
    await s3.bucket.put('large', large);
    const source = await ObjectSource.open('s3://shoal/large');
    const reading = source.chunks();
    await reading.next();
    await s3.way.close();
    const away = Promise.withResolvers<void>();
    const waits = Promise.allSettled([source.openAt(() => away.resolve()).read(Buffer.alloc(4), 0, 4, 0)]);
    await away.promise;
    source.close();
    expect(await waits).toMatchObject([{ reason: { name: 'AbortError' } }]);
    await s3.way.open();
    await reading.return(undefined);
    source.close();
    await expect.poll(() => s3.way.connections).toBe(0);
  });

  test('is embedded; rows of an interrupted run are gone on with, and not behind another object of its name', async () => {
    const sandbox = new Sandbox();
    try {
      const environment = s3.environment;
      const lines = Buffer.from(Array.from({ length: 10_000 }, (_, at) => `text ${at}`).join('\n'));
      const args = ['embed', 's3://shoal/texts.txt', '-o', 'out.jsonl'];
      // bytes that are no text stand behind so many good lines that most have rows by then, and end the run
      await s3.bucket.put('texts.txt', Buffer.concat([lines, Buffer.from('\n\xff\n', 'latin1')]));
      const first = await sandbox.start(args, { environment, folder: sandbox.files }).ended;
      expect([first.code, first.stderr]).toEqual([
        1,
        expect.stringMatching(/s3:\/\/shoal\/texts\.txt, line 10001.*UTF-8/),
      ]);
      const again = await sandbox.start(args, { environment, folder: sandbox.files }).ended;
      expect([again.code, again.stderr]).toEqual([
        1,
        expect.stringMatching(/goes on with out\.jsonl behind [\d,]+ rows/),
      ]);
      await s3.bucket.put('texts.txt', Buffer.concat([lines, Buffer.from('\nmore')]));
      const other = await sandbox.start(args, { environment, folder: sandbox.files }).ended;
      expect([other.code, other.stderr]).toEqual([2, expect.stringContaining('s3://shoal/texts.txt had')]);
      const fresh = await sandbox.start([...args, '--fresh'], { environment, folder: sandbox.files }).ended;
      expect([fresh.code, fresh.stderr]).toEqual([0, expect.stringContaining('10,001 rows')]);
      const same = await sandbox.start(
        ['embed', 's3://shoal/texts.txt', '-o', 's3://shoal/texts.txt', '--output-format', 'jsonl'],
        { environment },
      ).ended;
      expect([same.code, same.stderr]).toEqual([2, expect.stringContaining('is also an input')]);
    } finally {
      sandbox.remove();
    }
  });
});

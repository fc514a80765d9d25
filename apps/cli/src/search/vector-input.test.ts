// Vectors of objects, at night with a real server of S3's protocol, moto's. Those of files are tried with the commands that
// read them.

import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { npyHeader, npyRows } from '@shoal/worker/files/npy';
import { runInside } from '../testing/command-here.ts';
import { S3BehindWay } from '../testing/s3-behind-way.ts';
import { Sandbox } from '../testing/shoal-process.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('vectors of objects are tried at night alone, with moto (npm run test:nightly)');

describe.skipIf(!isNightly)('(nightly: moto of PyPI) vectors of an object', () => {
  const box = new Sandbox();
  const temporary = process.env['TMPDIR'];
  let s3: S3BehindWay;

  beforeAll(async () => {
    s3 = await S3BehindWay.start();
    process.env['TMPDIR'] = box.files;
    await s3.bucket.put('v.npy', Buffer.concat([npyHeader(2, 2), npyRows(Float32Array.of(1, 0, 0, 1))]));
    await s3.bucket.put('v.jsonl', Buffer.from('{"id":"x","embedding":[1,0]}\n{"id":"y","embedding":[0,1]}\n'));
    await s3.bucket.put('texts.jsonl', Buffer.from('{"text":"one"}\n'));
    await s3.bucket.put('bad.npy', Buffer.from('this is no array'));
    const root = join(import.meta.dirname, '../../../..');
    await s3.bucket.put('v.parquet', readFileSync(join(root, 'apps/cli/fixtures/parquet-vectors/fixed.parquet')));
    await s3.bucket.put('v.arrow', readFileSync(join(root, 'libs/similarity/fixtures/arrow/f32.arrow')));
  }, 600_000);
  afterAll(async () => {
    if (temporary === undefined) delete process.env['TMPDIR'];
    else process.env['TMPDIR'] = temporary;
    await s3.stop();
    box.remove();
  });

  const run = (...args: readonly string[]) => runInside(box, args, { environment: s3.environment });

  test.each([
    ['npy', { rows: 2, dims: 2 }],
    ['jsonl', { rows: 2, dims: 2 }],
    ['parquet', { rows: 30, dims: 4 }],
    ['arrow', {}],
  ])('become a collection: .%s', async (format, shape) => {
    const built = await run('index', 'build', format, `s3://shoal/v.${format}`, '--json', '-q');
    expect([built.code, built.stderr]).toEqual([0, '']);
    expect(JSON.parse(built.stdout)).toMatchObject({ name: format, version: 1, ...shape });
    expect(readdirSync(box.files)).toEqual([]); // of the copy nothing is left
  });

  test('are compared with others', async () => {
    expect(await run('similarity', 's3://shoal/v.npy', 's3://shoal/v.jsonl')).toMatchObject({
      code: 0,
      stdout: '1.000000\t0.000000\n0.000000\t1.000000\n',
    });
    const compared = await run('similarity', 's3://shoal/v.parquet', 's3://shoal/v.parquet', '--json', '-q');
    expect(JSON.parse(compared.stdout)).toMatchObject({ rows: 30, columns: 30 });
  });

  test('are refused by the name of the object', async () => {
    for (const args of [
      ['index', 'build', 'bad', 's3://shoal/bad.npy'],
      ['similarity', 's3://shoal/v.npy', 's3://shoal/bad.npy'],
    ])
      expect(await run(...args)).toMatchObject({
        code: 1,
        stderr: expect.stringContaining('s3://shoal/bad.npy: it is no .npy file'),
      });
    for (const gone of ['gone.npy', 'gone.parquet', 'gone.jsonl'])
      expect(await run('index', 'build', 'gone', `s3://shoal/${gone}`)).toMatchObject({
        code: 1,
        stderr: expect.stringContaining(`cannot read s3://shoal/${gone}: there is no such object`),
      });
    expect(await run('index', 'build', 'mixed', 's3://shoal/v.npy', 's3://shoal/texts.jsonl')).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('some of the files hold vectors and some texts'),
    });
    expect(readdirSync(box.files)).toEqual([]);
    await expect.poll(() => s3.way.connections).toBe(0);
  });
});

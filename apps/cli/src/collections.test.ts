import { writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Sandbox } from './testing/shoal-process.ts';

let box: Sandbox;
beforeAll(() => {
  box = new Sandbox();
});
afterAll(() => box.remove());

test('texts become a collection, are searched exactly and by candidates, and go away', async () => {
  writeFileSync(box.path('a.md'), '# Queues\n\nJobs wait in a queue until a worker claims them.\n\n# Cats\n\nA cat sleeps most of the day and hunts at night.\n');
  const built = await box.run(['index', 'build', 'docs', 'a.md', '--ann', '--json', '-q']);
  expect(built).toMatchObject({ code: 0 });
  expect(JSON.parse(built.stdout)).toMatchObject({ name: 'docs', version: 1, rows: 2, ann: { recall: 1 } });
  for (const how of [[], ['--ann']]) {
    const { stdout, code } = await box.run(['search', 'docs', '# Cats\nA cat sleeps most of the day and hunts at night.', '-k', '1', '--json', '-q', ...how]);
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ collection: 'docs@1', found: [{ id: expect.any(String), name: expect.stringContaining('a.md#') }] });
  }
  expect((await box.run(['index', 'check', 'docs'])).stdout).toContain('docs@1 is whole: 2 rows');
  expect(await box.run(['index', 'rm', 'docs', '-q'])).toMatchObject({ code: 0 });
  expect(await box.run(['search', 'docs', 'x'])).toMatchObject({ code: 1, stderr: expect.stringContaining('no collection is called docs') });
});

test('vectors and edges need no queue', async () => {
  writeFileSync(box.path('v.jsonl'), '{"id":"x","embedding":[1,0]}\n{"id":"y","embedding":[0,1]}\n');
  writeFileSync(box.path('g.csv'), 'a,b\nb,c\nc,a\n');
  expect(await box.run(['index', 'build', 'v', 'v.jsonl'])).toMatchObject({ code: 0, stderr: expect.stringMatching(/^shoal: v@1: 2 rows of 2 dimensions/) });
  expect((await box.run(['similarity', 'v.jsonl', 'v.jsonl'])).stdout).toBe('1.000000\t0.000000\n0.000000\t1.000000\n');
  expect((await box.run(['spread', 'g.csv', '--seed', 'a', '--steps', '2'])).stdout).toBe('1.000000  a\n0.500000  b\n0.250000  c\n');
  expect(await box.run(['spread', 'g.csv', '--seed', 'z'])).toMatchObject({ code: 1, stderr: expect.stringContaining('there is no node "z"') });
});

import { readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { importModel, writeTinyModel } from '@shoal/models';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { attachServer, type AttachedServer } from '@shoal/private-server';
import { runHere } from '../testing/command-here.ts';
import { Sandbox, interrupt, says } from '../testing/shoal-process.ts';

let box: Sandbox;
let server: AttachedServer | undefined;
beforeAll(() => {
  box = new Sandbox();
  process.env['PATH'] = box.environment()['PATH']; // where attachServer looks for a server program
});
afterAll(async () => {
  await server?.release();
  box.remove();
});

/** From here on there is a worker; until then, and for other models, a command starts one. */
async function workerIsThere(): Promise<void> {
  if (server !== undefined) return;
  server = await attachServer({ cacheDir: box.cacheDir });
  await says(box.start(['worker']), 'serves tiny-random@');
}

test('texts become a collection, are searched exactly and by candidates, and go away', async () => {
  writeFileSync(
    box.path('a.md'),
    '# Queues\n\nJobs wait in a queue until a worker claims them.\n\n# Cats\n\nA cat sleeps most of the day ' +
      'and hunts at night.\n',
  );
  const built = await box.run(['index', 'build', 'docs', 'a.md', '--ann', '--json', '-q']);
  expect(built).toMatchObject({ code: 0 });
  expect(JSON.parse(built.stdout)).toMatchObject({ name: 'docs', version: 1, rows: 2, ann: { recall: 1 } });
  await workerIsThere();
  for (const how of [[], ['--ann']]) {
    const { stdout, code } = await box.run([
      'search',
      'docs',
      '# Cats\nA cat sleeps most of the day and hunts at night.',
      '-k',
      '1',
      '--json',
      '-q',
      ...how,
    ]);
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({
      collection: 'docs@1',
      found: [{ id: expect.any(String), name: expect.stringContaining('a.md#') }],
    });
  }
  const otherModel = await runHere(box, ['index', 'build', 'docs', 'a.md', '--append', '--model', 'tiny-random-b']);
  expect(otherModel).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(
      /--model tiny-random-b is asked .* docs was embedded by tiny-random@.*leave out --model, or .* without --append/,
    ),
  });
  expect((await runHere(box, ['index', 'check', 'docs'])).stdout).toContain('docs@1 is whole: 2 rows');
  expect(await runHere(box, ['index', 'rm', 'docs', '-q'])).toMatchObject({ code: 0 });
  expect(await runHere(box, ['search', 'docs', 'x'])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('no collection is called docs'),
  });
});

test('vectors and edges need no queue', async () => {
  writeFileSync(box.path('v.jsonl'), '{"id":"x","embedding":[1,0]}\n{"id":"y","embedding":[0,1]}\n');
  writeFileSync(box.path('g.csv'), 'a,b\nb,c\nc,a\n');
  expect(await runHere(box, ['index', 'build', 'v', 'v.jsonl'])).toMatchObject({
    code: 0,
    stderr: expect.stringMatching(/^shoal: v@1: 2 rows of 2 dimensions/),
  });
  expect((await runHere(box, ['similarity', 'v.jsonl', 'v.jsonl'])).stdout).toBe(
    '1.000000\t0.000000\n0.000000\t1.000000\n',
  );
  const folder = join(import.meta.dirname, '../../fixtures/parquet-vectors');
  writeFileSync(box.path('first.jsonl'), '[0,0.125,0.25,0.375]\n'); // the first row of the fixtures
  for (const name of ['fixed.parquet', 'half.parquet']) {
    const compared = await runHere(box, ['similarity', join(folder, name), 'first.jsonl', '--json', '-q']);
    expect(JSON.parse(compared.stdout)).toMatchObject({ rows: 30, columns: 1, scores: { 0: [expect.closeTo(1, 6)] } });
  }
  expect(
    await runHere(box, ['similarity', join(folder, 'fixed.parquet'), 'v.jsonl', '--column', 'nope']),
  ).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/fixed\.parquet: the file has no column "nope".*name it with --column/),
  });
  expect((await runHere(box, ['spread', 'g.csv', '--seed', 'a', '--steps', '2'])).stdout).toBe(
    '1.000000  a\n0.500000  b\n0.250000  c\n',
  );
  expect(await runHere(box, ['spread', 'g.csv', '--seed', 'z'])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('there is no node "z"'),
  });
});

test('files of vectors are told by their first record, whatever stands in it and however long it is', async () => {
  writeFileSync(box.path('bracket.jsonl'), '\n{"id":"a[b]","embedding":[1,2]}\n');
  writeFileSync(
    box.path('long.jsonl'),
    `${JSON.stringify({ id: 'x', text: `${'long '.repeat(2_000)} [1]`, embedding: [1, 2] })}\n`,
  );
  for (const name of ['bracket', 'long']) {
    expect(await runHere(box, ['index', 'build', name, `${name}.jsonl`])).toMatchObject({
      code: 0,
      stderr: expect.stringMatching(new RegExp(`^shoal: ${name}@1: 1 rows? of 2 dimensions`)),
    });
  }
  const parquet = join(import.meta.dirname, '../../fixtures/parquet-vectors/fixed.parquet');
  const built = await runHere(box, ['index', 'build', 'parquet', parquet, '--id-field', 'key', '--json', '-q']);
  expect([built.code, JSON.parse(built.stdout)]).toMatchObject([0, { rows: 30, dims: 4 }]);
  writeFileSync(box.path('texts.jsonl'), '{"text":"an \\"embedding\\": [1, 2]"}\n');
  expect(await runHere(box, ['index', 'build', 'mixed', 'texts.jsonl', 'bracket.jsonl'])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('some of the files hold vectors and some texts'),
  });
});

test('flags that a build could not follow are refused, and it makes no version', async () => {
  writeFileSync(box.path('one.jsonl'), '{"id":"x","embedding":[1,0]}\n');
  expect(await runHere(box, ['index', 'build', 'e1', 'one.jsonl'])).toMatchObject({ code: 0 });
  const refusals = [
    [
      ['--append', '--dtype', 'f16'],
      '--dtype f16 is asked for and e1 holds f32: all rows of a collection are of one type; leave out --dtype, ' +
        'or build it anew without --append',
    ],
    [['--model', '../x'], '--model ../x is no model: NAME, or NAME@REVISION, that made the vectors'],
    [['--max-tokens', '9'], '--max-tokens is about texts, and the files hold vectors'],
    [['--prompt', 'none'], '--prompt is about texts, and the files hold vectors'],
    [['--column', 'a'], '--column names a column of an Arrow file'],
    [['--id-field', 'key'], '--id-field is about texts, and the files hold vectors'],
    [['--text-field', 'body'], '--text-field is about texts, and the files hold vectors'],
    [['--on-error', 'skip'], '--on-error skip is about texts, and the files hold vectors'],
  ] as const;
  for (const [flags, message] of refusals)
    expect(await runHere(box, ['index', 'build', 'e1', 'one.jsonl', ...flags])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining(message),
    });
  expect(await runHere(box, ['index', 'build', 'e1', 'one.jsonl', '--append', '--dtype', 'f32'])).toMatchObject({
    code: 0,
    stderr: expect.stringContaining('e1@2: 2 rows'),
  });
});

test('of several names to remove all are looked at first, and one that is named twice goes once', async () => {
  writeFileSync(box.path('one.jsonl'), '{"id":"x","embedding":[1,0]}\n');
  expect(await runHere(box, ['index', 'build', 'e2', 'one.jsonl'])).toMatchObject({ code: 0 });
  expect(await runHere(box, ['index', 'rm', 'e2', 'nosuch'])).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/no collection is called nosuch.*; nothing was removed/s),
  });
  expect(await runHere(box, ['index', 'rm', 'e2', 'e2@9'])).toMatchObject({ code: 0, stderr: 'shoal: removed e2@1\n' });
});

test('a matrix of scores goes to a file, and what is said of it is as asked', async () => {
  writeFileSync(box.path('two.jsonl'), '[1,0]\n[0,1]\n');
  const compare = (...flags: string[]) =>
    runHere(box, ['similarity', 'two.jsonl', 'two.jsonl', '-o', 'scores.npy', ...flags]);
  expect(await compare()).toMatchObject({ code: 0, stdout: '', stderr: 'shoal: 2 × 2 scores → scores.npy\n' });
  expect(await compare('-q')).toMatchObject({ code: 0, stdout: '', stderr: '' });
  expect(await compare('--json')).toMatchObject({
    code: 0,
    stdout: '{"metric":"cosine","rows":2,"columns":2,"output":"scores.npy"}\n',
    stderr: '',
  });
  expect(readdirSync(box.files).filter((name) => name.includes('scores'))).toEqual(['scores.npy']);
});

test('vectors of a model that nobody knows are searched and appended to only with --model, and files carry it', async () => {
  writeFileSync(box.path('u.jsonl'), `${JSON.stringify(Array.from({ length: 32 }, (_, i) => i))}\n`);
  writeFileSync(box.path('t.txt'), 'one text\n');
  await workerIsThere();
  expect(await box.run(['index', 'build', 'u', 'u.jsonl'])).toMatchObject({
    code: 0,
    stderr: expect.stringContaining('which model made the rows of u is not known: a search needs --model NAME'),
  });
  for (const command of [
    ['search', 'u', 'hello'],
    ['index', 'build', 'u', 't.txt', '--append'],
    ['similarity', 'u.jsonl', 'a text.'],
  ])
    expect(await runHere(box, command)).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('nobody knows which model'),
    });
  expect(await box.run(['embed', 't.txt', '-o', 't.arrow', '-q'])).toMatchObject({ code: 0 });
  expect(await box.run(['index', 'build', 'k', 't.arrow', '-q'])).toMatchObject({ code: 0 });
  expect((await runHere(box, ['index', 'show', 'k'])).stdout).toMatch(/model {5}tiny-random@\w+\n/);
  expect(await runHere(box, ['index', 'build', 'k', 'u.jsonl', '--append'])).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/k was embedded by tiny-random@.*do not say which model made them: say --model tiny/),
  });
  expect(await runHere(box, ['search', 'k', 'x', '--model', 'minilm'])).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(/--model minilm is asked for and k was embedded by tiny-random@/),
  });
  expect(await runHere(box, ['similarity', 't.txt', 'x'])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('t.txt is a file, and none of vectors'),
  });
  expect(await runHere(box, ['similarity', 's3://bucket/t.txt', 'x'])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('s3://bucket/t.txt is an object, and none of vectors'),
  });
  for (const args of [
    ['similarity', 's3://bucket/.npy/', 'x'],
    ['index', 'build', 'o', 's3://B/x.npy'],
  ])
    expect(await runHere(box, args)).toMatchObject({
      code: 2,
      stderr: expect.stringMatching(/an object is called s3:\/\/BUCKET\/KEY|none of vectors/),
    });
});

test('a build of texts that is interrupted keeps its rows, and the same command goes on with them', async () => {
  await workerIsThere();
  const folder = join(box.cacheDir, 'collections');
  const state = join(folder, '.many.shoal-build.json');
  const first = await interrupt({
    rows: 6_000,
    start: (rows) => {
      const lines = Array.from({ length: rows }, (_, row) => ({ id: `n${row}`, text: `text number ${row}` }));
      writeFileSync(box.path('many.jsonl'), lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
      rmSync(join(folder, 'many'), { recursive: true, force: true });
      return box.start(['index', 'build', 'many', 'many.jsonl', '--json']);
    },
    isThere: () => {
      try {
        return /"rows": [1-9]/.test(readFileSync(state, 'utf8'));
      } catch {
        return false; // not yet, or not any more
      }
    },
    signals: ['SIGINT'],
    output: join(folder, 'many'),
  });
  expect(first).toMatchObject({
    code: 130,
    stdout: expect.stringMatching(
      /^\{"isDone":false,"left":"kept","rows":\d+,"goesOnWith":"shoal index build many many.jsonl --json","error":.*"interrupted"\}\}\n$/,
    ),
    stderr: expect.stringMatching(
      /[\d,]+ of (about )?[\d,]+ rows kept; the same command goes on with them: shoal index build many many\.jsonl --json\n/,
    ),
  });
  expect(
    await runHere(box, ['index', 'build', 'many', 'many.jsonl', '--on-error', 'skip', '--id-field', 'id']),
  ).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(
      /rows of an unfinished build of many are kept.*\n {2}--id-field was not given and is id/,
    ),
  });
  const second = await box.run(['index', 'build', 'many', 'many.jsonl']);
  expect(second).toMatchObject({
    code: 0,
    stderr: expect.stringMatching(
      new RegExp(
        /goes on with many behind [\d,]+ rows of an interrupted run[\s\S]*/.source +
          `many@1: ${first.rows.toLocaleString('en')} rows`,
      ),
    ),
  });
  expect(readdirSync(folder).filter((name) => name.includes('many'))).toEqual(['many']); // nothing hidden is left
  expect(await box.run(['index', 'build', 'quiet', 'many.jsonl', '-q'])).toMatchObject({ code: 0 });
  const [found, quiet] = await Promise.all(
    ['many', 'quiet'].map(async (name) => {
      const { stdout } = await box.run(['search', name, 'text number 77', '-k', '50', '--json', '-q']);
      const { found: hits }: { found: { id: string; name: string }[] } = JSON.parse(stdout);
      return hits.map(({ id, name: called }) => `${id} ${called}`);
    }),
  );
  expect(found).toEqual(quiet);
  expect(found!.filter((hit) => !/^(\d+) n\1$/.test(hit))).toEqual([]);
});

test('passages and queries have the prompts of their sides, or those that are named', async () => {
  await writeTinyModel(box.path('model'), { seed: 5 });
  const prompts = { query: 'the dog and the cat: ', passage: 'a mouse: ' };
  await importModel(box.path('model'), { cacheDir: box.cacheDir, name: 'prompted', prompts });
  writeFileSync(box.path('prompted.txt'), 'the text\n');
  const build = ['index', 'build', 'sides', 'prompted.txt', '--model', 'prompted'];
  expect(await runHere(box, [...build, '--prompt', 'title'])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--prompt title: the model prompted has "query", "passage": ask for one of them'),
  });
  expect(await box.run(build)).toMatchObject({ code: 0 });
  const score = async (...flags: readonly string[]): Promise<number> => {
    const { stdout } = await box.run(['search', 'sides', 'the text', '--json', '-q', ...flags]);
    return (JSON.parse(stdout) as { found: { score: number }[] }).found[0]!.score;
  };
  expect(await score('--prompt', 'passage')).toBeGreaterThan(0.999999);
  expect(await score()).toBeLessThan(0.9999);
  expect(await runHere(box, [...build, '--append', '--prompt', 'none'])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('the rows of sides were embedded with --prompt passage: leave it out'),
  });
});

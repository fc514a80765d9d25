import { mkdir, mkdtemp, readdir, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { readCorpus } from './corpus.ts';
import { topK } from './top-k.ts';
import { VectorStore } from './vector-store.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-search-'));
});
afterEach(() => rm(folder, { recursive: true }));

const prose = (about: string) => `# ${about}\n\nThis passage is about ${about} and has enough letters to count.\n`;
const key = (n: number) => n.toString(16).padStart(64, '0');

async function write(files: Readonly<Record<string, string>>): Promise<void> {
  for (const [name, content] of Object.entries(files)) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeFile(join(folder, name), content);
  }
}

describe('the corpus', () => {
  test('has this project’s documents first, then READMEs of named dependencies, then the others', async () => {
    await write({
      'package.json': '{"dependencies":{"zebra":"1"}}',
      'libs/core/package.json': '{"dependencies":{"@scope/named":"1"}}',
      'docs/jobs.md': prose('jobs'),
      'README.md': prose('the project'),
      'libs/core/notes.md': prose('notes'),
      'node_modules/aardvark/README.md': prose('aardvarks'),
      'node_modules/zebra/readme.md': prose('zebras'),
      'node_modules/@scope/named/README.md': prose('scopes'),
    });
    const files = (await readCorpus(folder, { passages: 100, words: 10_000 })).map((passage) => passage.file);
    expect(files).toEqual([
      'README.md',
      'docs/jobs.md',
      'libs/core/notes.md',
      'node_modules/@scope/named/README.md',
      'node_modules/zebra/readme.md',
      'node_modules/aardvark/README.md',
    ]);
  });

  test('leaves out what answers no question, what is made for tests, and what it has already', async () => {
    await write({
      'README.md': prose('the project'),
      'CHANGELOG.md': prose('changes'),
      'LICENSE.md': prose('rights'),
      'SECURITY.md': prose('reports'),
      'apps/x/fixtures/a.md': prose('fixtures'),
      'docs/lab/2026-11/a.md': prose('measurements'),
      '.hidden/a.md': prose('hidden things'),
      'node_modules/copy/README.md': prose('the project'),
      'node_modules/copy/CHANGELOG.md': prose('more changes'),
    });
    expect((await readCorpus(folder, { passages: 100, words: 10_000 })).map((passage) => passage.file)).toEqual([
      'README.md',
    ]);
  });

  test('ends at its limits', async () => {
    await write({ 'a.md': prose('one'), 'b.md': prose('two'), 'c.md': prose('three') });
    expect(await readCorpus(folder, { passages: 2, words: 10_000 })).toHaveLength(2);
    expect(await readCorpus(folder, { passages: 100, words: 20 })).toHaveLength(1);
  });
});

describe('kept vectors', () => {
  test('come back bit for bit', async () => {
    const path = join(folder, 'sub/vectors');
    const store = await VectorStore.open(path, 2);
    store.set(key(1), Float32Array.of(0.1, -1));
    store.set(key(2), Float32Array.of(3, 4));
    await store.save(new Set());
    const again = await VectorStore.open(path, 2);
    expect([again.get(key(1)), again.get(key(2)), again.get(key(3))]).toEqual([
      Float32Array.of(0.1, -1),
      Float32Array.of(3, 4),
      undefined,
    ]);
    expect(await readdir(join(folder, 'sub'))).toEqual(['vectors']);
  });

  test('of another size, or damaged, count as none', async () => {
    const path = join(folder, 'vectors');
    const store = await VectorStore.open(path, 2);
    store.set(key(1), Float32Array.of(1, 2));
    await store.save(new Set());
    expect((await VectorStore.open(path, 3)).get(key(1))).toBeUndefined();
    await truncate(path, 50);
    expect((await VectorStore.open(path, 2)).get(key(1))).toBeUndefined();
  });
});

test('the nearest rows come best first, equal ones in their order', () => {
  const matrix = Float32Array.of(1, 0, 0, 1, 0.6, 0.8, 0, 1, -1, 0);
  const hits = topK(matrix, Float32Array.of(0, 1), 3);
  expect(hits.map((hit) => hit.row)).toEqual([1, 3, 2]);
  expect(hits[2]!.score).toBeCloseTo(0.8, 6);
  expect(topK(matrix, Float32Array.of(0, 1), 99)).toHaveLength(5);
});

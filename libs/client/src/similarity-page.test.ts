// What docs/jobs.md says of similarity jobs is a contract with producers that are not ours: what it shows must be true.

import { readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { encodeComparands, parseSimilarityJob, similarityFingerprint, type SimilarityKind } from '@shoal/contract';

const page = await readFile(new URL('../../../docs/jobs.md', import.meta.url), 'utf8');
const section = page.slice(page.indexOf('## Similarity jobs'), page.indexOf('## Promise'));
const vectors = { vectors: Buffer.from(Float32Array.of(1, 0).buffer).toString('base64'), dims: 2 };

test('the page shows the bytes and the fingerprints of its own examples', () => {
  const queries = { values: Float32Array.of(1, 0), rows: 1, dims: 2 };
  expect(section).toContain(
    encodeComparands({ queries })
      .toString('hex')
      .replaceAll(/(..)(?=.)/g, '$1 '),
  );
  expect(section).toContain(
    similarityFingerprint({ kind: 'topk', collection: 'docs@3', metric: 'cosine', k: 10 }, { queries }),
  );
  expect(section).toContain(
    similarityFingerprint({ kind: 'spread', graph: 'links', steps: 3, decay: 0.5, threshold: 0, k: 10 }, [[7], [1, 2]]),
  );
});

test('every field that the page names for a kind is one of it', () => {
  const values: Record<string, unknown> = {
    collection: 'docs@3',
    against: vectors,
    queries: vectors,
    candidates: [[1]],
    k: 1,
    metric: 'l2',
    graph: 'links',
    seeds: [[1]],
    steps: 2,
    decay: 0.5,
    threshold: 0.1,
  };
  for (const [, kind, fields] of section.matchAll(/^\| `(topk|rescore|cosine|spread)` \| (.*?) \|/gm)) {
    const named = [...fields!.matchAll(/`(\w+)\??`/g)]
      .map((match) => match[1]!)
      .filter((field) => !(kind === 'cosine' && field === 'collection'));
    const data = { v: 1, ...Object.fromEntries(named.map((field) => [field, values[field]])) };
    expect(parseSimilarityJob('j', kind as SimilarityKind, data).request.kind).toBe(kind);
  }
});

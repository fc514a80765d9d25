// The published JSON Schema against the schemas that workers read jobs with: what the one takes the other takes.

import { readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { parseJob } from './embed-job.ts';
import { jobSchema, jobSchemaFile } from './job-schema.ts';
import { parseRerankJob } from './rerank-job.ts';
import { parseSimilarityJob, type SimilarityKind } from './similarity-job.ts';

const HASH = '0123456789abcdef';
const VECTORS = { vectors: Buffer.from(Float32Array.of(1, 0).buffer).toString('base64'), dims: 2 };
const published = jobSchema() as { readonly $defs: Readonly<Record<string, object>> };

function takes(name: string, data: unknown): boolean {
  return z.fromJSONSchema({ ...published.$defs[name] }).safeParse(data).success;
}

function isRead(name: string, data: unknown): boolean {
  try {
    if (name === 'embed') parseJob('j', name, data);
    else if (name === 'rerank') parseRerankJob('j', name, data);
    else parseSimilarityJob('j', name as SimilarityKind, data);
    return true;
  } catch {
    return false;
  }
}

test('docs/jobs.schema.json is what the schemas say (npm run docs writes it)', async () => {
  const file = new URL('../../../docs/jobs.schema.json', import.meta.url);
  expect(await readFile(file, 'utf8')).toBe(jobSchemaFile());
});

test.each<[name: string, data: unknown, isJob: boolean]>([
  ['embed', { v: 1, texts: ['a', ''] }, true],
  ['embed', { v: 1, input: { form: 'tokens', rows: 2, tokens: 9, tokenizer: HASH }, fingerprint: HASH }, true],
  ['embed', { v: 2, texts: ['a'], prompt: 'clustering', output: { dtype: 'i8', normalize: true } }, true],
  ['embed', { v: 2, texts: ['a'], meta: { userId: 5, tags: ['x', { y: null }] }, returnVectors: true }, true],
  ['embed', { v: 1, texts: ['a'], meta: {} }, false],
  ['embed', { v: 1, texts: [] }, false],
  ['embed', { v: 1, texts: Array.from({ length: 257 }, () => 'a') }, false],
  ['embed', { v: 2, texts: Array.from({ length: 1_024 }, () => 'a') }, true],
  ['embed', { v: 2, input: { form: 'texts', rows: 1_025 } }, false],
  ['embed', { v: 1, texts: ['a'], userId: 5 }, false],
  ['embed', { v: 1, texts: ['a'], reply: 'elsewhere' }, false],
  ['embed', { v: 2, input: { form: 'texts', rows: 1 }, returnVectors: true }, false],
  ['embed', { v: 2, texts: ['a'], meta: ['a list'] }, false],
  ['embed', { texts: ['a'] }, false],
  ['rerank', { v: 2, query: 'q', texts: ['a'], meta: { at: 'x' }, returnScores: true }, true],
  ['embed', { v: 2, texts: ['a'], returnScores: true }, false],
  ['embed', { v: 2, texts: ['a'], trace: { requestId: 'r', tracestate: 'a=1' } }, true],
  ['embed', { v: 2, texts: ['a'], trace: { requestId: 'two words' } }, false],
  ['rerank', { v: 1, query: 'q', texts: ['a'] }, false],
  ['topk', { v: 1, collection: 'docs@3', queries: VECTORS, k: 10, metric: 'l2', names: true }, true],
  ['topk', { v: 1, collection: 'docs@3', queries: VECTORS }, false],
  ['topk', { v: 2, collection: 'docs', queries: VECTORS, k: 1, meta: { at: 1 } }, true],
  ['spread', { v: 1, graph: 'links', seeds: [[7]], k: 10, meta: {} }, false],
  ['cosine', { v: 1, queries: VECTORS, against: VECTORS }, true],
  ['rescore', { v: 1, collection: 'docs', queries: VECTORS, candidates: [[1, 2]], k: 1 }, true],
  ['spread', { v: 1, graph: 'links', seeds: [[7], [[1, 0.5], 2]], k: 10 }, true],
  ['spread', { v: 1, graph: 'links', seeds: [[]], k: 10 }, false],
])('%s %j: %j, by the published schema as by workers', (name, data, isJob) => {
  expect([takes(name, data), isRead(name, data)]).toEqual([isJob, isJob]);
});

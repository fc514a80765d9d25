// Names of the hub beside those of the store.

import { expect, test } from 'vitest';
import { storedName } from './model-name.ts';

test.each([
  ['intfloat/multilingual-e5-small', 'intfloat--multilingual-e5-small'],
  ['BAAI/bge-reranker-v2.m3', 'baai--bge-reranker-v2-m3'],
  ['minilm', 'minilm'],
  ['minilm@8c2f9a417d03', 'minilm@8c2f9a417d03'],
  ['intfloat/multilingual-e5-small@main', 'intfloat/multilingual-e5-small@main'],
])('%s is called %s by the store', (name, stored) => {
  expect(storedName(name)).toBe(stored);
});

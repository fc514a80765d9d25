// Answers in pieces are the answers in one piece.

import { expect, test } from 'vitest';
import { toResponse } from './embeddings-response.ts';
import { JsonList, jsonPieces } from './json-stream.ts';

test.each([0, 1, 3, 2_000])('%i items in pieces are the same text as in one', (count) => {
  for (const rest of [{}, { model: 'm', usage: { total_tokens: 7 } }]) {
    const list = new JsonList(count, (index) => ({ index, text: `"${'x'.repeat(index % 90)}\n` }), rest);
    const pieces = [...jsonPieces(list)];
    expect(pieces.join('')).toBe(JSON.stringify(list.whole()));
    for (const piece of pieces) expect(piece.length).toBeLessThan(66_000);
  }
});

test.each(['float', 'base64'] as const)('vectors as %s are the same text in pieces as in one', (encoding) => {
  const [rows, dims] = [300, 96];
  const vectors = Float32Array.from({ length: rows * dims }, (_, at) => Math.sin(at));
  const list = toResponse({ rows, dims, vectors }, 'a "model"', encoding, { tokens: 7, truncated: 1 });
  const pieces = [...jsonPieces(list)];
  expect(pieces.length).toBeGreaterThan(1);
  expect(pieces.join('')).toBe(JSON.stringify(list.whole()));
});

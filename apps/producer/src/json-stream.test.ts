// Answers in pieces are the answers in one piece.

import { expect, test } from 'vitest';
import { JsonList, jsonPieces } from './json-stream.ts';

test.each([0, 1, 3, 2_000])('%i items in pieces are the same text as in one', (count) => {
  for (const rest of [{}, { model: 'm', usage: { total_tokens: 7 } }]) {
    const list = new JsonList(count, (index) => ({ index, text: `"${'x'.repeat(index % 90)}\n` }), rest);
    const pieces = [...jsonPieces(list)];
    expect(pieces.join('')).toBe(JSON.stringify(list.whole()));
    for (const piece of pieces) expect(piece.length).toBeLessThan(66_000);
  }
});

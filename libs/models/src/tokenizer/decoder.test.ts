// Ids back to text against the official package, by every kind of tokenizer that the fixtures have.

import { describe, expect, test } from 'vitest';
import tokenizers from 'tokenizers';
import { madeTokenizer } from '../testing/made-models.ts';
import { seededRandom } from '@shoal/core/base';
import { hostileStrings, randomStrings } from '../testing/texts.ts';
import { parseDecoder } from './decoder.ts';

const KINDS = ['wordpiece', 'mpnet', 'xlmr', 'roberta', 'modernbert', 'qwen', 'llama3', 'gemma', 'mistral'];
const TEXTS = [
  '',
  'Iron atoms align, they do not wait. It’s "so", isn\'t it ?',
  'Ein Fisch  schwimmt\nim   Schwarm 1 2 3',
  'ﬁsh 🐟🐠 魚の群れ पानी e\u0301',
  ...hostileStrings(40, 7),
  ...randomStrings(40, 3),
];

describe.each(KINDS)('of the kind %s', (kind) => {
  test('ids of texts, and ids of nobody, become what the package makes of them', async () => {
    const json = await madeTokenizer(kind);
    const reference = tokenizers.Tokenizer.fromString(json);
    reference.disablePadding();
    reference.disableTruncation();
    const decoder = parseDecoder(json, 'tokenizer.json');
    const most = reference.getVocabSize(true);
    const random = seededRandom(5);
    const rows = [
      ...(await reference.encodeBatch(TEXTS)).map((encoding) => encoding.getIds()),
      ...Array.from({ length: 40 }, () => Array.from({ length: 24 }, () => Math.floor(random() * most))),
    ];
    for (const ids of rows)
      for (const skipsSpecial of [true, false])
        expect(decoder.decode(ids, skipsSpecial)).toBe(await reference.decode(ids, skipsSpecial));
  });
});

test('ids that are no token give nothing', () => {
  const json = JSON.stringify({
    model: { type: 'WordPiece', vocab: { '[CLS]': 0, shoal: 1, '##s': 2, '.': 3 } },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    added_tokens: [{ id: 0, content: '[CLS]', special: true }],
  });
  const { decode } = parseDecoder(json, 'x.json');
  expect(decode([0, 1, 2, 3, 99], true)).toBe('shoals.');
  expect(decode([0, 1, 2, 3, 99], false)).toBe('[CLS] shoals.');
});

test('a decoder that is not known is refused by its name', () => {
  const json = JSON.stringify({ model: { vocab: {} }, decoder: { type: 'CTC' } });
  expect(() => parseDecoder(json, 'x.json')).toThrow(/x\.json.* a decoder of type "CTC", which is not known here/);
});

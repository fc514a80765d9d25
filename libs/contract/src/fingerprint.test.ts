// The fingerprint is a contract between languages: these values were computed with Python's hashlib.

import { expect, test } from 'vitest';
import { fingerprintOf, tokenizerHash, type FingerprintFacts } from './fingerprint.ts';
import { encodeTexts } from './input-format.ts';

const FACTS: FingerprintFacts = {
  model: 'minilm@53aa51172d14',
  prompt: undefined,
  truncate: 'end',
  output: { dtype: 'f32', dimensions: undefined },
};
const INPUT = encodeTexts(['Hi', '', '€']);

test('golden values', () => {
  expect(fingerprintOf(FACTS, INPUT)).toBe('883950d45fb1c575');
  expect(
    fingerprintOf({ ...FACTS, prompt: 'query', truncate: 'error', output: { dtype: 'i8', dimensions: 128 } }, INPUT),
  ).toBe('8908da5ab7dd78ed');
  expect(tokenizerHash(Buffer.from('{}'))).toBe('44136fa355b3678a');
});

test('every fact and every byte of the input counts', () => {
  const variants = [
    fingerprintOf(FACTS, INPUT),
    fingerprintOf({ ...FACTS, model: 'minilm@000000000000' }, INPUT),
    fingerprintOf({ ...FACTS, prompt: 'query' }, INPUT),
    fingerprintOf({ ...FACTS, truncate: 'error' }, INPUT),
    fingerprintOf({ ...FACTS, output: { dtype: 'f16', dimensions: undefined } }, INPUT),
    fingerprintOf({ ...FACTS, output: { dtype: 'f32', dimensions: 384 } }, INPUT),
    fingerprintOf({ ...FACTS, output: { dtype: 'f32', dimensions: undefined, normalize: true } }, INPUT),
    fingerprintOf(FACTS, encodeTexts(['Hi', '€', ''])),
  ];
  expect(new Set(variants).size).toBe(variants.length);
});

import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { MAX_VALUE, firstIncomparable } from './vectors-format.ts';

const least = Math.fround(MAX_VALUE); // in fp32 a little more than MAX_VALUE
const largest = new Float32Array(new Int32Array([new Int32Array(Float32Array.of(least).buffer)[0]! - 1]).buffer)[0]!;
const good = [0, -0, 1e-45, -1e-45, 1, -1, 1e15, -1e15, largest, -largest];
const bad = [least, -least, 1e17, -1e17, 3.4e38, Infinity, -Infinity, NaN, -NaN];

test('the first value that cannot be compared is found wherever it stands, and no other', () => {
  expect(largest).toBeLessThanOrEqual(MAX_VALUE);
  expect(least).toBeGreaterThan(MAX_VALUE);
  const value = fc.oneof(
    { weight: 30, arbitrary: fc.constantFrom(...good) },
    { weight: 1, arbitrary: fc.constantFrom(...bad) },
  );
  fc.assert(
    fc.property(fc.array(value, { maxLength: 60 }), fc.nat(3), (values, skipped) => {
      // within a larger buffer
      const padded = Float32Array.of(...Array.from({ length: skipped }, () => NaN), ...values).subarray(skipped);
      const found = values.findIndex((one) => bad.includes(one));
      expect(firstIncomparable(padded)).toBe(found === -1 ? undefined : found);
    }),
    { numRuns: 2_000 },
  );
});

import { expect, test } from 'vitest';
import { ClaimLead } from './claim-lead.ts';

test('nothing before anything ran, or before a job was filled', () => {
  const lead = new ClaimLead();
  expect(lead.tokens(0)).toBe(0);
  lead.filled(50);
  expect(lead.tokens(0)).toBe(0);
  const unfilled = new ClaimLead();
  unfilled.ran(60_000, 0);
  expect(unfilled.tokens(0)).toBe(0);
});

test('what the device eats while a job is on its way', () => {
  const lead = new ClaimLead();
  for (let ms = 5; ms <= 2_000; ms += 5) {
    lead.ran(60_000, ms); // 12,000 a millisecond
    lead.filled(70);
  }
  expect(lead.tokens(2_000) / (12_000 * 70)).toBeCloseTo(1, 1);
});

test('forgotten when nothing runs any more', () => {
  const lead = new ClaimLead();
  for (let ms = 5; ms <= 2_000; ms += 5) lead.ran(60_000, ms);
  for (let job = 0; job < 100; job++) lead.filled(70);
  expect(lead.tokens(4_000)).toBeLessThan(0.001 * lead.tokens(2_000));
});

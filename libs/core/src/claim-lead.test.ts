import { expect, test } from 'vitest';
import { ClaimLead } from './claim-lead.ts';

/** A device that eats 12,000 tokens a millisecond for two seconds, and jobs that are filled so long after they were asked for. */
function busyLead(fillMs: number): ClaimLead {
  const lead = new ClaimLead();
  for (let ms = 5; ms <= 2_000; ms += 5) {
    lead.ran(60_000, ms);
    lead.filled(fillMs);
  }
  return lead;
}

test('nothing before anything ran', () => {
  const lead = new ClaimLead();
  lead.filled(50);
  expect(lead.tokens(0)).toBe(0);
});

test('what the device eats while a job is on its way, and in 100 ms more', () => {
  expect(busyLead(70).tokens(2_000) / (12_000 * 170)).toBeCloseTo(1, 1);
  expect(busyLead(0).tokens(2_000) / (12_000 * 100)).toBeCloseTo(1, 1);
});

test('forgotten when nothing runs any more', () => {
  const lead = busyLead(70);
  expect(lead.tokens(4_000)).toBeLessThan(0.001 * lead.tokens(2_000));
});

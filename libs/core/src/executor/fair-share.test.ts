// What a lead is: who asked for little lately goes first, for a bounded number of tokens, and nobody who comes evenly
// does.

import { expect, test } from 'vitest';
import { Flows } from './fair-share.ts';

const LEAD = 2 ** 18;

/** Whether each of so many jobs of 1,024 tokens has a lead. */
function enter(flows: Flows, tenant: string, jobs: number): boolean[] {
  return Array.from({ length: jobs }, () => flows.enter(tenant, 1_024));
}

/** Where everybody's first lead is long used. */
function served(...tenants: readonly string[]): Flows {
  const flows = new Flows();
  for (const tenant of tenants) enter(flows, tenant, 300);
  return flows;
}

test('one tenant alone has no lead over itself, but for what comes first', () => {
  const leads = enter(new Flows(), 'A', 2_000);
  expect(leads.indexOf(false)).toBe(LEAD / 2 / 1_024 + 1);
  expect(leads.lastIndexOf(true)).toBe(LEAD / 2 / 1_024);
});

test('tenants begin alike, whoever comes first', () => {
  const flows = new Flows();
  expect(enter(flows, 'A', 60)).not.toContain(false);
  expect(enter(flows, 'B', 100)).not.toContain(false);
  enter(flows, 'B', 400);
  expect(enter(flows, 'B', 1)).toEqual([false]);
  expect(enter(flows, 'A', 1)).toEqual([true]);
});

test('who comes late with little has a lead over who has had much, until half of it is used', () => {
  const flows = served('A');
  const leads = enter(flows, 'B', 300);
  expect(leads.lastIndexOf(true)).toBe(leads.indexOf(false) - 1);
  expect(leads.indexOf(false)).toBe(LEAD / 2 / 1_024 + 1);
  expect(enter(flows, 'A', 1)).toEqual([false]);
});

test('a lead comes back as others are served', () => {
  const flows = new Flows();
  enter(flows, 'A', 1_000);
  for (let round = 0; round < 5; round++) {
    expect(enter(flows, 'B', 40)).not.toContain(false);
    enter(flows, 'A', 60);
  }
});

test('tenants that come evenly have none, however their jobs are cut', () => {
  const flows = served('A', 'B');
  for (let round = 0; round < 200; round++) {
    expect(flows.enter('A', 16 * 1_024)).toBe(false);
    expect(enter(flows, 'B', 16)).not.toContain(true);
  }
});

test('tenants that were served long ago are forgotten, and come back as new ones', () => {
  const flows = new Flows();
  for (let i = 0; i < 5_000; i++) {
    flows.enter(`tenant ${i}`, 1_024);
    flows.enter('A', 4_096);
  }
  expect(flows.size).toBeLessThan(200);
  expect(flows.enter('tenant 1', 1_024)).toBe(true);
});

test('of tenants that came once each and asked for little the first are forgotten', () => {
  const flows = new Flows();
  for (let i = 0; i < 50_000; i++) flows.enter(`tenant ${i}`, 100);
  expect(flows.size).toBeLessThanOrEqual(4_096);
  expect(flows.enter('tenant 49999', 100)).toBe(true);
});

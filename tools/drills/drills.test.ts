// All drills, one after the other, at night: each raises exactly its alerts in a real Prometheus, and the commands of its
// runbook cure it. By day tools/watch/watch.test.ts looks at what can be looked at without processes.

import { expect, test } from 'vitest';
import { findWatchProgram } from '../watch/programs.ts';
import { DRILL_PLANS } from './drill-list.ts';
import { FAULTS } from './faults.ts';
import { runDrill } from './run-drill.ts';
import { whatUsersFelt, type Answer } from './users.ts';

const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const { path: prometheus, missing } = findWatchProgram('prometheus');
if (!isNight) console.log('drills run at night: SHOAL_TEST_NIGHTLY=1, or tools/drills/main.ts --only 7');
else if (missing !== undefined) console.log(`no drill runs: ${missing}`);
const hasClock = process.env['SHOAL_TEST_FAKETIME'] !== undefined;
if (isNight && !hasClock)
  console.log('drill 14 does not run: SHOAL_TEST_FAKETIME names no libfaketime (.ci/run fetches it)');

test('every drill of the list has its fault, and no other', () => {
  expect(DRILL_PLANS.map(({ number }) => number)).toEqual(Object.keys(FAULTS).map(Number));
});

const answer = (status: number, hasRetryAfter = true): Answer => ({ status, ms: 1_240, hasRetryAfter });

test('what users felt is told, and what they should not have felt is refused', () => {
  expect(whatUsersFelt([answer(200), answer(503), answer(200)], [200, 503])).toBe(
    '2 of 3 answered, 1 × 503, the slowest after 1.2 s',
  );
  expect(() => whatUsersFelt([answer(200), answer(0)], [200])).toThrow('with 200, and were with 0, 200');
  expect(() => whatUsersFelt([answer(200)], [200, 429])).toThrow('with 200, 429, and were with 200');
  expect(() => whatUsersFelt([answer(200), answer(503, false)], [200, 503])).toThrow('a 503 came without Retry-After');
});

for (const plan of DRILL_PLANS) {
  const canRun = isNight && prometheus !== undefined && (plan.number !== 14 || hasClock);
  test.skipIf(!canRun)(`${plan.number}: ${plan.title}`, async () => {
    const { raised } = await runDrill(plan, FAULTS[plan.number]!, { prometheus: prometheus!, say: console.log });
    expect(raised).toEqual(plan.alerts.toSorted());
  });
}

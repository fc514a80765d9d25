// All drills, one after the other, at night: each raises exactly its alerts in a real Prometheus, and the commands of its
// runbook cure it. By day tools/watch/watch.test.ts looks at what can be looked at without processes.

import { expect, test } from 'vitest';
import { findWatchProgram } from '../watch/programs.ts';
import { DRILL_PLANS } from './drill-list.ts';
import { FAULTS } from './faults.ts';
import { runDrill } from './run-drill.ts';

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

for (const plan of DRILL_PLANS) {
  const canRun = isNight && prometheus !== undefined && (plan.number !== 14 || hasClock);
  test.skipIf(!canRun)(`${plan.number}: ${plan.title}`, async () => {
    const { raised } = await runDrill(plan, FAULTS[plan.number]!, { prometheus: prometheus!, say: console.log });
    expect(raised).toEqual(plan.alerts.toSorted());
  });
}

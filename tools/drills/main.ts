// Runs drills by hand:
//
//   node --conditions=@shoal/source tools/drills/main.ts [--only 7] [--record]
//
// Needs Prometheus on PATH. Prints each drill with the commands that cured it; --record writes the results, from which
// `npm run docs` makes docs/drills.md. Ends with 1 when a drill failed, 2 when it is called wrongly.

import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { findWatchProgram } from '../watch/programs.ts';
import { DRILL_PLANS } from './drill-list.ts';
import { readDrillResults, type DrillResult } from './drills-page.ts';
import { FAULTS } from './faults.ts';
import { runDrill } from './run-drill.ts';

process.exitCode = await main();

async function main(): Promise<number> {
  const { values } = parseArgs({ options: { only: { type: 'string' }, record: { type: 'boolean', default: false } } });
  const plans = DRILL_PLANS.filter(({ number }) => values.only === undefined || values.only === String(number));
  if (plans.length === 0) {
    console.error(`--only ${values.only} is no drill; there are 1 to ${DRILL_PLANS.length}`);
    return 2;
  }
  const { path: prometheus, missing } = findWatchProgram('prometheus');
  if (prometheus === undefined) {
    console.error(missing);
    return 1;
  }
  const results: Record<string, DrillResult> = { ...readDrillResults() };
  let failed = 0;
  for (const plan of plans) {
    try {
      const result = await runDrill(plan, FAULTS[plan.number]!, { prometheus, say: console.log });
      console.log(`${plan.number}: ${JSON.stringify(result)}`);
      results[plan.number] = result;
      if (values.record)
        writeFileSync(new URL('results.json', import.meta.url), `${JSON.stringify(results, null, 2)}\n`);
    } catch (error) {
      console.error(`${plan.number}: FAILED: ${error instanceof Error ? error.message : String(error)}`);
      failed++;
    }
  }
  console.log(`${plans.length - failed} drills held, ${failed} failed`);
  return failed === 0 ? 0 : 1;
}

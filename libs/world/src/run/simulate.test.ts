import { spawn } from 'node:child_process';
import { afterEach, describe, expect, test } from 'vitest';
import { keptPlans } from './kept-plans.ts';
import { planOf } from './plan.ts';
import { PLANTED, plantOf } from './planted.ts';
import { runPlan, runSeeds } from './run-seeds.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
/** The same ones each time: a red gate must be red again. `npm run simulate` tries new ones. */
const SEEDS_OF_THE_GATE = { from: 0, seeds: isNightly ? 2_000 : 15 };
const processes = isNightly ? 2 : 1;
/** Processes that take the cores; by day other tests do. */
const BURNING = isNightly ? 3 : 0;
if (!isNightly)
  console.warn('planted mistakes are looked for, and thousands of seeds run, at night (npm run test:nightly)');

test('nothing that is promised is broken by the seeds of the gate', async () => {
  const { failed, runs } = await runSeeds({ ...SEEDS_OF_THE_GATE, processes });
  expect(failed.map(({ seed, violations }) => `seed ${seed}: ${violations[0]}`)).toEqual([]);
  expect(runs).toBe(SEEDS_OF_THE_GATE.seeds);
});

test.each([
  ['76', 1_024],
  ['822', 300],
])('nor by seed %s, of which a job has %d rows', async (seed, rows) => {
  const plan = planOf(seed);
  expect(Math.max(...plan.jobs.map(({ words }) => words.length))).toBe(rows);
  const { report } = await runPlan(plan);
  expect(report.violations).toEqual([]);
});

test.each(keptPlans())('what failed once does not again: $cause', async ({ plan }) => {
  const { report } = await runPlan(plan);
  expect(report.violations).toEqual([]);
});

test('a job that kills whoever runs it goes to quarantine, and nobody else does', async () => {
  const drawn = planOf('33'); // two workers, seven jobs, of which job-5 is poison
  const plan = { ...drawn, faults: [] };
  const { report, lines } = await runPlan(plan, { isTraced: true });
  expect(report.violations).toEqual([]);
  const convicted = lines.filter((line) => line.includes('job quarantined'));
  expect(convicted).toEqual([expect.stringMatching(/"job-5".* ended each time it was alone at the device/)]);
});

describe('two runs of a seed', () => {
  const burning: ReturnType<typeof spawn>[] = [];
  afterEach(() => burning.splice(0).forEach((child) => child.kill('SIGKILL')));

  test('are the same, byte for byte, in two processes, whatever else they ran and whoever takes their cores', async () => {
    const plan = planOf('7');
    const first = await runPlan(plan, { isTraced: true });
    for (let i = 0; i < BURNING; i++) burning.push(spawn(process.execPath, ['-e', 'for (;;);'], { stdio: 'ignore' }));
    const second = await runPlan(plan, { isTraced: true, after: ['1', '2', '3'] });
    expect(second.report).toEqual(first.report);
    expect(second.lines).toEqual(first.lines);
    expect(first.lines.length).toBeGreaterThan(100);
  });
});

test('a planted mistake is found at once where any schedule meets it', async () => {
  const { failed } = await runSeeds({ from: 0, seeds: 1, processes, plant: 'room-half-released' });
  expect(failed.map(({ violations }) => violations.join(' '))).toEqual([expect.stringMatching(/room-uneven/)]);
});

// Each may take thousands of schedules, so that a night takes a third of them; by day planted.test.ts looks whether they
// still fit.
const TONIGHT = Math.floor(Date.now() / 86_400_000) % 3;
const plants = [...new Set(PLANTED.map(plantOf))].filter((_, at) => at % 3 === TONIGHT);
test.skipIf(!isNightly).each(plants)('a planted mistake is found: %s', async (plant) => {
  const { failed } = await runSeeds({ from: 0, seeds: 10_000, processes, plant });
  expect(failed.length).toBeGreaterThan(0);
  const { report } = await runPlan(planOf(failed[0]!.seed));
  expect(report.violations).toEqual([]); // it is the mistake that was found
});

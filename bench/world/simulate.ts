// Runs the product in a seeded world (docs/simulation.md): producers, claimers, executors and a model of the queue
// server, with faults, each seed another schedule. Says what was promised and did not hold.
//
//   npm run simulate -- [--seeds 1000] [--minutes 10] [--from S] [--processes N]
//     --seeds N        how many seeds; with --minutes alone as many as there is time for
//     --minutes M      begin nothing after so long
//     --from S         the first seed; left out: one that nobody has tried
//     --seed X         this one alone, made smaller when it fails
//     --trace          with --seed: every step of it, a line each
//     --plan FILE      this plan instead of a seed's
//     --keep CAUSE     with --seed or --plan: the smallest plan that fails becomes a test (kept-plans.jsonl)
//     --plant NAME     with a planted mistake, or several joined by "+"; the run is well when it is found. "all": each in
//                      turn, those that something else hides together with the mistake that takes that away
//     --processes N    side by side; left out: as many as there are cores
//     --failures N     begin nothing more once so many seeds failed; left out: 1
//     --report FILE    adds the report to a file of JSON lines, with what is left of the first failures of each rule.
//                      Without --from it goes on behind the newest report of the file, and says what all of them make
//     --record         writes a row of bench/results/simulation.jsonl
//     --json           the report as JSON
//
// Exit 0: nothing found, or every planted mistake was; 1: something was found, or a planted mistake was not; 2: usage.

import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import {
  KEPT_PLANS,
  PLANTED,
  faultsIn,
  plantOf,
  planOf,
  runPlan,
  runSeeds,
  shrinkPlan,
  type Plan,
  type RunReport,
  type SeedsReport,
} from '@shoal/world';
import { OF_EVERY_STEP, readArguments, refuse } from '../rig/arguments.ts';
import { commitOf, record } from '../rig/record.ts';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));

const args = readArguments(import.meta.url, {
  ...OF_EVERY_STEP,
  device: { type: 'string' }, // given to every step of bench/gpu; nothing here has one
  seeds: { type: 'string' },
  minutes: { type: 'string' },
  from: { type: 'string' },
  seed: { type: 'string' },
  trace: { type: 'boolean', default: false },
  plan: { type: 'string' },
  keep: { type: 'string' },
  plant: { type: 'string' },
  processes: { type: 'string' },
  failures: { type: 'string' },
  report: { type: 'string' },
  record: { type: 'boolean', default: false },
  json: { type: 'boolean', default: false },
});

/** Within which a planted mistake has to be found. */
const SCHEDULES_FOR_PLANTED = 10_000;
const ALL_PLANTS = [...new Set(PLANTED.map(plantOf))];
const DEFAULT_SEEDS = 1_000;
/** Above the seeds of the gate. */
const FIRST_NEW_SEED = 1_000_000;

const TOLD_EVERY_MS = 15_000;
let toldMs = 0;

const processes = numberOf('processes', 1) ?? availableParallelism();

await main();

async function main(): Promise<void> {
  checkTogether();
  if (args.plan !== undefined) return runOne(readPlan(args.plan));
  if (args.seed !== undefined) return runOne(planOf(args.seed));
  if (args.plant !== undefined) return findPlanted(args.plant);
  const earlier = args.report === undefined ? [] : readReports(args.report);
  const report = await run(numberOf('from', 0) ?? nextSeed(earlier) ?? newSeed());
  row('seeds of the present tree', report, { found: report.failed.length }, { figure: 'found', at_most: 0 });
  const { digest, failed } = report;
  if (args.json) console.log(JSON.stringify({ ...figuresOf(report), digest, failed }));
  if (args.report !== undefined) await keepReport(args.report, earlier, report);
  else for (const first of failed.slice(0, 1)) await tell(planOf(first.seed), first);
  if (failed.length > 0) process.exitCode = 1;
}

function checkTogether(): void {
  const isOne = args.seed !== undefined || args.plan !== undefined;
  if (args.seed !== undefined && args.plan !== undefined) refuse('--seed and --plan are two plans; give one of them');
  if (args.plant !== undefined && args.plant !== 'all') checkPlant(args.plant);
  if (isOne && (args.seeds ?? args.minutes ?? args.from) !== undefined)
    refuse('--seeds, --minutes and --from are about many seeds, --seed and --plan about one');
  if (!isOne && (args.trace || args.keep !== undefined))
    refuse(`${args.trace ? '--trace' : '--keep'} needs --seed or --plan: which run is meant?`);
}

function checkPlant(plant: string): void {
  try {
    faultsIn(plant);
  } catch (error) {
    refuse(error instanceof Error ? error.message : String(error));
  }
}

// ---- many seeds -------------------------------------------------------------------------------------------------

async function run(
  from: number,
  { plant, most }: { readonly plant?: string; readonly most?: number } = {},
): Promise<SeedsReport> {
  const minutes = numberOf('minutes', 0);
  const seeds = most ?? numberOf('seeds', 1) ?? defaultSeeds(minutes);
  if (!args.json) console.log(`seeds from ${from}, ${processes} processes${plant === undefined ? '' : `, ${plant}`}`);
  const mostMs = minutes === undefined ? Infinity : minutes * 60_000;
  const mostFailures = numberOf('failures', 1);
  const report = await runSeeds({ from, seeds, mostMs, processes, plant, mostFailures, onProgress: showProgress });
  if (process.stderr.isTTY) process.stderr.write('\r\u001B[K');
  if (!args.json) console.log(`${sentence(report)}, digest ${report.digest}`);
  return report;
}

function defaultSeeds(minutes: number | undefined): number {
  return minutes === undefined ? DEFAULT_SEEDS : Infinity;
}

/** In place on a terminal; elsewhere a line now and then. */
function showProgress(soFar: SeedsReport): void {
  if (process.stderr.isTTY) process.stderr.write(`\r${sentence(soFar)}\u001B[K`);
  else if (soFar.tookMs - toldMs >= TOLD_EVERY_MS) {
    toldMs = soFar.tookMs;
    process.stderr.write(`${sentence(soFar)}\n`);
  }
}

function sentence(report: SeedsReport): string {
  const { schedules_per_s, steps_per_s, simulated_hours_per_hour } = figuresOf(report);
  return (
    `${report.runs} schedules, ${report.steps} steps, ${report.failed.length} failed; ${schedules_per_s} schedules/s, ` +
    `${steps_per_s} steps/s, ${simulated_hours_per_hour} simulated hours an hour`
  );
}

function figuresOf({ runs, steps, virtualMs, tookMs }: SeedsReport) {
  const perSecond = (count: number): number => Math.round((count / tookMs) * 10_000) / 10;
  return {
    schedules: runs,
    steps,
    schedules_per_s: perSecond(runs),
    steps_per_s: Math.round(perSecond(steps)),
    schedules_per_s_per_process: Math.round((runs / tookMs / processes) * 10_000) / 10,
    simulated_hours_per_hour: Math.round(virtualMs / tookMs),
    processes,
  };
}

function row(
  name: string,
  report: SeedsReport,
  more: Readonly<Record<string, number>>,
  bar: { readonly figure: string; readonly at_most: number },
): void {
  record({ bench: 'simulation', case: name, figures: { ...figuresOf(report), ...more }, bar });
}

/** One that nobody has tried: what was not found yesterday is looked for elsewhere. */
function newSeed(): number {
  return FIRST_NEW_SEED + (Date.now() % 1_000_000_000);
}

// ---- reports that add up ----------------------------------------------------------------------------------------

/** A line of a file of reports: one call of this program. */
interface KeptReport extends SeedsReport {
  readonly commit: string;
  readonly date: string;
  readonly processes: number;
  /** The first failure of each rule, and what is left of it. */
  readonly shrunk: readonly { readonly rule: string; readonly report: RunReport; readonly plan: Plan }[];
}

function readReports(path: string): KeptReport[] {
  if (!existsSync(path)) return [];
  const lines = readFileSync(path, 'utf8').split('\n');
  return lines.filter((line) => line !== '').map((line) => JSON.parse(line) as KeptReport);
}

function nextSeed(earlier: readonly KeptReport[]): number | undefined {
  return earlier.length === 0 ? undefined : Math.max(...earlier.map(({ from, runs }) => from + runs));
}

async function keepReport(path: string, earlier: readonly KeptReport[], report: SeedsReport): Promise<void> {
  const firsts = new Map(report.failed.toReversed().map((failed) => [failed.violations[0]!.split(':')[0]!, failed]));
  const shrunk: KeptReport['shrunk'][number][] = [];
  for (const [rule, failed] of firsts) {
    if (rule === 'process-ended') continue;
    const { plan, report: left } = await shrinkPlan(planOf(failed.seed));
    shrunk.push({ rule, report: left, plan });
    if (!args.json) console.log([`seed ${failed.seed}:`, ...left.violations, JSON.stringify(plan), ''].join('\n'));
  }
  const kept: KeptReport = { ...report, commit: commit(), date: new Date().toISOString(), processes, shrunk };
  appendFileSync(path, `${JSON.stringify(kept)}\n`);
  const all = [...earlier, kept];
  const sum = (of: (one: KeptReport) => number): number => all.reduce((total, one) => total + of(one), 0);
  const [runs, steps, failures] = [sum((one) => one.runs), sum((one) => one.steps), sum((one) => one.failed.length)];
  if (!args.json)
    console.log(`${path}: ${runs} schedules and ${steps} steps by ${all.length} calls, ${failures} failed`);
}

// ---- planted mistakes -------------------------------------------------------------------------------------------

async function findPlanted(asked: string): Promise<void> {
  for (const plant of asked === 'all' ? ALL_PLANTS : [asked]) {
    const { seed, rule, report } = await search(plant);
    const within = seed === undefined ? SCHEDULES_FOR_PLANTED + 1 : seed - report.from + 1;
    const bar = { figure: 'found_within', at_most: SCHEDULES_FOR_PLANTED };
    row(`planted: ${plant}`, report, { found_within: within }, bar);
    console.log(seed === undefined ? `${plant}: NOT FOUND` : `${plant}: seed ${seed}: ${rule}`);
    if (seed === undefined) process.exitCode = 1;
  }
}

interface Search {
  /** Undefined: nothing was found. */
  readonly seed?: number | undefined;
  readonly rule?: string | undefined;
  /** Of all seeds that were run with the mistake. */
  readonly report: SeedsReport;
}

/** The first seed that fails with the mistake and not without it. */
async function search(plant: string): Promise<Search> {
  const from = numberOf('from', 0) ?? 0;
  const most = numberOf('seeds', 1) ?? SCHEDULES_FOR_PLANTED;
  let report = await run(from, { plant, most });
  for (let first = report.failed[0]; first !== undefined; first = report.failed[0]) {
    const seed = Number(first.seed);
    if (!(await failsAnyway(first.seed))) return { seed, rule: first.violations[0]?.split('\n')[0], report };
    report = joined(report, await run(seed + 1, { plant, most: from + most - seed - 1 }));
  }
  return { report };
}

/** Two runs of the same search, one behind the other; what failed first in the earlier one is done with. */
function joined(earlier: SeedsReport, later: SeedsReport): SeedsReport {
  return {
    ...later,
    from: earlier.from,
    runs: earlier.runs + later.runs,
    steps: earlier.steps + later.steps,
    virtualMs: earlier.virtualMs + later.virtualMs,
    tookMs: earlier.tookMs + later.tookMs,
  };
}

async function failsAnyway(seed: string): Promise<boolean> {
  const { report } = await runPlan(planOf(seed));
  if (report.violations.length > 0) console.log(`seed ${seed} fails without it, too: ${report.violations[0]}`);
  return report.violations.length > 0;
}

// ---- one run ----------------------------------------------------------------------------------------------------

async function runOne(plan: Plan): Promise<void> {
  const { report, lines } = await runPlan(plan, { isTraced: args.trace, plant: args.plant });
  for (const line of lines) console.log(line);
  if (args.json) console.log(JSON.stringify(report));
  else
    console.log(
      `seed ${report.seed}: ${report.steps} steps, ${(report.virtualMs / 1_000).toFixed(1)} s, trace ${report.trace}`,
    );
  if (report.violations.length === 0) return;
  await tell(plan, report);
  process.exitCode = 1;
}

/** What somebody needs to see it again, and what is left of it when all is left out that does not matter. */
async function tell(plan: Plan, report: RunReport): Promise<void> {
  console.log(`\ncommit ${commit()}, seed ${report.seed}: npm run simulate -- --seed ${report.seed} --trace`);
  const shrunk = await shrinkPlan(plan, args.plant);
  for (const violation of shrunk.report.violations) console.log(violation);
  console.log(`\nwhat is left of it after ${shrunk.runs} smaller runs:\n${JSON.stringify(shrunk.plan)}`);
  if (args.keep === undefined) return;
  appendFileSync(KEPT_PLANS, `${JSON.stringify({ cause: args.keep, commit: commit(), plan: shrunk.plan })}\n`);
  console.log(`kept in ${KEPT_PLANS}`);
}

/** Of this tree; a copy without its repository does not say. */
function commit(): string {
  return commitOf(ROOT) ?? 'unknown';
}

function readPlan(path: string): Plan {
  const text = readFileSync(path, 'utf8');
  const found = JSON.parse(text) as Plan | { readonly plan: Plan };
  return 'plan' in found ? found.plan : found;
}

function numberOf(name: 'seeds' | 'minutes' | 'from' | 'processes' | 'failures', least: number): number | undefined {
  const text = args[name];
  if (text === undefined) return undefined;
  const value = Number(text);
  const isWhole = name === 'minutes' || Number.isInteger(value);
  if (text.trim() === '' || !isWhole || !(value >= least))
    refuse(`--${name} is ${JSON.stringify(text)}; give a number from ${least} on`);
  return value;
}

// Makes a failing plan smaller, one part at a time, as long as it fails by the same rule: what is left is what a person
// has to think about. Greedy (Zeller's delta debugging with pieces of one): faults go first, then jobs, then processes,
// then what jobs ask for.

import type { RunReport } from './simulate.ts';
import type { Plan, PlannedJob, Target } from './plan.ts';

export interface Shrunk {
  readonly plan: Plan;
  readonly report: RunReport;
  /** How many runs it took. */
  readonly runs: number;
}

const MOST_RUNS = 200;

/** `report`: of that plan, with at least one violation. */
export function shrink(plan: Plan, report: RunReport, run: (plan: Plan) => RunReport): Shrunk {
  const rule = ruleOf(report);
  let best = { plan, report };
  let runs = 0;
  const stillFails = (smaller: Plan): boolean => {
    if (runs >= MOST_RUNS) return false;
    runs++;
    const found = run(smaller);
    if (ruleOf(found) !== rule) return false;
    best = { plan: smaller, report: found };
    return true;
  };
  let isSmaller = true;
  while (isSmaller) {
    isSmaller = false;
    for (let at = 0; at < smallerPlans(best.plan).length;) {
      const candidate = smallerPlans(best.plan)[at]!;
      if (stillFails(candidate)) isSmaller = true;
      else at++;
    }
  }
  return { ...best, runs };
}

/** What the first violation is a breach of. */
export function ruleOf({ violations }: RunReport): string | undefined {
  return violations[0]?.split(':')[0];
}

function smallerPlans(plan: Plan): Plan[] {
  return [
    ...plan.faults.map((_, at) => ({ ...plan, faults: without(plan.faults, at) })),
    ...(plan.jobs.length > 1 ? plan.jobs.map((_, at) => ({ ...plan, jobs: without(plan.jobs, at) })) : []),
    ...fewerWorkers(plan),
    ...plan.jobs.flatMap((job, at) => plainer(job).map((jobs) => ({ ...plan, jobs: plan.jobs.with(at, jobs) }))),
  ];
}

/** Without the last worker, and without what is planned against it. */
function fewerWorkers(plan: Plan): Plan[] {
  const last = plan.workers.length - 1;
  if (last < 1) return [];
  const gone: readonly (Target | 'server')[] = [`worker ${last}`, `executor ${last}`];
  const faults = plan.faults.filter((fault) => !('target' in fault && gone.includes(fault.target)));
  return [{ ...plan, workers: plan.workers.slice(0, last), faults }];
}

function plainer(job: PlannedJob): PlannedJob[] {
  return [
    ...(job.cancelAfterMs === undefined ? [] : [{ ...job, cancelAfterMs: undefined }]),
    ...(job.deadlineMs === undefined ? [] : [{ ...job, deadlineMs: undefined }]),
    ...(job.isPoison === true ? [{ ...job, isPoison: undefined }] : []),
    ...(job.takeAfterMs === 0 ? [] : [{ ...job, takeAfterMs: 0 }]),
    ...(job.words.length === 1 ? [] : [{ ...job, words: job.words.slice(0, 1) }]),
  ];
}

function without<T>(values: readonly T[], at: number): T[] {
  return values.filter((_, index) => index !== at);
}

// One run: a world is made, its processes do what was planned, and what they did is held against what is promised. To be
// called where no microtask runs (from a real immediate), because it does not return before the run is over.

import { checkHistory, violationText } from '../history/check.ts';
import { MemoryHistory, Recorder } from '../history/recorder.ts';
import { FakeTokenizer } from '@shoal/core/testing';
import type { ModelServer } from '../server/model-server.ts';
import { listenOn } from '../time/network.ts';
import { World, enter, type RunEnd } from '../time/world.ts';
import { unevenRoom } from './audit.ts';
import { handshake, shareScripts } from './clients.ts';
import { planFaults, plannedPoints } from './faults.ts';
import type { Plan, PlannedFault } from './plan.ts';
import { keepProducer } from './producer.ts';
import { ServerHost } from './server-host.ts';
import { logTo, type Site } from './site.ts';
import { keepWorker } from './worker.ts';

export interface RunReport {
  readonly seed: string;
  /** Over every step; equal for equal runs. */
  readonly trace: string;
  readonly steps: number;
  readonly virtualMs: number;
  readonly end: RunEnd;
  /** What was promised and did not hold, one line or more each, the most telling first. */
  readonly violations: readonly string[];
}

/** After the last fault everything has to end within this time. */
const BOUND_MS = 120_000;
/** And so long after everything ended the run goes on, for what comes late. */
const REST_MS = 2_000;
const MOST_STEPS = 300_000;

shareScripts();

export function simulate(plan: Plan, onLine?: (line: string) => void): RunReport {
  handshake(plan.shortHandshakes ?? false);
  const world = new World({ seed: plan.seed, onLine });
  enter(world);
  try {
    return run(plan, world, onLine);
  } finally {
    enter(undefined);
    listenOn(undefined);
  }
}

function run(plan: Plan, world: World, onLine: ((line: string) => void) | undefined): RunReport {
  const host = new ServerHost(world, plan);
  listenOn(host.network);
  const history = new MemoryHistory();
  const backMs: Site['backMs'] = new Map();
  const targets: Site['targets'] = new Map();
  const site: Site = {
    world,
    network: host.network,
    plan,
    history,
    faults: plannedPoints({ world, history, backMs, targets }, plan.faults),
    tokenizer: new FakeTokenizer(),
    log: logTo(onLine),
    targets,
    endings: new Map(),
    leaving: new Set(),
    backMs,
    ended: new Set(),
    takes: new Set(),
    deadlines: new Map(),
    problems: [],
  };
  for (const index of plan.workers.keys()) keepWorker(site, index);
  for (const index of plan.producers.keys()) keepProducer(site, index);
  planFaults(site, host);
  const end = runToRest(site);
  return {
    seed: plan.seed,
    trace: world.trace.hash,
    steps: world.trace.steps,
    virtualMs: world.nowMs,
    end,
    violations: judged(site, host.model, end),
  };
}

/** Until all jobs have ended and what comes late has come. */
function runToRest(site: Site): RunEnd {
  const { world, plan, ended, leaving, history } = site;
  const faultsUntilMs = Math.max(0, ...plan.faults.map(endMs));
  const lastJobMs = Math.max(0, ...plan.jobs.map(({ atMs }) => atMs));
  const untilMs = Math.max(faultsUntilMs, lastJobMs) + BOUND_MS + REST_MS;
  let restMs: number | undefined;
  const isOver = (): boolean => {
    if (world.crashes.length > 0) return true; // found already
    if (ended.size < plan.jobs.length || leaving.size > 0 || world.nowMs < faultsUntilMs) return false;
    restMs ??= Math.min(untilMs, world.nowMs + (plan.restMs ?? REST_MS));
    return world.nowMs >= restMs;
  };
  const end = world.run({ isOver, untilMs, mostSteps: MOST_STEPS });
  new Recorder('run', history, () => world.nowMs).observe('rest', '');
  return end;
}

function endMs(fault: PlannedFault): number {
  if (!('atMs' in fault)) return 0;
  return fault.atMs + ('ms' in fault ? fault.ms : 0) + ('downMs' in fault ? fault.downMs : 0);
}

function judged({ world, history, ended, plan, problems }: Site, model: ModelServer, end: RunEnd): string[] {
  const crashes = world.crashes.map(({ process, error }) => `crash: ${process}: ${errorText(error)}`);
  const open = plan.jobs.filter(({ id }) => !ended.has(id)).map(({ id }) => id);
  const endless = end === 'over' ? [] : [`endless: ${end}, ${open.length} jobs have not ended: ${open.join(' ')}`];
  const uneven = end === 'over' ? unevenRoom(model) : [];
  const lives = new Map(plan.jobs.map(({ id, resultTtlMs }) => [id, resultTtlMs]));
  const resultTtlMs = (id: string): number => lives.get(id.replace(/^default~/, '')) ?? 0;
  const { violations } = checkHistory(history.events, { settleMs: BOUND_MS, resultTtlMs });
  return [...crashes, ...problems, ...endless, ...uneven, ...violations.map(violationText)];
}

function errorText(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}

// `shoal fleet restart`: workers replaced a few at a time, by whoever keeps them; the story is libs/queue's
// rolling-restart.ts. Says what it does and, when it stops early, what became of whom.

import { ShoalError, isShoalError } from '@shoal/contract';
import { nameOf, planRestart, rollingRestart, type Fleet, type LiveWorker, type RollingPlan } from '@shoal/queue';
import type { RestartedWorker, RollingStep } from '@shoal/queue';
import { audited } from '../processes/audited.ts';
import type { RunningQueue } from '../processes/running-queue.ts';
import { print, say, type Terminal } from '../terminal.ts';
import type { FleetFlags } from './fleet.ts';

export interface RestartFlags extends FleetFlags {
  /** How many at a time; true: one. */
  readonly rolling?: number | true;
  readonly dryRun?: boolean;
  /** Milliseconds that a worker may be away. */
  readonly within?: number;
  /** Milliseconds in which it finishes what it has claimed. */
  readonly drainWithin?: number;
}

const AWAY_MS = 180_000;
const DRAIN_MS = 60_000;

interface RestartOutcome {
  readonly restarted: readonly RestartedWorker[];
  readonly plan: RollingPlan;
}

export async function restartWorkers(
  terminal: Terminal,
  fleet: Fleet,
  which: string,
  flags: RestartFlags,
  place: RunningQueue,
): Promise<void> {
  const view = await fleet.read();
  const plan = planRestart(view, which);
  const { rolling = plan.restart.length > 1 ? undefined : 1 } = flags;
  if (rolling === undefined)
    throw new ShoalError(
      'USAGE',
      `${plan.restart.length} workers would be restarted at once and nobody would serve meanwhile: say --rolling, or ` +
        '--rolling N for N at a time',
    );
  const atOnce = rolling === true ? 1 : rolling;
  const note = (message: string): void => {
    if (flags.quiet !== true && flags.json !== true) say(terminal, message);
  };
  for (const { workerId, reason } of plan.leftOut) note(`left out: ${workerId}, ${reason}`);
  const serving = view.workers.filter(({ isDrained }) => !isDrained).length;
  if (serving <= Math.min(atOnce, plan.restart.length) && serving > 0)
    note(`nobody else serves meanwhile: jobs wait until the next worker is there`);
  if (flags.dryRun === true) {
    return report(terminal, flags, { restarted: [], plan }, atOnce);
  }
  // before it is done: whoever looks meanwhile finds out why workers leave
  const ids = plan.restart.map(({ workerId }) => workerId);
  await audited(terminal, place, { what: 'fleet restart', queue: place.queue, ids, details: { atOnce } });
  try {
    const restarted = await rollingRestart({
      fleet,
      workers: plan.restart,
      atOnce,
      drainLimitMs: flags.drainWithin ?? DRAIN_MS,
      returnLimitMs: flags.within ?? AWAY_MS,
      signal: terminal.signal,
      onStep: (step) => note(told(step, plan.restart)),
    });
    await report(terminal, flags, { restarted, plan }, atOnce);
  } catch (error) {
    if (isShoalError(error, 'SETUP_FAILED') && flags.json === true)
      await print(terminal, `${JSON.stringify({ ...error.fields, leftOut: plan.leftOut, problem: error.message })}\n`);
    throw error;
  }
}

async function report(
  terminal: Terminal,
  flags: RestartFlags,
  { restarted, plan }: RestartOutcome,
  atOnce: number,
): Promise<void> {
  const isDry = flags.dryRun === true;
  if (flags.json === true) {
    const facts = isDry ? { wouldRestart: plan.restart.map(planned), atOnce } : { restarted };
    return print(terminal, `${JSON.stringify({ ...facts, leftOut: plan.leftOut })}\n`);
  }
  if (flags.quiet === true && !isDry) return;
  if (!isDry) return say(terminal, `${workers(restarted.length)} restarted`);
  const lines = plan.restart.map((worker) => {
    const { workerId, facts } = worker;
    return `${workerId}  ${worker.state}  ${facts?.claims ?? '?'} claimed  version ${facts?.version ?? '?'}\n`;
  });
  await print(terminal, lines.join(''));
  say(terminal, `${workers(plan.restart.length)} would be restarted, ${atOnce} at a time; nothing was done`);
}

function planned(worker: LiveWorker): object {
  const { workerId, state, facts } = worker;
  return { workerId, name: nameOf(worker), state, claims: facts?.claims, version: facts?.version };
}

function told(step: RollingStep, all: readonly LiveWorker[]): string {
  const at = `${all.findIndex(({ workerId }) => workerId === step.workerId) + 1} of ${all.length}: ${step.workerId}`;
  switch (step.kind) {
    case 'draining':
      return `${at} drains, ${step.claims.toLocaleString('en')} claimed job${step.claims === 1 ? '' : 's'} left`;
    case 'leaving':
      return `${at} was told to leave after ${seconds(step.drainMs)}`;
    case 'away':
      return `${at} is gone; waiting for its successor`;
    case 'back': {
      const { before, after } = step.version;
      const version = before === after ? `version ${after}` : `version ${before} before, ${after} now`;
      return `${at} is replaced by ${step.successorId} after ${seconds(step.awayMs)}, ${version}`;
    }
  }
}

function workers(count: number): string {
  return `${count} worker${count === 1 ? '' : 's'}`;
}

function seconds(ms: number): string {
  return `${(ms / 1_000).toFixed(1)} s`;
}

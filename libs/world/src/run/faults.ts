// Breaks what was planned to break, and writes it down, so that the checker knows what it excuses.

import type { FaultPoints } from '@shoal/core/base';
import { Recorder } from '../history/recorder.ts';
import type { Process } from '../time/world.ts';
import type { PlannedFault, Target } from './plan.ts';
import type { ServerHost } from './server-host.ts';
import type { Site } from './site.ts';

/** `reach` kills or stops the process that comes to a point for the n-th time. */
export function plannedPoints(
  site: Pick<Site, 'world' | 'history' | 'backMs' | 'targets'>,
  faults: readonly PlannedFault[],
): FaultPoints {
  const { world, history, backMs } = site;
  const reached = new Map<Parameters<FaultPoints['reach']>[0], number>();
  const recorder = new Recorder('faults at points', history, () => world.nowMs);
  return {
    reach(point) {
      const nth = (reached.get(point) ?? 0) + 1;
      reached.set(point, nth);
      for (const fault of faults) {
        if ((fault.kind !== 'kill-at' && fault.kind !== 'pause-at') || fault.point !== point || fault.nth !== nth)
          continue;
        const { current } = world;
        recorder.observe('fault', '', { outcome: fault.kind, target: current.name });
        if (fault.kind === 'pause-at') {
          world.pause(current, fault.ms);
          if (fault.both === true) pauseOther(site, targetOf(current), fault.ms);
          continue;
        }
        backMs.set(targetOf(current), fault.backMs);
        world.kill(current);
      }
    },
  };
}

/** Everything else, at its time. */
export function planFaults(site: Site, host: ServerHost): void {
  const { world, plan, history } = site;
  const recorder = new Recorder('faults', history, () => world.nowMs);
  for (const fault of plan.faults) {
    if ('atMs' in fault)
      world.at(world.outside, fault.atMs, `fault ${fault.kind}`, () => strike(site, host, fault, recorder));
  }
}

type TimedFault = Extract<PlannedFault, { readonly atMs: number }>;

function strike(site: Site, host: ServerHost, fault: TimedFault, recorder: Recorder): void {
  const { world, network } = site;
  const target = 'target' in fault ? processOf(site, host, fault.target) : undefined;
  const facts = { outcome: fault.kind, ...(target === undefined ? {} : { target: target.name }) };
  const forMs = (ms: number, end: () => void): void => {
    const over = recorder.invoke('fault', '', facts);
    world.after(world.outside, ms, `${fault.kind} is over`, () => {
      end();
      over('ok');
    });
  };
  switch (fault.kind) {
    case 'kill':
      if (target === undefined) return;
      recorder.observe('fault', '', facts);
      site.backMs.set(fault.target, fault.backMs);
      return world.kill(target);
    case 'end':
      if (target === undefined) return;
      recorder.observe('fault', '', facts);
      site.backMs.set(fault.target, fault.backMs);
      world.after(target, 0, 'SIGTERM', () => site.endings.get(target)?.());
      return;
    case 'pause':
      if (target === undefined) return;
      world.pause(target, fault.ms);
      if (fault.both) pauseOther(site, fault.target, fault.ms);
      return forMs(fault.ms, () => undefined);
    case 'clock':
      recorder.observe('fault', '', facts);
      if (fault.target === 'server') host.step(fault.stepMs);
      else if (target !== undefined) target.wallOffsetMs += fault.stepMs;
      return;
    case 'cut':
    case 'lose-answer':
    case 'half-open':
      recorder.observe('fault', '', facts);
      for (const link of network.links) {
        if (!world.outside.random.chance(fault.share)) continue;
        if (fault.kind === 'cut') link.cut();
        else if (fault.kind === 'lose-answer') link.loseNextAnswer();
        else link.halfOpen();
      }
      return;
    case 'slow': {
      network.latencyMs = fault.latencyMs;
      return forMs(fault.ms, () => (network.latencyMs = site.plan.latencyMs));
    }
    case 'restart':
      if (fault.forgetMs > 0) recorder.observe('forget', '', { since: world.nowMs - fault.forgetMs });
      host.restart(fault);
      return forMs(fault.downMs, () => undefined);
    case 'refuse':
      host.model.faults.refuse = fault.refusal;
      return forMs(fault.ms, () => (host.model.faults.refuse = undefined));
    case 'deaf': {
      const { random } = world.outside;
      host.model.faults.dropPublished = () => random.chance(fault.share);
      return forMs(fault.ms, () => (host.model.faults.dropPublished = undefined));
    }
  }
}

/** Of a worker: its executor stands still with its claimer, and the other way round. */
function pauseOther({ world, targets }: Pick<Site, 'world' | 'targets'>, target: Target, ms: number): void {
  const [kind, index] = target.split(' ');
  const other = kind === 'worker' ? 'executor' : kind === 'executor' ? 'worker' : undefined;
  const process = other === undefined ? undefined : targets.get(`${other} ${Number(index)}`);
  if (process !== undefined) world.pause(process, ms);
}

/** By what faults call it: each life of a process has a name of its own. */
function targetOf({ name }: Process): Target {
  return name.split('#')[0] as Target;
}

function processOf({ targets }: Site, host: ServerHost, target: Target | 'server'): Process | undefined {
  return target === 'server' ? host.process : targets.get(target);
}

// A rolling restart: workers of a queue are replaced a few at a time, so that the others serve meanwhile. Each is drained
// first, so that what it has claimed is finished and nothing of it has to be claimed again; then it is told to leave,
// which it does with exit code 75; whoever keeps it (a supervisor, `shoal up`, a StatefulSet) starts its successor, and
// the next one's turn is when a worker of the same name, with another id, can serve. Starts no process itself.
//
// A worker: draining → leaving → away → back. When one does not come back in time the rest is left alone. Whoever
// interrupts it leaves a serving fleet: one that only drains claims again, one that was told to leave comes back by its
// supervisor.

import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalError } from '@shoal/contract';
import type { Fleet, FleetView, LiveWorker } from './fleet.ts';

export interface RollingPlan {
  readonly restart: readonly LiveWorker[];
  readonly leftOut: readonly { readonly workerId: string; readonly reason: string }[];
}

export type RollingStep =
  | { readonly kind: 'draining'; readonly workerId: string; readonly claims: number }
  | { readonly kind: 'leaving'; readonly workerId: string; readonly drainMs: number }
  | { readonly kind: 'away'; readonly workerId: string }
  | ({ readonly kind: 'back' } & RestartedWorker);

export interface RestartedWorker {
  readonly workerId: string;
  readonly successorId: string;
  /** Until it had finished what it had claimed. */
  readonly drainMs: number;
  /** From when it was told to leave until its successor could serve. */
  readonly awayMs: number;
  readonly version: { readonly before: string | undefined; readonly after: string | undefined };
}

export interface RollingOptions {
  readonly fleet: Pick<Fleet, 'look' | 'drain' | 'resume' | 'leave'>;
  readonly workers: readonly LiveWorker[];
  /** How many at a time. */
  readonly atOnce: number;
  /** After so long a worker leaves with what it has not finished; that goes back to the queue unspent. */
  readonly drainLimitMs: number;
  /** How long a worker may be away. */
  readonly returnLimitMs: number;
  readonly signal: AbortSignal;
  readonly onStep: (step: RollingStep) => void;
  /** Between two looks at the fleet. */
  readonly lookMs?: number;
}

const LOOK_MS = 250;

/** What a worker is called over all its lives. */
export function nameOf({ workerId, facts }: Pick<LiveWorker, 'workerId' | 'facts'>): string {
  return facts?.name ?? workerId.replace(/-[0-9a-f]{8}$/, '');
}

/**
 * Which workers would be restarted: `which` is "all", an id or the beginning of some. Throws USAGE where it names none,
 * or one that cannot be told. Drained ones are left out of "all", because their successors would claim.
 */
export function planRestart({ workers, isAllDrained }: FleetView, which: string): RollingPlan {
  const named = which === 'all' ? workers : workers.filter(({ workerId }) => workerId.startsWith(which));
  const alive = workers.map(({ workerId }) => workerId).join(', ') || 'none';
  if (named.length === 0)
    throw new ShoalError(
      'USAGE',
      which === 'all'
        ? 'no worker is alive, so none can be restarted; start one with shoal worker or shoal up'
        : `no live worker has an id that begins with "${which}"; alive: ${alive}`,
      { which },
    );
  const deaf = named.filter(({ facts }) => facts?.standing === undefined).map(({ workerId }) => workerId);
  if (deaf.length > 0)
    throw new ShoalError(
      'USAGE',
      `${deaf.join(', ')} cannot be told to leave: a worker of 0.1.0, or one that tells nothing of itself. Restart it by ` +
        'whoever keeps it (systemctl restart, kubectl rollout restart); from then on this command knows it',
      { workers: deaf },
    );
  const isLeftOut = ({ isDrained }: LiveWorker): boolean => which === 'all' && isDrained && !isAllDrained;
  return {
    restart: named.filter((worker) => !isLeftOut(worker)),
    leftOut: named.filter(isLeftOut).map(({ workerId }) => ({
      workerId,
      reason: 'drained by hand: its successor would claim; name it to restart it all the same',
    })),
  };
}

/**
 * Resolves when all have successors that can serve. Throws SETUP_FAILED at the first that does not come back, with
 * `fields.restarted` and `fields.untouched`; what `signal` was aborted with, when it was.
 */
export async function rollingRestart(options: RollingOptions): Promise<RestartedWorker[]> {
  const { workers, atOnce, signal } = options;
  const restarted: RestartedWorker[] = [];
  for (let at = 0; at < workers.length; at += atOnce) {
    const group = workers.slice(at, at + atOnce);
    signal.throwIfAborted();
    const ends = await Promise.allSettled(group.map((worker) => new OneRestart(options, worker).run()));
    for (const end of ends) if (end.status === 'fulfilled') restarted.push(end.value);
    const failed = ends.find((end) => end.status === 'rejected');
    if (failed === undefined) continue;
    const untouched = workers.slice(at + atOnce).map(({ workerId }) => workerId);
    throw stopped(failed.reason, restarted, untouched);
  }
  return restarted;
}

function stopped(reason: unknown, restarted: readonly RestartedWorker[], untouched: readonly string[]): unknown {
  if (!(reason instanceof NotBack)) return reason;
  return new ShoalError(
    'SETUP_FAILED',
    `${reason.message}. Stopped here; restarted: ${listed(restarted.map(({ workerId }) => workerId))}; not touched: ` +
      listed(untouched),
    { restarted, untouched },
  );
}

function listed(ids: readonly string[]): string {
  return ids.join(', ') || 'none';
}

class NotBack extends Error {}

class OneRestart {
  private readonly options: RollingOptions;
  private readonly worker: LiveWorker;
  private readonly known = new Set<string>();

  constructor(options: RollingOptions, worker: LiveWorker) {
    this.options = options;
    this.worker = worker;
  }

  async run(): Promise<RestartedWorker> {
    const { fleet, onStep, returnLimitMs } = this.options;
    const { workerId } = this.worker;
    for (const other of (await fleet.look()).workers) this.known.add(other.workerId);
    const beganMs = performance.now();
    await this.drain();
    const drainMs = Math.round(performance.now() - beganMs);
    await fleet.leave([workerId]);
    onStep({ kind: 'leaving', workerId, drainMs });
    const toldMs = performance.now();
    const isGone = await this.until(returnLimitMs, (view) => (this.find(view) === undefined ? true : undefined));
    if (isGone === undefined)
      throw new NotBack(
        `${workerId} was told to leave and is still there after ${seconds(returnLimitMs)}; look at its log, then end it by ` +
          'whoever keeps it',
      );
    onStep({ kind: 'away', workerId });
    const left = returnLimitMs - (performance.now() - toldMs);
    const successor = await this.until(left, (view) => this.successorIn(view));
    if (successor === undefined) throw new NotBack(this.notBack());
    const version = { before: this.worker.facts?.version, after: successor.facts?.version };
    const awayMs = Math.round(performance.now() - toldMs);
    const restarted = { workerId, successorId: successor.workerId, drainMs, awayMs, version };
    onStep({ kind: 'back', ...restarted });
    return restarted;
  }

  /** Resolves when it has nothing left, is gone, or has had its time. */
  private async drain(): Promise<void> {
    const { fleet, onStep, drainLimitMs } = this.options;
    const { workerId, isDrained: wasDrained } = this.worker;
    if (!wasDrained) await fleet.drain(workerId);
    let told = -1;
    try {
      await this.until(drainLimitMs, (view) => {
        const found = this.find(view);
        const claims = found?.facts?.claims ?? 0;
        if (found !== undefined && claims !== told) onStep({ kind: 'draining', workerId, claims: (told = claims) });
        return found === undefined || found.facts?.standing?.state === 'drained' ? true : undefined;
      });
    } catch (error) {
      if (!wasDrained) await fleet.resume(workerId).catch(() => undefined); // it left by itself meanwhile
      throw error;
    }
  }

  private find({ workers }: FleetView): LiveWorker | undefined {
    return workers.find(({ workerId }) => workerId === this.worker.workerId);
  }

  private successorIn({ workers }: FleetView): LiveWorker | undefined {
    const name = nameOf(this.worker);
    return workers.find(
      (other) => !this.known.has(other.workerId) && nameOf(other) === name && other.state !== 'starting',
    );
  }

  private notBack(): string {
    const { facts, workerId } = this.worker;
    const process = facts === undefined ? '' : ` (process ${facts.pid} of ${facts.host})`;
    return (
      `${workerId}${process} left, and no worker called ${nameOf(this.worker)} could serve within ` +
      `${seconds(this.options.returnLimitMs)}. Is it kept by something that starts it again (systemd, Kubernetes, shoal ` +
      'up)? What that says, and the first lines of its log, tell why it does not start'
    );
  }

  /** What `find` finds within `limitMs`; undefined: nothing. */
  private async until<Found>(
    limitMs: number,
    find: (view: FleetView) => Found | undefined,
  ): Promise<Found | undefined> {
    const { fleet, signal, lookMs = LOOK_MS } = this.options;
    const endMs = performance.now() + limitMs;
    for (;;) {
      signal.throwIfAborted();
      const found = find(await fleet.look());
      if (found !== undefined) return found;
      if (performance.now() >= endMs) return undefined;
      await sleep(lookMs, undefined, { signal }).catch(() => undefined);
    }
  }
}

function seconds(ms: number): string {
  return `${Math.round(ms / 1_000)} s`;
}

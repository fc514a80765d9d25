import { expect, test } from 'vitest';
import { standingOf, type WorkerFacts } from '@shoal/core';
import { emptyLane } from '../testing.ts';
import type { FleetView, LiveWorker } from './fleet.ts';
import { planRestart, rollingRestart, type RollingOptions, type RollingStep } from './rolling-restart.ts';

/** A fleet whose workers finish a claim between two looks, and are replaced when they leave, unless they are lost. */
class FakeFleet {
  readonly calls: string[] = [];
  readonly lost = new Set<string>();
  private readonly workers = new Map<string, { claims: number; isDrained: boolean; version: string }>();
  private lives = 0;

  constructor(names: readonly string[]) {
    for (const name of names) this.start(name, '0.1.9');
  }

  start(name: string, version: string): void {
    this.workers.set(`${name}-${String(++this.lives).padStart(8, '0')}`, { claims: 2, isDrained: false, version });
  }

  async look(): Promise<FleetView> {
    for (const worker of this.workers.values()) if (worker.isDrained && worker.claims > 0) worker.claims--;
    const workers = [...this.workers].map(([workerId, { claims, isDrained, version }]): LiveWorker => {
      const standing = { ...standingOf({ isDrained, claims, isPaused: false }), sinceMs: 0 };
      const facts = { claims, standing, version } as unknown as WorkerFacts;
      return { workerId, lanes: ['main'], facts, isDrained, isLeaving: false, ...standing };
    });
    const lanes = { main: emptyLane('embed-x'), cpu: emptyLane('embed-x-cpu') };
    return { lanes, workers, starting: [], isAllDrained: false };
  }

  async drain(which: string): Promise<string[]> {
    this.calls.push(`drain ${which}`);
    this.workers.get(which)!.isDrained = true;
    return [which];
  }

  async resume(which: string): Promise<string[]> {
    this.calls.push(`resume ${which}`);
    this.workers.get(which)!.isDrained = false;
    return [which];
  }

  async leave(workerIds: readonly string[]): Promise<void> {
    for (const workerId of workerIds) {
      this.calls.push(`leave ${workerId}`);
      this.workers.delete(workerId);
      const name = workerId.slice(0, -9);
      if (!this.lost.has(name)) setTimeout(() => this.start(name, '0.2.0'), 5);
    }
  }
}

async function restart(fleet: FakeFleet, more: Partial<RollingOptions> = {}) {
  const steps: RollingStep[] = [];
  const { restart: workers } = planRestart(await fleet.look(), 'all');
  const restarted = await rollingRestart({
    fleet,
    workers,
    atOnce: 1,
    drainLimitMs: 5_000,
    returnLimitMs: 5_000,
    signal: new AbortController().signal,
    onStep: (step) => steps.push(step),
    lookMs: 1,
    ...more,
  });
  return { steps, restarted };
}

test('each worker is drained, told to leave and back before the next one’s turn', async () => {
  const fleet = new FakeFleet(['a', 'b']);
  const { steps, restarted } = await restart(fleet);
  expect(fleet.calls).toEqual(['drain a-00000001', 'leave a-00000001', 'drain b-00000002', 'leave b-00000002']);
  expect(steps.map(({ kind, workerId }) => `${kind} ${workerId.slice(0, 1)}`)).toEqual(
    ['a', 'b'].flatMap((name) => ['draining', 'draining', 'leaving', 'away', 'back'].map((kind) => `${kind} ${name}`)),
  );
  expect(restarted).toMatchObject([
    { workerId: 'a-00000001', successorId: 'a-00000003', version: { before: '0.1.9', after: '0.2.0' } },
    { workerId: 'b-00000002', successorId: 'b-00000004' },
  ]);
});

test('so many at a time as asked for', async () => {
  const fleet = new FakeFleet(['a', 'b', 'c']);
  await restart(fleet, { atOnce: 2 });
  expect(fleet.calls.slice(0, 2)).toEqual(['drain a-00000001', 'drain b-00000002']);
  expect(fleet.calls.indexOf('drain c-00000003')).toBe(4);
});

test('it stops at the first that does not come back, and says what became of whom', async () => {
  const fleet = new FakeFleet(['a', 'b', 'c']);
  fleet.lost.add('b');
  await expect(restart(fleet, { returnLimitMs: 40 })).rejects.toMatchObject({
    code: 'SETUP_FAILED',
    message: expect.stringMatching(
      /b-00000002 .* left, and no worker called b could serve .* restarted: a-00000001; not touched: c-00000003/,
    ),
    fields: { restarted: [{ workerId: 'a-00000001' }], untouched: ['c-00000003'] },
  });
  expect(fleet.calls).not.toContain('drain c-00000003');
});

test('whoever interrupts it while a worker drains leaves it claiming', async () => {
  const fleet = new FakeFleet(['a', 'b']);
  const end = new AbortController();
  const onStep = ({ kind }: RollingStep): void => (kind === 'draining' ? end.abort(new Error('enough')) : undefined);
  await expect(restart(fleet, { signal: end.signal, onStep })).rejects.toThrow('enough');
  expect(fleet.calls).toEqual(['drain a-00000001', 'resume a-00000001']);
});

test('a plan names who would be restarted, and refuses whom it cannot tell', async () => {
  const fleet = new FakeFleet(['a', 'b']);
  await fleet.drain('b-00000002');
  const view = await fleet.look();
  expect(planRestart(view, 'all')).toMatchObject({
    restart: [{ workerId: 'a-00000001' }],
    leftOut: [{ workerId: 'b-00000002', reason: expect.stringContaining('drained by hand') }],
  });
  expect(planRestart(view, 'b')).toMatchObject({ restart: [{ workerId: 'b-00000002' }], leftOut: [] });
  expect(() => planRestart(view, 'c')).toThrow('no live worker has an id that begins with "c"; alive: a-00000001');
  expect(() => planRestart({ ...view, workers: [] }, 'all')).toThrow('no worker is alive');
  const old = view.workers.map((worker) => ({ ...worker, facts: undefined }));
  expect(() => planRestart({ ...view, workers: old }, 'a')).toThrow('a-00000001 cannot be told to leave');
});

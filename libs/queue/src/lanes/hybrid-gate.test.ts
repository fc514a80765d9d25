import { describe, expect, test } from 'vitest';
import { ShoalError, type Lane } from '@shoal/contract';
import type { Hybrid, WorkerFacts, WorkerLoad } from '@shoal/core';
import { ManualClock, RecordingLogger, settled } from '@shoal/core/testing';
import type { FleetView, LaneDepth, LiveWorker } from './fleet.ts';
import { FleetWatch, HybridGate, alarmOfCpuLane } from './hybrid-gate.ts';

const depth = (queue: string, waiting: number, oldestMs = 5_000): LaneDepth => ({
  queue,
  isPaused: false,
  waiting,
  active: 0,
  delayed: 0,
  parked: {},
  handedOver: 0,
  failed: 0,
  cancelled: 0,
  oldestWaitingMs: { interactive: 0, bulk: waiting > 0 ? oldestMs : 0 },
  oldestMs: waiting > 0 ? oldestMs : 0,
});
const LOAD: WorkerLoad = {
  rates: { medium: 10_000 },
  mix: { medium: 1 },
  claims: 0,
  poolTokens: 0,
  tokensPerJob: 1_000,
};

function worker(workerId: string, lanes: readonly Lane[], rate = 1_000_000): LiveWorker {
  const facts: WorkerFacts = {
    ...LOAD,
    rates: { medium: rate },
    device: 'x',
    precision: 'fp32',
    model: 'x@1',
    host: 'h',
    pid: 1,
    lanes,
    isDrained: false,
  };
  return { workerId, lanes, facts, isDrained: false, isLeaving: false, state: 'ready', reason: 'it claims' };
}

function view(main: number, workers: readonly LiveWorker[], cpu = 0): FleetView {
  const lanes = { main: depth('embed-x', main), cpu: depth('embed-x-cpu', cpu) };
  return { lanes, workers, starting: [], isAllDrained: false };
}

const ME = worker('me', ['main', 'cpu'], 10_000);
const GPU = worker('gpu', ['main']);

function setup(hybrid: Hybrid = 'auto') {
  const clock = new ManualClock();
  const log = new RecordingLogger();
  const gate = new HybridGate({ workerId: 'me', hybrid, ageLimitMs: 60_000, load: () => LOAD, clock, log });
  let changes = 0;
  gate.onChange(() => changes++);
  return { clock, log, gate, changes: () => changes };
}

describe('HybridGate', () => {
  test('is closed until the fleet was seen, and open for a CPU worker among its like', () => {
    const { gate, changes } = setup();
    expect(gate.allows(8)).toBe(0);
    gate.see(view(100, [ME, worker('other', ['main', 'cpu'], 10_000)]));
    expect([gate.allows(8), gate.allows(2_000), changes()]).toEqual([8, 2_000, 1]);
  });

  test('beside a GPU worker it allows what shortens the total time, and no more until the next look', () => {
    const { gate } = setup();
    gate.see(view(1_000, [ME, GPU]));
    expect(gate.allows(100)).toBe(8);
    gate.took(5);
    expect(gate.allows(100)).toBe(3);
    gate.took(3);
    expect(gate.allows(1)).toBe(0);
    gate.see(view(1_000, [ME, GPU]));
    expect(gate.allows(100)).toBe(10); // without the margin: it is taking already
    gate.see(view(3, [ME, GPU]));
    expect(gate.allows(100)).toBe(0);
  });

  test('a GPU worker that is late in showing itself is not taken for dead at once', async () => {
    const { gate, clock, log } = setup();
    gate.see(view(3, [ME, GPU]));
    gate.see(view(3, [ME]));
    expect(gate.allows(8)).toBe(0);
    await clock.advance(3_000);
    gate.see(view(3, [ME]));
    expect(gate.allows(8)).toBe(8);
    expect(log.lines.map(({ fields }) => Reflect.get(fields, 'reason'))).toEqual(['gpu-is-sooner', 'no-gpu-worker']);
  });

  test('the setting may decide alone', () => {
    const always = setup('always').gate;
    expect(always.allows(8)).toBe(8);
    const never = setup('never').gate;
    never.see(view(1_000, [ME]));
    expect(never.allows(8)).toBe(0);
  });

  test('a worker of another version, which tells nothing of itself, is taken for one whose rate is not known', () => {
    const { gate } = setup();
    gate.see(view(1_000, [ME, { ...GPU, facts: undefined }]));
    expect(gate.choice).toMatchObject({ jobs: 0, reason: 'rate-unknown' });
  });
});

test('jobs that nobody serves are told once, and once that somebody does', () => {
  const log = new RecordingLogger();
  const see = alarmOfCpuLane(log);
  see(view(0, [GPU]));
  see(view(0, [GPU], 12));
  see(view(0, [GPU], 13));
  see(view(0, [GPU, { ...ME, isDrained: true }], 13));
  expect(log.lines).toMatchObject([
    {
      level: 'warn',
      fields: { queue: 'embed-x-cpu', waiting: 12 },
      message: expect.stringContaining('no CPU worker is alive'),
    },
  ]);
  see(view(0, [GPU, ME], 13));
  see(view(0, [GPU, ME], 0));
  expect(log.lines.slice(1)).toMatchObject([{ level: 'info', message: 'the CPU lane is served again' }]);
});

test('the fleet is looked at every second, whatever becomes of a look, and not any more after stop', async () => {
  const clock = new ManualClock();
  let looks = 0;
  const views: FleetView[] = [];
  const watch = new FleetWatch({
    clock,
    log: new RecordingLogger(),
    read: async () => {
      if (++looks === 2) throw new ShoalError('QUEUE_UNREACHABLE', 'away');
      return view(looks, []);
    },
    onView: (seen) => views.push(seen),
  });
  await watch.start();
  expect(views).toHaveLength(1);
  await clock.advance(2_000);
  await settled();
  expect([looks, views.map(({ lanes }) => lanes.main.waiting)]).toEqual([3, [1, 3]]);
  await watch.stop();
  await clock.advance(5_000);
  expect([looks, clock.pending]).toEqual([3, 0]);
});

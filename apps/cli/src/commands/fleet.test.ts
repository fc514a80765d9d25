import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { SIMILARITY_QUEUE, cpuQueue, keySpace, mainQueue, type Lane } from '@shoal/contract';
import type { PayloadServerFacts, WorkerFacts } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { WorkerPresence, type AbsentWorker, type FleetView, type LaneDepth, type LiveWorker } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { describe as describeFleet, leftOf, warningsOf, type StatusSeen } from './fleet.ts';
import { runHere } from '../testing/command-here.ts';
import { Sandbox } from '../testing/shoal-process.ts';

const SIMILARITY = {
  host: { residents: 3, bytes: 1.5e9, budgetBytes: 8e9, evictions: 0 },
  gpu: { residents: 2, bytes: 1e9, budgetBytes: 4e9, evictions: 7 },
  calls: { cpu: 10, gpu: 90 },
  fallbacks: 1,
  isGpuLost: true,
};
const FACTS: WorkerFacts = {
  device: 'cuda:0',
  precision: 'fp16',
  model: 'x@1',
  host: 'h',
  pid: 7,
  lanes: ['main'],
  isDrained: false,
  claims: 12,
  poolTokens: 24_000,
  tokensPerJob: 640,
  rates: { short: 8_123_456, long: 1_000_000 },
  mix: { short: 1 },
  budget: { maxPaddedTokens: 65_536, limitedBy: 'knee', source: 'stored' },
  memoryBytes: 2_100_000_000,
};

const NOW_MS = 1_800_000_000_000;

const depth = (queue: string, more: Partial<LaneDepth> = {}): LaneDepth => ({
  queue,
  isPaused: false,
  waiting: 0,
  active: 0,
  delayed: 0,
  parked: {},
  handedOver: 0,
  failed: 0,
  cancelled: 0,
  oldestMs: 0,
  oldestWaitingMs: { interactive: 0, bulk: 0 },
  ...more,
});
const worker = (workerId: string, lanes: readonly Lane[], more: Partial<LiveWorker> = {}): LiveWorker => ({
  workerId,
  lanes,
  facts: FACTS,
  isDrained: false,
  isLeaving: false,
  state: 'ready',
  reason: 'it claims',
  ...more,
});

function view(more: Partial<StatusSeen> = {}, main: Partial<LaneDepth> = {}, cpu: Partial<LaneDepth> = {}): StatusSeen {
  return {
    lanes: { main: depth('embed-x', main), cpu: depth('embed-x-cpu', cpu) },
    workers: [worker('gpu-1', ['main']), worker('cpu-1', ['main', 'cpu'])],
    starting: [],
    isAllDrained: false,
    losses: [],
    absent: [],
    ...more,
  };
}

const absent = (workerId: string, more: Partial<AbsentWorker> = {}): AbsentWorker => ({
  workerId,
  owner: { queue: 'embed-x', device: 'cuda:0', host: 'h' },
  lastMs: NOW_MS - 40_000,
  hasLeft: false,
  successor: undefined,
  ...more,
});

describe('what stands in the way is said', () => {
  test('nothing, on a fleet that is well', () => {
    expect(warningsOf(view({}, { waiting: 1_000, handedOver: 3 }, { waiting: 2, active: 1 }))).toEqual([]);
    expect(warningsOf(view({ workers: [] }))).toEqual([]);
  });

  test.each<[string, StatusSeen, string]>([
    [
      'a CPU lane without a worker',
      view({ workers: [worker('gpu-1', ['main'])] }, { handedOver: 12 }, { waiting: 12 }),
      'the CPU lane has 12 jobs and no CPU worker; start one with shoal worker --device cpu',
    ],
    [
      'a main lane without a worker',
      view({ workers: [worker('cpu-1', ['cpu'])] }, { waiting: 1 }),
      'the main lane has 1 job and no worker serves it; start one with shoal worker (docs/runbooks/nobody-serves.md)',
    ],
    [
      'a drained worker',
      view({ workers: [worker('gpu-1', ['main'], { isDrained: true, state: 'drained' })] }),
      'drained: gpu-1; shoal fleet resume lets it claim again',
    ],
    [
      'a paused queue',
      view({}, { isPaused: true, waiting: 4 }),
      'embed-x is paused: nothing is claimed, 4 jobs wait; shoal queue resume --queue embed-x lets it go on ' +
        '(docs/runbooks/queue-paused.md)',
    ],
    [
      'workers that are braked',
      view({
        workers: ['gpu-1', 'gpu-2'].map((id) => worker(id, ['main'], { state: 'braked', reason: 'results fill it' })),
      }),
      'braked: gpu-1, gpu-2: results fill it; fetch results, or give the server memory (docs/runbooks/claiming-braked.md)',
    ],
    [
      'a worker whose executor died',
      view({ workers: [worker('gpu-1', ['main'], { state: 'starting', reason: 'its executor was lost' })] }),
      'gpu-1 runs nothing now: its executor was lost',
    ],
    [
      'a fleet that is drained as a whole',
      view({ workers: [], isAllDrained: true }),
      'all workers are drained, those that start later too; shoal fleet resume all lets them claim again ' +
        '(docs/runbooks/all-drained.md)',
    ],
    [
      'executors that were lost again and again',
      view({ losses: [{ workerId: 'gpu-1', count: 6, reasons: [{ reason: 'killed by SIGKILL', count: 6 }] }] }),
      'gpu-1 lost its executor 6 times in the last ten minutes (killed by SIGKILL); what ran there ran again ' +
        '(docs/runbooks/executor-losses.md)',
    ],
    [
      'an executor that was lost for several reasons',
      view({
        losses: [
          {
            workerId: 'gpu-1',
            count: 3,
            reasons: [
              { reason: 'exit code 1', count: 2 },
              { reason: 'silent', count: 1 },
            ],
          },
        ],
      }),
      'gpu-1 lost its executor 3 times in the last ten minutes (2 × exit code 1, 1 × silent); what ran there ran ' +
        'again (docs/runbooks/executor-losses.md)',
    ],
    [
      'a worker that died without a word',
      view({ absent: [absent('gpu-9')], atMs: NOW_MS }),
      'gpu-9 (cuda:0 on h) died without a word, last heard of 40s ago; what it had claimed goes to others; start it ' +
        'again (docs/runbooks/worker-down.md)',
    ],
    [
      'a dead worker that has a successor',
      view({ absent: [absent('gpu-1-00000001', { successor: 'gpu-1-00000002' })], atMs: NOW_MS }),
      'gpu-1-00000001 (cuda:0 on h) died without a word, last heard of 40s ago; gpu-1-00000002 took its place',
    ],
    [
      'jobs in quarantine',
      view({ quarantined: 2 }),
      '2 jobs of embed-x are in quarantine, each killed its executor or seemed to; shoal queue quarantine list --queue ' +
        'embed-x shows them, shoal queue quarantine return ID --queue embed-x gives one back (docs/runbooks/quarantined.md)',
    ],
    [
      'a trial',
      view({ workers: [worker('sim-1', ['main'], { facts: { ...FACTS, device: 'sim:8000' } })] }),
      'a trial: simulated is sim-1; vectors of this queue are not those of the model',
    ],
    [
      'parents without a child',
      view({}, { handedOver: 3 }, { active: 1 }),
      '2 jobs handed over without a child in the CPU lane; if this stays so, shoal queue repair brings them back',
    ],
  ])('%s', (_, seen, warning) => expect(warningsOf(seen)).toEqual([warning]));
});

test('who left in order and is not back is named, and is nothing that needs somebody', () => {
  const seen = view({
    absent: [
      absent('gpu-8', { hasLeft: true, lastMs: NOW_MS - 300_000 }),
      absent('gpu-7', { hasLeft: true, successor: 'x' }),
    ],
    atMs: NOW_MS,
  });
  expect(leftOf(seen)).toBe(
    'left in order in the last ten minutes, and nobody of the same name is back: gpu-8 5m ago\n',
  );
  expect(warningsOf(seen)).toEqual([]);
  expect(leftOf(view())).toBe('');
});

test('a table shows lanes, workers and break-even backlogs', () => {
  const standing = { state: 'ready', reason: 'it claims', sinceMs: NOW_MS - 7_300_000 } as const;
  const told = { ...FACTS, standing, startedMs: NOW_MS - 3 * 86_400_000, version: '0.2.0', textsPerSecond: 17_200 };
  const mainLane = { reason: 'gpu-is-sooner', breakEven: { short: 1_250_000, long: 250_000 } };
  const text = describeFleet(
    view(
      {
        workers: [
          worker('gpu-1', ['main'], { facts: told }),
          worker('cpu-1', ['main', 'cpu'], { facts: { ...FACTS, device: 'cpu', mainLane } }),
          worker('old', ['main'], { facts: undefined }),
        ],
        starting: [{ workerId: 'coming', device: 'gpu:1', startedMs: NOW_MS - 5_000 }],
        atMs: NOW_MS,
      },
      {
        waiting: 12_345,
        parked: { 3: 4, 9: 1 },
        cancelled: 7,
        oldestMs: 61_500,
        oldestWaitingMs: { interactive: 300, bulk: 61_500 },
      },
    ),
  );
  expect(text).toMatch(/^embed-x +12,345 +0 +0 +5 +0 +0 +7 +0\.3 s +61\.5 s$/m);
  expect(text).toMatch(
    /^gpu-1 +ready 2h +cuda:0 +fp16 +main +12 +24K +17\.2K +8\.12M \/ - \/ 1M +65\.5K by knee +2\.10 GB +0\.2\.0 +3d$/m,
  );
  expect(text).toMatch(/^coming +starting 5s +gpu:1 /m);
  expect(text).toMatch(/^cpu-1 +gpu-is-sooner +1\.25M \/ - \/ 250K$/m);
  expect(text).toMatch(/^old +ready +\? +\? +main +-/m);
});

describe('the command', () => {
  let server: TestServer;
  let sandbox: Sandbox;

  beforeAll(async () => {
    server = await startTestServer();
    sandbox = new Sandbox();
  });

  afterAll(async () => {
    sandbox.remove();
    await server.stop();
  });

  const run = (...args: string[]) => runHere(sandbox, ['fleet', ...args, '--redis-url', server.url, '--model', 'x']);

  test('shows workers and warnings as JSON, drains one and resumes it, and refuses an id that nobody has', async () => {
    const presence = await WorkerPresence.connect({
      redisUrl: server.url,
      prefix: '{shoal}',
      queue: mainQueue('x'),
      lanes: [mainQueue('x')],
      workerId: 'gpu-1',
      facts: () => FACTS,
      log: new RecordingLogger(),
    });
    await presence.start();
    await server.command('RPUSH', `{shoal}:${cpuQueue('x')}:wait`, 'a');
    const seen = JSON.parse((await run('status', '--json')).stdout) as FleetView & { warnings: string[] };
    expect(seen).toMatchObject({
      workers: [{ workerId: 'gpu-1', facts: { rates: { short: 8_123_456 } } }],
      lanes: { cpu: { waiting: 1 } },
      warnings: [expect.stringContaining('no CPU worker')],
    });
    expect(await run('drain', 'gpu')).toMatchObject({
      code: 0,
      stdout: '',
      stderr: expect.stringContaining('1 worker is told (gpu-1) to claim nothing more'),
    });
    expect((await run('status')).stdout).toContain('! drained: gpu-1');
    expect(await run('resume', 'gpu-1', '--json')).toMatchObject({ code: 0, stdout: '{"workers":["gpu-1"]}\n' });
    expect(await run('drain', 'nobody')).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('no live worker has an id that begins with "nobody"; alive: gpu-1'),
    });
    for (const which of ['drain', 'resume'])
      expect(await run(which, '')).toMatchObject({
        code: 2,
        stderr: expect.stringContaining('the worker is an empty text: give an id'),
      });
    for (const queue of ['', 'a:b'])
      expect(await run('status', '--queue', queue)).toMatchObject({
        code: 2,
        stderr: expect.stringContaining('It must be the name of a queue, which is not empty and has no ":"'),
      });
    await presence.stop();
  });

  test('tells of payload servers: who has them, how they fare with workers and from here, and who has others', async () => {
    const names = ['127.0.0.1:1', new URL(server.url).host];
    const tell = (workerId: string, servers: readonly PayloadServerFacts[] | undefined) =>
      WorkerPresence.connect({
        redisUrl: server.url,
        prefix: '{shoal}',
        queue: mainQueue('x'),
        lanes: [mainQueue('x')],
        workerId,
        facts: () => ({
          ...FACTS,
          ...(servers !== undefined && { payloads: 'set', payloadServers: servers }),
          bodies: { put: 1_234, byQueueServer: 5, lost: 0 },
        }),
        log: new RecordingLogger(),
      });
    const [away, here] = names.map((name) => ({ name }));
    const presences = [
      await tell('gpu-1', [{ ...away!, problem: 'gives nothing (ECONNREFUSED)', sinceMs: 1 }, here!]),
      await tell('gpu-2', undefined),
    ];
    for (const presence of presences) await presence.start();
    const flags = ['--payload-servers', names.map((name) => `redis://${name}`).join()];
    for (const all of [[], ['--all']]) {
      const { stdout } = await runHere(sandbox, [
        'fleet',
        'status',
        '--redis-url',
        server.url,
        ...(all.length === 0 ? ['--model', 'x'] : all),
        ...flags,
      ]);
      expect(stdout).toMatch(/^127\.0\.0\.1:1 +Valkey or Redis +1 of 2 +fails for \d+d +fails +- +-$/m);
      expect(stdout).toMatch(/^127\.0\.0\.1:\d+ +Valkey or Redis +1 of 2 +answers +answers +[\d.]+ MB +no limit$/m);
      expect(stdout).toMatch(/^gpu-1 +all 2 +1,234 +5 +0$/m);
      expect(stdout).toMatch(/^! .*payload server 127.0.0.1:1 gives nothing \(ECONNREFUSED\), as gpu-1 sees it/m);
      expect(stdout).toMatch(/^! .*payload servers differ: gpu-1 has .*; gpu-2 has none; until all have the same/m);
    }
    const { payloads } = JSON.parse((await run('status', '--json')).stdout) as StatusSeen;
    expect(payloads?.servers.map(({ name, here: seen }) => [name, seen])).toEqual(
      names.map((name) => [name, undefined]),
    );
    for (const presence of presences) await presence.stop();
  });

  test('says what lies in quarantine, who lost executors and who died, of its own queue and of all', async () => {
    const history = keySpace('{shoal}').history('dead-1');
    const step = {
      queue: mainQueue('x'),
      device: 'cuda:0',
      host: 'h',
      ms: 10_000,
      events: { 'lost killed by SIGKILL': 5 },
    };
    await server.command('XADD', history, '*', 'step', JSON.stringify(step));
    await server.command('RPUSH', `{shoal}:${mainQueue('x')}-quarantine:wait`, 'poison');
    await server.command('SADD', keySpace('{shoal}').queues(), mainQueue('x'), mainQueue('y'));
    for (const queue of [mainQueue('x'), mainQueue('y')])
      await server.command('HSET', `{shoal}:${queue}:meta`, 'version', 'bullmq'); // as whoever opens a queue writes it
    const words = [
      'dead-1 lost its executor 5 times in the last ten minutes (killed by SIGKILL)',
      'dead-1 (cuda:0 on h) died without a word',
      '1 job of embed-x is in quarantine',
    ];
    const { stdout } = await run('status');
    for (const said of words) expect(stdout).toContain(said);
    expect(JSON.parse((await run('status', '--json')).stdout)).toMatchObject({
      quarantined: 1,
      losses: [{ workerId: 'dead-1', count: 5, reasons: [{ reason: 'killed by SIGKILL', count: 5 }] }],
      absent: [{ workerId: 'dead-1', hasLeft: false }],
      warnings: expect.arrayContaining(words.map((said) => expect.stringContaining(said))),
    });
    expect((await run('status', '--queue', mainQueue('y'))).stdout).not.toContain('dead-1');
    const all = (await runHere(sandbox, ['fleet', 'status', '--all', '--redis-url', server.url])).stdout;
    expect(all.split('dead-1 lost its executor')).toHaveLength(2);
    for (const said of words) expect(all).toContain(said);
    await server.command('DEL', history, `{shoal}:${mainQueue('x')}-quarantine:wait`);
  });

  test('knows the queue of similarity jobs by its name', async () => {
    const presence = await WorkerPresence.connect({
      redisUrl: server.url,
      prefix: '{shoal}',
      queue: SIMILARITY_QUEUE,
      lanes: [SIMILARITY_QUEUE],
      workerId: 'simd-1',
      facts: () => ({ ...FACTS, device: 'cpu:avx512', model: 'similarity', similarity: SIMILARITY }),
      log: new RecordingLogger(),
    });
    await presence.start();
    await server.command('RPUSH', `{shoal}:${SIMILARITY_QUEUE}:wait`, 'a');
    const shown = (await run('status', '--queue', 'similarity')).stdout;
    expect(shown).toMatch(/^similarity +1 .*^simd-1 +ready +cpu:avx512/ms);
    expect(shown).toMatch(/^simd-1 +3 +1.50 GB +8.00 GB +0 +2 +1.00 GB +4.00 GB +7 +90 \/ 10, GPU LOST$/m);
    expect(shown).toContain('! simd-1: its GPU failed');
    expect(await run('drain', 'simd', '--queue', 'similarity', '--json')).toMatchObject({
      code: 0,
      stdout: '{"workers":["simd-1"]}\n',
    });
    expect((await run('status', '--queue', 'similarity')).stdout).toContain('! drained: simd-1');
    await presence.stop();
  });
});

import { expect, test } from 'vitest';
import type { FleetView, LaneDepth, LiveWorker } from '@shoal/queue';
import { emptyLane } from '@shoal/queue/testing';
import type { Finding } from '@shoal/worker';
import { FLEET_CHECKS, checkFleet, type QueueSeen } from './fleet-checks.ts';
import { openFilesIn, readHost, stopLimitsIn, swapUsedIn } from './host-facts.ts';
import { HOST_CHECKS, checkHost, type HostFacts } from './host-checks.ts';
import { SERVER_CHECKS, checkServerHealth, type ServerChecked } from './server-checks.ts';
import { resolveSettings } from '@shoal/core';

const SERVER: ServerChecked = {
  roundTripMs: 0.2,
  uptimeSeconds: 36_000,
  usedBytes: 2e9,
  maxBytes: 8e9,
  machineBytes: 16e9,
  fragmentation: 1.1,
  clients: 40,
  maxClients: 10_000,
  rejectedConnections: 0,
  evictedKeys: 0,
  isAppendOnly: true,
  isAppendOk: true,
  isRewriteOk: true,
  isSnapshotOk: true,
  delayedFsyncs: 1,
  appendFileBytes: 1e9,
  lastForkMs: 12,
  replicas: [{ address: '10.0.0.2:6379', isOnline: true, lagSeconds: 0 }],
  folder: '/var/lib/valkey',
  slowCommands: 0,
  unreadBytes: 1e8,
  isHere: true,
  freeDiskBytes: 40e9,
  isTls: true,
  hasPassword: true,
  isPrivate: false,
};
const HOST: HostFacts = {
  node: 'v22.23.3',
  platform: 'linux',
  cores: 8,
  threads: 0,
  openFiles: 65_536,
  availableBytes: 20e9,
  totalBytes: 64e9,
  containerBytes: undefined,
  swapUsedBytes: 0,
  overcommit: 1,
  hugePages: 'madvise',
  hasServer: true,
  strays: [],
  drainTimeoutMs: 30_000,
  metricsPort: 9_464,
  metricsHost: '127.0.0.1',
  hasMasterKey: false,
  hasPasswordInEnvironment: false,
  stopLimits: [{ name: 'shoal-worker@0.service', ms: 90_000 }],
  umask: 0o022,
};
const worker = (workerId: string, more: object = {}, facts: object | undefined = {}): LiveWorker =>
  ({
    workerId,
    lanes: ['main'],
    facts: facts === undefined ? undefined : { version: '0.2.0', name: workerId, model: 'x@1', ...facts },
    isDrained: false,
    isLeaving: false,
    state: 'ready',
    reason: 'it claims',
    ...more,
  }) as LiveWorker;

function seen(more: Partial<FleetView> = {}, main: Partial<LaneDepth> = {}, cpu: Partial<LaneDepth> = {}): QueueSeen {
  const lanes = { main: { ...emptyLane('embed-x'), ...main }, cpu: { ...emptyLane('embed-x-cpu'), ...cpu } };
  const view = { lanes, workers: [worker('gpu-1')], starting: [], isAllDrained: false, ...more };
  return { queue: 'embed-x', view };
}

const bad = (findings: readonly Finding[]): string[] =>
  findings.filter(({ state }) => state !== 'ok').map(({ about, state, found }) => `${state} ${about}: ${found}`);

test('there are many checks, each of another thing, and all are content with a machine that is well', () => {
  const fleet = checkFleet({ version: '0.2.0', queues: [seen()], isWhole: true });
  const findings = [...checkServerHealth(SERVER), ...checkHost(HOST), ...fleet];
  expect(bad(findings)).toEqual([]);
  expect(findings).toHaveLength(SERVER_CHECKS.length + HOST_CHECKS.length + FLEET_CHECKS.length);
  expect(new Set(findings.map(({ about }) => about)).size).toBe(findings.length);
  expect(findings.length).toBeGreaterThanOrEqual(25);
});

test.each<[string, Partial<ServerChecked>, string]>([
  ['far away', { roundTripMs: 12 }, 'warning server round trip: an answer takes 12 ms'],
  ['on another continent', { roundTripMs: 300 }, 'broken server round trip'],
  ['filling up', { usedBytes: 6e9 }, 'warning server memory: 75 % of maxmemory'],
  ['full', { usedBytes: 7.5e9 }, 'broken server memory: 94 %'],
  ['full of results', { unreadBytes: 3.6e9 }, 'warning unread results: 3.60 GB, 45 %'],
  ['full of unread results', { unreadBytes: 4.4e9 }, 'broken unread results'],
  ['in pieces', { fragmentation: 1.8 }, 'warning server fragmentation'],
  ['small in clients', { maxClients: 500 }, 'warning server connections: 40 of 500'],
  ['out of clients', { clients: 9_000 }, 'broken server connections'],
  ['turning clients away', { rejectedConnections: 3 }, 'warning refused connections'],
  ['throwing keys away', { evictedKeys: 1 }, 'broken evicted keys'],
  ['unable to write its file', { isAppendOk: false }, 'broken append-only file'],
  ['unable to rewrite it', { isRewriteOk: false }, 'warning rewrite of the file'],
  [
    'short of disk',
    { freeDiskBytes: 1e9 },
    'broken room for a rewrite: the file has 1.00 GB, its disk has 1.00 GB free',
  ],
  ['on a slow disk', { delayedFsyncs: 400 }, 'warning disk of the server: 400 late fsyncs in 10 h'],
  ['unable to save', { isSnapshotOk: false }, 'warning snapshot'],
  ['slow to fork', { lastForkMs: 2_500 }, 'warning fork of the server: the last took 2.5 s'],
  [
    'left by its replica',
    { replicas: [{ address: '10.0.0.2:6379', isOnline: true, lagSeconds: 90 }] },
    'broken replicas: 10.0.0.2:6379 is 90 s behind or away',
  ],
  ['busy with long commands', { slowCommands: 40 }, 'warning slow commands'],
  ['without TLS', { isTls: false, isHere: false }, 'warning wire to the server'],
  ['open to everybody', { hasPassword: false }, 'warning password of the server'],
])('a server that is %s is told of, with a cure', (_, more, told) => {
  const findings = checkServerHealth({ ...SERVER, ...more });
  expect(bad(findings).join('\n')).toContain(told);
  expect(bad(findings)).toHaveLength(1);
  expect(findings.find(({ state }) => state !== 'ok')?.cure).toMatch(/\w/);
});

test.each<[string, Partial<HostFacts>, string]>([
  ['old Node', { node: 'v20.1.0' }, 'broken Node: v20.1.0 is too old'],
  ['few files', { openFiles: 1_024 }, 'warning open files: this process may open 1,024'],
  ['too few files', { openFiles: 256 }, 'broken open files'],
  ['little memory', { availableBytes: 4e8 }, 'warning memory: 0.4 GB of 64.0 GB free'],
  ['a small container', { containerBytes: 1e9 }, 'warning memory of the container'],
  ['swap', { swapUsedBytes: 2e9 }, 'warning swap: 2.0 GB are swapped out'],
  ['too many threads', { threads: 32 }, 'warning threads: 32 on 8 cores'],
  ['no overcommit', { overcommit: 0 }, 'warning vm.overcommit_memory: 0'],
  ['huge pages', { hugePages: 'always' }, 'warning transparent huge pages'],
  [
    'stray variables',
    { strays: ['SHOAL_MODLE is no setting; did you mean SHOAL_MODEL?'] },
    'did you mean SHOAL_MODEL?',
  ],
  [
    'an impatient supervisor',
    { stopLimits: [{ name: 'shoal-worker@0.service', ms: 30_000 }] },
    'warning time to drain: shoal-worker@0.service kills after 30 s, and a drain may take 30 s',
  ],
  ['no metrics', { metricsPort: 0 }, 'warning metrics'],
  ['a password in sight', { hasPasswordInEnvironment: true }, 'warning password of REDIS_URL'],
  ['an open umask', { umask: 0 }, 'warning umask: 0000'],
])('a machine with %s is told of, with a cure', (_, more, told) => {
  const findings = checkHost({ ...HOST, ...more });
  expect(bad(findings).join('\n')).toContain(told);
  expect(bad(findings)).toHaveLength(1);
  expect(findings.find(({ state }) => state !== 'ok')?.cure).toMatch(/\w/);
});

const OLD = worker('old', {}, { version: '0.1.0' });
test.each<[string, QueueSeen, string]>([
  ['two versions', seen({ workers: [worker('new'), OLD] }), 'versions of workers: 0.2.0: 1, 0.1.0: 1'],
  ['nobody', seen({ workers: [] }, { waiting: 7 }), 'broken queues that nobody serves: embed-x (7 waiting)'],
  ['a pause', seen({}, { isPaused: true }), 'paused queues: embed-x (0 waiting)'],
  ['a drained worker', seen({ workers: [worker('a', { isDrained: true })] }), 'drained workers: a'],
  ['a drained fleet', seen({ workers: [], isAllDrained: true }), 'queues drained as a whole: embed-x'],
  ['a brake', seen({ workers: [worker('a', { state: 'braked' })] }), 'braked workers: a'],
  ['a dead executor', seen({ workers: [worker('a', { state: 'starting' })] }), 'workers without an executor: a'],
  [
    'one name twice',
    seen({ workers: [worker('a-1', {}, { name: 'a' }), worker('a-2', {}, { name: 'a' })] }),
    'names of workers: a-1, a-2',
  ],
  ['quarantine', seen({ quarantined: 2 }), 'quarantine: embed-x (2)'],
  [
    'waits',
    seen({}, { oldestWaitingMs: { interactive: 90_000, bulk: 0 } }),
    'waits of interactive jobs: embed-x (90 s)',
  ],
  ['a lone CPU lane', seen({}, {}, { waiting: 3 }), 'CPU lanes: embed-x (3 waiting)'],
])('a fleet with %s is told of, with a cure', (_, queue, told) => {
  const findings = checkFleet({ version: '0.2.0', queues: [queue], isWhole: true });
  expect(bad(findings).join('\n')).toContain(told);
  expect(bad(findings)).toHaveLength(1);
  expect(findings.find(({ state }) => state !== 'ok')?.cure).toMatch(/\w/);
});

test('what workers do not tell and queues that were not found are said as well', () => {
  const silent = { ...worker('mute'), facts: undefined };
  const findings = checkFleet({ version: '0.2.0', queues: [seen({ workers: [silent] })], isWhole: false });
  expect(bad(findings)).toEqual(['warning queues: embed-x and more', 'warning workers that tell nothing: mute']);
});

test('the facts of a machine are read as Linux and systemd tell them', async () => {
  expect(
    openFilesIn('Limit  Soft  Hard\nMax open files            1024                 524288               files\n'),
  ).toBe(1_024);
  expect(openFilesIn('Max open files  unlimited unlimited files')).toBe(Number.MAX_SAFE_INTEGER);
  expect(swapUsedIn('SwapTotal:  2097148 kB\nSwapFree: 1048574 kB\n')).toBe(1_048_574 * 1_024);
  expect(
    stopLimitsIn(
      'Id=a.service\nTimeoutStopUSec=1min 30s\n\nId=b.service\nTimeoutStopUSec=infinity\n\nId=c\nTimeoutStopUSec=500ms',
    ),
  ).toEqual([
    { name: 'a.service', ms: 90_000 },
    { name: 'c', ms: 500 },
  ]);
  const files: Readonly<Record<string, string>> = {
    '/proc/sys/vm/overcommit_memory': '0\n',
    '/sys/kernel/mm/transparent_hugepage/enabled': 'always [madvise] never\n',
  };
  const host = await readHost({
    settings: resolveSettings({ environment: {} }),
    environment: { REDIS_URL: 'redis://u:p@h:6379' },
    hasServer: true,
    strays: [],
    read: async (path) => files[path] ?? Promise.reject(new Error('none')),
    units: () => Promise.reject(new Error('no systemd')),
  });
  expect(host).toMatchObject({
    overcommit: 0,
    hugePages: 'madvise',
    openFiles: undefined,
    stopLimits: [],
    hasPasswordInEnvironment: true,
  });
});

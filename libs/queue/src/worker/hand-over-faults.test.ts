// Whoever dies at whatever step of a hand-over or of what follows from it, the job is in one place and ends once. Real
// processes, a real server, SIGKILL. The seed of the random part is printed; SHOAL_TEST_SEED sets it.

import { once } from 'node:events';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { ChildProcess } from 'node:child_process';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { addJobs, crashHandOvers, kill, misplaced, placesOf, wrongs } from '../testing/hand-over-crash.ts';
import { LANE_QUEUE, startLaneWorker, type LaneWorkerOptions } from '../testing/lane-worker.ts';

const SLOW_MACHINE_MS = 180_000;
let server: TestServer;
let connection: Redis;
let prefix: string;
let prefixes = 0;
const workers: ChildProcess[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

beforeEach(() => {
  prefix = `{t-hand-over-faults-${++prefixes}}`;
});

afterEach(async () => {
  await Promise.all(workers.splice(0).map(kill));
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

async function start(role: LaneWorkerOptions['role'], faultPoint?: string): Promise<ChildProcess> {
  const worker = await startLaneWorker({ redisUrl: server.url, prefix, role, leaseMs: 900, faultPoint });
  workers.push(worker);
  return worker;
}

/** One job, which does not fit the GPU, in a fleet of one GPU and one CPU worker. */
async function completed(): Promise<void> {
  await expect
    .poll(() => connection.zcard(`${prefix}:${LANE_QUEUE}:completed`), { timeout: SLOW_MACHINE_MS / 2, interval: 20 })
    .toBe(1);
  // the announcement comes a moment later
  await expect.poll(() => wrongs(connection, prefix, ['j-0']), { timeout: 10_000, interval: 200 }).toEqual([]);
}

/** [who, where, the place of the job then: main lane | CPU lane | pending children] */
type Death = readonly ['gpu' | 'cpu', string, string];
/** One of each place by day; at night all. */
const BY_DAY: readonly Death[] = [
  ['gpu', 'after-complete', 'waiting-children|wait|1'],
  ['cpu', 'after-commit', 'waiting-children|active|1'],
  ['gpu', 'before-complete:SIGKILL:2', 'active|completed|0'],
];
const AT_NIGHT: readonly Death[] = [
  ['gpu', 'before-complete', 'active||0'],
  ['cpu', 'after-complete', 'wait|completed|0'],
  ['gpu', 'after-complete:SIGKILL:2', 'completed|completed|0'],
  ['gpu', 'hand-over-watched', 'active||0'],
  ['cpu', 'before-commit', 'waiting-children|active|1'],
  ['cpu', 'before-complete', 'waiting-children|active|1'],
  ['gpu', 'after-announce', 'completed|completed|0'],
];
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNight) console.warn('7 of the 10 places where workers are killed are tried at night (npm run test:nightly)');

describe('SIGKILL', () => {
  test.each(isNight ? [...BY_DAY, ...AT_NIGHT] : BY_DAY)(
    'of the %s worker at %s leaves the job at %s, and it ends once',
    async (role, point, place) => {
      const faultPoint = point.includes(':') ? point : `${point}:SIGKILL`;
      await addJobs(connection, prefix, ['j-0']);
      const victim = await start(role, faultPoint);
      const died = once(victim, 'exit');
      const other = role === 'gpu' ? 'cpu' : 'gpu';
      const isAlone = role === 'gpu' && !point.endsWith(':2') && point !== 'after-announce';
      const helper = isAlone ? undefined : await start(other);
      await died;
      expect(await misplaced(connection, prefix, ['j-0'])).toEqual([]);
      const [found] = await placesOf(connection, prefix, ['j-0']);
      expect(isAlone ? [place] : possibleAfter(place)).toContain(found);
      await start(role);
      if (helper === undefined) await start(other);
      await completed();
    },
    SLOW_MACHINE_MS,
  );
});

/** The other worker is alive until the look, and may have gone on from that place. */
function possibleAfter(place: string): string[] {
  const way = [
    'active||0',
    'waiting-children|wait|1',
    'waiting-children|active|1',
    'wait|completed|0',
    'prioritized|completed|0',
    'active|completed|0',
    'completed|completed|0',
  ];
  return way.slice(way.indexOf(place));
}

test(
  'workers of both kinds are killed again and again: nothing is lost, nothing wrong, nothing to be had twice',
  async () => {
    const seed = Number(process.env['SHOAL_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 32));
    const jobs = process.env['SHOAL_TEST_NIGHTLY'] === undefined ? 150 : 300;
    const report = await crashHandOvers({ redisUrl: server.url, prefix, jobs, seed, mostChanges: 30 });
    console.log(
      `seed ${seed}: ${JSON.stringify({ ...report, misplaced: report.misplaced.length, wrong: report.wrong.length })}`,
    );
    expect(report).toMatchObject({ misplaced: [], wrong: [] });
    expect(report.kills.gpu + report.kills.cpu).toBeGreaterThan(1);
  },
  SLOW_MACHINE_MS,
);

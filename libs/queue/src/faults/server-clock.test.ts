// The clock of a real server set forwards and back by two hours while jobs run and a worker is killed at each step: no
// job waits for the step to pass. Only at night (SHOAL_TEST_NIGHTLY=1), with libfaketime between the server and its
// clock; SHOAL_TEST_FAKETIME names the library (.ci/run fetches it). It prints what it measured.

import { chmod, mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { noLog } from '@shoal/core';
import { Queue } from 'bullmq';
import { expect, test } from 'vitest';
import { closeConnection, openConnection } from '../redis/connection.ts';
import { claimAll, startTestServer } from '../testing.ts';
import { LANE_QUEUE, startLaneWorker } from '../testing/lane-worker.ts';
import { BullJobSource } from '../worker/bull-job-source.ts';

const PREFIX = '{t-step}';
const LEASE_MS = 3_000;
const STEPS_HOURS = [2, 0, -2, 0];
const JOBS_PER_STEP = 150;
/** Lease, check, a look at the clock, and a worker that starts on a busy machine: nothing near two hours. */
const LONGEST_MS = 30_000;

/** Claims jobs and goes away with them. */
async function leaveClaims(redisUrl: string): Promise<void> {
  const place = { redisUrl, prefix: PREFIX, queue: LANE_QUEUE, log: noLog };
  const dead = new BullJobSource({ ...place, leaseMs: LEASE_MS, stalledCheckMs: LEASE_MS });
  await dead.start();
  await claimAll(dead, 5);
  await dead.stop();
}

const library = process.env['SHOAL_TEST_FAKETIME'];
const program = process.env['SHOAL_TEST_SERVER'];
const why =
  process.env['SHOAL_TEST_NIGHTLY'] !== '1'
    ? 'only at night: SHOAL_TEST_NIGHTLY=1'
    : library === undefined || program === undefined
      ? 'SHOAL_TEST_FAKETIME and SHOAL_TEST_SERVER must name a libfaketime and a server'
      : undefined;
if (why !== undefined) process.stdout.write(`server-clock.test.ts is skipped: ${why}\n`);

test.skipIf(why !== undefined)(
  'a server whose clock is set by two hours, to and fro: every job is done soon',
  async () => {
    const folder = await mkdtemp(join(tmpdir(), 'shoal-clock-'));
    const setClock = async (hours: number): Promise<void> => {
      await writeFile(join(folder, 'next'), hours === 0 ? '+0' : `${hours > 0 ? '+' : '-'}${Math.abs(hours)}h`);
      await rename(join(folder, 'next'), join(folder, 'clock'));
    };
    await setClock(0);
    const wrapper = join(folder, 'server');
    const environment = `LD_PRELOAD=${library} FAKETIME_TIMESTAMP_FILE=${join(folder, 'clock')} FAKETIME_NO_CACHE=1`;
    await writeFile(wrapper, `#!/bin/sh\nexec env ${environment} FAKETIME_DONT_FAKE_MONOTONIC=1 ${program} "$@"\n`);
    await chmod(wrapper, 0o755);
    const server = await startTestServer({ program: wrapper });
    const connection = openConnection({ url: server.url, name: 'test' });
    const queue = new Queue(LANE_QUEUE, { prefix: PREFIX, connection });
    const start = (): ReturnType<typeof startLaneWorker> =>
      startLaneWorker({ redisUrl: server.url, prefix: PREFIX, role: 'gpu', leaseMs: LEASE_MS });
    const workers = [await start(), await start()];

    const addSome = async (step: number): Promise<void> => {
      for (let at = 0; at < JOBS_PER_STEP; at++) {
        await queue.add('embed', { v: 1, texts: ['a'] }, { jobId: `s${step}-${at}`, removeOnComplete: false });
        await pause(10);
      }
    };
    const hoursAhead = async (): Promise<number> =>
      Math.round((Number((await connection.time())[0]) - Date.now() / 1_000) / 3_600) + 0;
    const clocks: number[] = [];
    for (const [step, hours] of STEPS_HOURS.entries()) {
      const added = addSome(step);
      await pause(500);
      // what these had is under locks of the time before the step
      workers.shift()?.kill('SIGKILL');
      await leaveClaims(server.url);
      await setClock(hours);
      while ((await hoursAhead()) !== hours) await pause(50);
      clocks.push(hours);
      workers.push(await start());
      await added;
    }
    const total = STEPS_HOURS.length * JOBS_PER_STEP;
    const openJobs = (): Promise<number> => queue.getJobCountByTypes('wait', 'prioritized', 'active', 'delayed');
    const givenUpMs = Date.now() + 2 * LONGEST_MS;
    while ((await openJobs()) > 0 && Date.now() < givenUpMs) await pause(250);

    const jobs = await queue.getJobs(['completed'], 0, total);
    const tookMs = jobs.map(({ timestamp, finishedOn = Infinity }) => finishedOn - timestamp);
    const stalled = jobs.filter(({ stalledCounter }) => stalledCounter > 0).length;
    const figures = { steps: STEPS_HOURS, clocks, jobs: total, completed: jobs.length, stalled };
    process.stdout.write(
      `${JSON.stringify({ ...figures, stuck: await openJobs(), longestMs: Math.max(...tookMs), leaseMs: LEASE_MS })}\n`,
    );
    for (const worker of workers) worker.kill('SIGKILL');
    await queue.close();
    await closeConnection(connection);
    await server.stop();
    await rm(folder, { recursive: true, force: true });

    expect(clocks).toEqual(STEPS_HOURS);
    expect(figures).toMatchObject({ completed: total });
    expect(stalled).toBeGreaterThan(0);
    expect(Math.max(...tookMs)).toBeLessThan(LONGEST_MS);
  },
);

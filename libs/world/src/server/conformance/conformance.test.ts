// The model against real servers. By day each recorded call and a few changed ones, the same every time; at night so many
// as its minutes give, with a new seed, which is printed. By hand: main.ts.

import { execFileSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { startTestServer } from '@shoal/queue/testing';
import { readCorpus } from './corpus.ts';
import { PLAIN, comparedScripts, runConformance } from './run.ts';
import { RealServer } from './real-server.ts';
import { allScripts } from './scripts.ts';

const IS_NIGHT = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const SEED = IS_NIGHT ? Math.floor(Date.now() / 1_000) : 1;
const CALLS = IS_NIGHT ? 100_000 : 12;
const MOST_MS = IS_NIGHT ? 480_000 : Infinity;

const redis70 = process.env['SHOAL_TEST_REDIS_7_0'] ?? 'redis-server';
const SERVERS = [
  { flavour: 'valkey-9', program: undefined, isHere: true },
  { flavour: 'redis-7.0', program: redis70, isHere: versionOf(redis70)?.startsWith('7.0.') === true },
] as const;

function versionOf(program: string): string | undefined {
  try {
    return /v=(\d+\.\d+\.\d+)/.exec(execFileSync(program, ['--version'], { encoding: 'utf8' }))?.[1];
  } catch {
    return undefined;
  }
}

describe.each(SERVERS)('$flavour', ({ flavour, program, isHere }) => {
  if (!isHere)
    console.warn(
      `skipped: the model against Redis 7.0, because ${redis70} is none (apt-get install redis-server on Debian 12)`,
    );

  test.skipIf(!isHere)('scripts and commands answer and store what the real server does', async () => {
    const server = await startTestServer({ topology: 'single', ...(program === undefined ? {} : { program }) });
    const real = await RealServer.connect(Number(new URL(server.url).port));
    const [begun, scripts, corpus] = [Date.now(), await allScripts(), readCorpus()];
    const wanted = comparedScripts({ scripts, corpus, only: undefined });
    let calls = 0;
    // By turns, so that a night that ends early has seen every script.
    const turn = IS_NIGHT ? 500 : CALLS;
    for (let from = 0; from < CALLS && Date.now() - begun < MOST_MS; from += turn)
      for await (const report of runConformance({ real, flavour, scripts, corpus, seed: SEED, calls: turn, from })) {
        calls += report.calls;
        expect(report.differences.join('\n\n')).toBe('');
      }
    if (IS_NIGHT) console.log(`${flavour}: ${calls} calls of ${wanted.length} scripts, seed ${SEED}`);
    expect(wanted).toContain(PLAIN);
    real.close();
    await server.stop();
  });
});

test('every script is compared, but for those that are named here', async () => {
  const [scripts, corpus] = [await allScripts(), readCorpus()];
  const compared = new Set(comparedScripts({ scripts, corpus, only: undefined }));
  expect([...scripts.keys()].filter((name) => !compared.has(name)).toSorted()).toEqual(NOT_COMPARED);
});

/** No recorded run has called them. */
const NOT_COMPARED: string[] = [
  'bullmq.extendLock',
  'bullmq.getRanges',
  'bullmq.getState',
  'bullmq.isJobInList',
  'bullmq.isMaxed',
  'bullmq.paginate',
  'bullmq.relayAckInbox',
  'bullmq.relaySweep',
  'bullmq.releaseLock',
  'bullmq.removeChildDependency',
  'bullmq.removeDeduplicationKey',
  'bullmq.retryJob',
  'bullmq.saveStacktrace',
  'bullmq/find-claim',
  'lanes/survey-queue',
  'payload/commit-results',
  'producer/count-cancelled-jobs',
  'producer/discard-input',
  'producer/mark-taken',
  'producer/mark-taken-again',
  'producer/oldest-waiting',
  'producer/read-endings',
  'upkeep/adopt-unlisted-jobs',
  'upkeep/forgive-job',
  'upkeep/move-wrong-key',
  'upkeep/release-childless-parents',
  'upkeep/set-job-aside',
  'upkeep/unlist-job',
  'worker/count-parked',
  'worker/show-start',
];

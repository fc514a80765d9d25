// The model against real servers. By day each recorded call and a few changed ones, the same every time; at night so many
// as its minutes give, with a new seed, which is printed. By hand: main.ts.

import { execFileSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { readCorpus } from './corpus.ts';
import { RealServer, whyNoClock } from './real-server.ts';
import { Conformance, PLAIN, comparedScripts } from './run.ts';
import { allScripts } from './scripts.ts';

const IS_NIGHT = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const SEED = IS_NIGHT ? Math.floor(Date.now() / 1_000) : 1;
const CALLS = IS_NIGHT ? 100_000 : 12;
const MOST_MS = IS_NIGHT ? 180_000 : Infinity;
/** By turns, so that a night that ends early has seen every script. */
const TURN = IS_NIGHT ? 500 : CALLS;

const SERVERS = [
  { flavour: 'valkey-9', program: process.env['SHOAL_TEST_SERVER'] ?? 'valkey-server', version: '9.' },
  { flavour: 'redis-7.0', program: process.env['SHOAL_TEST_REDIS_7_0'] ?? 'redis-server', version: '7.0.' },
] as const;

function versionOf(program: string): string | undefined {
  try {
    return /v=(\d+\.\d+\.\d+)/.exec(execFileSync(program, ['--version'], { encoding: 'utf8' }))?.[1];
  } catch {
    return undefined;
  }
}

function whyNot(program: string, version: string): string | undefined {
  return (
    whyNoClock() ?? (versionOf(program)?.startsWith(version) === true ? undefined : `${program} is no ${version}x`)
  );
}

describe.each(SERVERS)('$flavour', ({ flavour, program, version }) => {
  const why = whyNot(program, version);
  if (why !== undefined)
    console.warn(
      `skipped: the model against ${flavour}: ${why} (SHOAL_TEST_SERVER names a Valkey 9, SHOAL_TEST_REDIS_7_0 a Redis 7.0)`,
    );

  test.skipIf(why !== undefined)('scripts and commands answer and store what the real server does', async () => {
    const real = await RealServer.start(program);
    const [begun, scripts, corpus] = [Date.now(), await allScripts(), readCorpus()];
    const conformance = new Conformance(real, flavour, { scripts, corpus });
    const wanted = comparedScripts(scripts, corpus);
    expect(wanted).toContain(PLAIN);
    let [calls, notModelled] = [0, 0];
    for (let from = 0; from < CALLS && Date.now() - begun < MOST_MS; from += TURN)
      for (const script of wanted) {
        const found = await conformance.run({ script, seed: SEED, from, calls: TURN, mostDifferences: 3 });
        expect(found.differences.join('\n\n')).toBe('');
        calls += found.calls;
        notModelled += found.drawn - found.calls;
      }
    if (IS_NIGHT)
      console.log(`${flavour}: ${calls} calls of ${wanted.length} scripts, ${notModelled} not modelled, seed ${SEED}`);
    expect(calls).toBeGreaterThan(wanted.length * 10);
    await real.stop();
  });
});

test('every script is compared', async () => {
  const [scripts, corpus] = [await allScripts(), readCorpus()];
  expect(comparedScripts(scripts, corpus)).toEqual([...[...scripts.keys()].toSorted(), PLAIN]);
});

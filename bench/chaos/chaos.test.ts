// Twelve seconds of chaos, in CI; ten minutes in either mode of the append-only file every night, and one each over payload
// servers, a bucket and cells. The seed is printed; CHAOS_SEED repeats a run's faults.

import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { testsRunBuild } from '@shoal/core/testing';
import { expect, test } from 'vitest';

const SEED = process.env['CHAOS_SEED'] ?? String(Math.floor(Math.random() * 1e6));

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;

interface Kind {
  readonly mode: string;
  readonly seconds: number;
  readonly more: readonly string[];
}

const DAILY: readonly Kind[] = [{ mode: 'everysec', seconds: 12, more: [] }];
const NIGHTLY: readonly Kind[] = [
  { mode: 'everysec', seconds: 600, more: ['--matrix'] },
  { mode: 'always', seconds: 600, more: ['--matrix'] },
  { mode: 'everysec', seconds: 60, more: ['--payload-servers', '2'] },
  { mode: 'always', seconds: 60, more: ['--bucket'] },
];

test.skipIf(process.platform !== 'linux').each(isNightly ? NIGHTLY : DAILY)(
  `chaos with appendfsync $mode $more, seed ${SEED}: what is acknowledged ends, with the vectors of an undisturbed run, once`,
  async ({ mode, seconds, more }) => {
    process.stdout.write(`chaos: CHAOS_SEED=${SEED}\n`);
    const path = fileURLToPath(new URL('./chaos.ts', import.meta.url));
    // A run that found something says what on stdout, and ends with 1.
    const { stdout } = await promisify(execFile)(
      process.execPath,
      [
        ...(testsRunBuild ? [] : ['--conditions=@shoal/source']),
        path,
        '--mode',
        mode,
        '--seconds',
        String(seconds),
        '--texts',
        '0',
        '--outage',
        '3',
        '--slow',
        '3',
        '--every',
        '2',
        '--seed',
        SEED,
        ...more,
      ],
      { timeout: isNightly ? 1_200_000 : 280_000 },
    ).catch((error: unknown) => error as { readonly stdout: string });
    process.stdout.write(stdout);
    const { acknowledged, completed, failed, lost, wrong, visibleTwice, open, history } = JSON.parse(stdout) as Record<
      string,
      unknown
    >;
    expect({ lost, wrong, visibleTwice, open }).toEqual({ lost: 0, wrong: 0, visibleTwice: 0, open: 0 });
    expect(acknowledged).toBeGreaterThan(0);
    expect(history).toMatchObject({ violations: 0, undecided: 0 });
    expect((history as { readonly ids: number }).ids).toBeGreaterThan(0);
    expect(
      Number(completed) + Object.values(failed as Record<string, number>).reduce((sum, count) => sum + count, 0),
    ).toBe(acknowledged);
  },
  isNightly ? 1_260_000 : 300_000,
);

test.skipIf(process.platform !== 'linux' || !isNightly)(
  `chaos over four cells, seed ${SEED}: every row comes once and is that of an undisturbed run, and no call fails`,
  async () => {
    const path = fileURLToPath(new URL('./cells.ts', import.meta.url));
    const conditions = testsRunBuild ? [] : ['--conditions=@shoal/source'];
    const { stdout } = await promisify(execFile)(
      process.execPath,
      [...conditions, path, '--seconds', '60', '--seed', SEED],
      { timeout: 600_000 },
    ).catch((error: unknown) => error as { readonly stdout: string });
    process.stdout.write(stdout);
    const { lost, wrong, twice, failed, history } = JSON.parse(stdout) as Record<string, unknown>;
    expect({ lost, wrong, twice, failed }).toEqual({ lost: 0, wrong: 0, twice: 0, failed: {} });
    expect(history).toMatchObject({ violations: 0, undecided: 0 });
  },
  660_000,
);

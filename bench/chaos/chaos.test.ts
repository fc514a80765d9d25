// Twenty seconds of chaos, in CI: the long form is a bench. The seed is printed; CHAOS_SEED repeats a run's faults.

import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

const SEED = process.env['CHAOS_SEED'] ?? String(Math.floor(Math.random() * 1e6));

test.skipIf(process.platform !== 'linux')(
  `chaos, seed ${SEED}: whatever is acknowledged ends, with the vectors of an undisturbed run, once`,
  async () => {
    process.stdout.write(`chaos: CHAOS_SEED=${SEED}\n`);
    const path = fileURLToPath(new URL('./chaos.ts', import.meta.url));
    // A run that found something says what on stdout, and ends with 1.
    const { stdout } = await promisify(execFile)(
      process.execPath,
      [
        '--conditions=@shoal/source',
        path,
        '--seconds',
        '20',
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
      ],
      { timeout: 280_000 },
    ).catch((error: unknown) => error as { readonly stdout: string });
    process.stdout.write(stdout);
    const { acknowledged, completed, failed, lost, wrong, visibleTwice, open } = JSON.parse(stdout) as Record<
      string,
      unknown
    >;
    expect({ lost, wrong, visibleTwice, open }).toEqual({ lost: 0, wrong: 0, visibleTwice: 0, open: 0 });
    expect(acknowledged).toBeGreaterThan(0);
    expect(
      Number(completed) + Object.values(failed as Record<string, number>).reduce((sum, count) => sum + count, 0),
    ).toBe(acknowledged);
  },
  300_000,
);

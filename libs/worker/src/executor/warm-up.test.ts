// A worker that knows nothing of its device measures it when nobody asks for anything, keeps what it found, and says at
// its next start that it uses it; a kept file that is damaged is a line in the log, and is measured anew.

import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { WorkerBench, until, type WorkerProcess } from '../testing/worker-bench.ts';

let bench: WorkerBench;
beforeAll(async () => {
  bench = await WorkerBench.start();
});
afterEach(() => bench.clear());
afterAll(() => bench.stop());

const USED = 'what was measured of this model on this device is used';

function said(worker: WorkerProcess, message: string): Promise<true> {
  return until(
    `the log says "${message}"`,
    async () => (worker.log.some((line) => line['msg'] === message) ? true : undefined),
    110_000,
  );
}

test.skipIf(process.platform !== 'linux')(
  'memory is measured once, kept, used at the next start, and measured again when the file is damaged',
  async () => {
    const first = await bench.startWorker('tiny-random');
    await said(first, 'memory of this model measured');
    expect(first.log.map((line) => line['msg'])).not.toContain(USED);
    await first.stop();
    const [file] = readdirSync(join(bench.cacheDir, 'profiles')).filter((name) => name.endsWith('.json'));

    const second = await bench.startWorker('tiny-random');
    await said(second, USED);
    expect(second.log.find((line) => line['msg'] === USED)).toMatchObject({
      source: 'stored',
      limitedBy: 'knee',
      maxPaddedTokens: 1024,
    });
    await second.stop();

    writeFileSync(join(bench.cacheDir, 'profiles', file!), '{"v":1,');
    const third = await bench.startWorker('tiny-random');
    await said(third, 'stored profile does not fit this graph and device, going on without it');
    await said(third, 'memory of this model measured');
  },
  240_000,
);

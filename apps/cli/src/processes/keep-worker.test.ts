import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { WorkerKeeper, stopWorker, unfitReport } from './keep-worker.ts';

let folder: string;
const started: ChildProcess[] = [];
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-keeper-'));
  await writeFile(join(folder, 'dies.mjs'), "console.error('no memory left'); process.exit(3)");
  await writeFile(
    join(folder, 'unfit.mjs'),
    "process.send({ kind: 'unfit', failure: { code: 'MODEL_CORRUPT', message: 'the weights are damaged' } }, " +
      '() => process.exit(1))',
  );
  await writeFile(
    join(folder, 'unreachable.mjs'),
    "process.send({ kind: 'unfit', failure: { code: 'QUEUE_UNREACHABLE', message: 'no answer' } }, () => " +
      'process.exit(1))',
  );
  await writeFile(
    join(folder, 'works.mjs'),
    "process.on('disconnect', () => process.exit(0)); process.send({ kind: 'ready' })",
  );
  await writeFile(
    join(folder, 'hangs.mjs'),
    "process.on('SIGTERM', () => {}); process.send({ kind: 'ready' }); setInterval(() => {}, 1000)",
  );
});
afterAll(() => rm(folder, { recursive: true }));

function start(program: string): ChildProcess {
  const child = fork(join(folder, program), [], { stdio: ['ignore', 'ignore', 'pipe', 'ipc'] });
  started.push(child);
  return child;
}

function keeperOf(
  program: string,
  countWorkers: () => Promise<number>,
  onStart: (attempt: number) => void = () => undefined,
): WorkerKeeper {
  return new WorkerKeeper({ startWorker: () => start(program), countWorkers, onStart, firstPauseMs: 1 });
}

async function aborted(signal: AbortSignal): Promise<unknown> {
  if (!signal.aborted) await once(signal, 'abort');
  return signal.reason;
}

describe('the keeper of a worker', () => {
  test('starts none while somebody else serves the queue', async () => {
    const asked = Promise.withResolvers<void>();
    const before = started.length;
    const keeper = keeperOf('works.mjs', async () => {
      asked.resolve();
      return 1;
    });
    await asked.promise;
    await keeper.stop();
    expect(started.length).toBe(before);
  });

  test('can be stopped while it asks a queue server that is away', async () => {
    const asked = Promise.withResolvers<void>();
    const before = started.length;
    const keeper = keeperOf('works.mjs', () => {
      asked.resolve();
      return new Promise<never>(() => undefined);
    });
    await asked.promise;
    await keeper.stop();
    expect(started.length).toBe(before);
  });

  test('starts one when nobody does, and leaves nothing behind', async () => {
    const first = Promise.withResolvers<number>();
    const keeper = keeperOf('works.mjs', async () => 0, first.resolve);
    expect(await first.promise).toBe(1);
    await keeper.stop();
    expect(started.at(-1)).toMatchObject({ signalCode: 'SIGTERM' });
  });

  test('starts one when the worker of somebody else goes away', async () => {
    const first = Promise.withResolvers<number>();
    const counts = [1, 0];
    const keeper = keeperOf('works.mjs', async () => counts.shift() ?? 0, first.resolve);
    expect(await first.promise).toBe(1);
    await keeper.stop();
    expect(counts).toEqual([]);
  });

  test('starts the next one when it dies', async () => {
    const second = Promise.withResolvers<void>();
    const keeper = keeperOf(
      'works.mjs',
      async () => 0,
      (attempt) => {
        if (attempt === 2) second.resolve();
        else setImmediate(() => started.at(-1)?.kill('SIGKILL'));
      },
    );
    await second.promise;
    expect(keeper.failed.aborted).toBe(false);
    await keeper.stop();
  });

  test('starts the next one at once though the dead one still counts as alive', async () => {
    const second = Promise.withResolvers<void>();
    const counts = [0];
    const keeper = keeperOf(
      'works.mjs',
      async () => counts.shift() ?? 1,
      (attempt) => {
        if (attempt === 2) second.resolve();
        else setImmediate(() => started.at(-1)?.kill('SIGKILL'));
      },
    );
    await second.promise;
    await keeper.stop();
    expect(counts).toEqual([]);
  });

  test('gives up after five deaths in a row, with the last words', async () => {
    const starts: number[] = [];
    const keeper = keeperOf(
      'dies.mjs',
      async () => 0,
      (attempt) => starts.push(attempt),
    );
    expect(await aborted(keeper.failed)).toMatchObject({
      code: 'EXECUTOR_LOST',
      message: expect.stringMatching(/died 5 times in a row.*\n {2}no memory left/),
    });
    expect(starts).toEqual([1, 2, 3, 4, 5]);
    await keeper.stop();
  });

  test('does not try again with a worker that says it is unfit', async () => {
    const starts: number[] = [];
    const keeper = keeperOf(
      'unfit.mjs',
      async () => 0,
      (attempt) => starts.push(attempt),
    );
    expect(await aborted(keeper.failed)).toMatchObject({
      code: 'MODEL_CORRUPT',
      message: 'the worker cannot run: the weights are damaged',
    });
    expect(starts).toEqual([1]);
    await keeper.stop();
  });

  test('outlasts a server that is away, once a worker of its own was ready; before, that is final', async () => {
    const seventh = Promise.withResolvers<void>();
    let starts = 0;
    const keeper = new WorkerKeeper({
      startWorker: () => {
        const child = start(starts === 1 || starts === 7 ? 'works.mjs' : 'unreachable.mjs');
        if (starts === 1) child.once('message', () => child.kill('SIGKILL'));
        return child;
      },
      countWorkers: async () => 0,
      onStart: (attempt) => {
        starts = attempt;
        if (attempt === 7) seventh.resolve();
      },
      firstPauseMs: 1,
    });
    await Promise.race([seventh.promise, aborted(keeper.failed)]);
    expect([starts, keeper.failed.reason]).toEqual([7, undefined]);
    await keeper.stop();
    const first = keeperOf('unreachable.mjs', async () => 0);
    expect(await aborted(first.failed)).toMatchObject({
      code: 'QUEUE_UNREACHABLE',
      message: 'the worker cannot run: no answer',
    });
    await first.stop();
  });
});

test('a worker that does not go when asked is killed', async () => {
  const child = start('hangs.mjs');
  await once(child, 'message');
  await stopWorker(child, 20);
  expect(child.signalCode).toBe('SIGKILL');
});

test('a report with a code that nobody knows is a set-up failure', () => {
  expect(unfitReport({ kind: 'unfit', failure: { code: 'NEW', message: 'x' } })).toEqual({
    code: 'SETUP_FAILED',
    message: 'x',
  });
  expect(unfitReport({ kind: 'ready' })).toBeUndefined();
});

// What each drill does, by its number (drill-list.ts): the fault, and what a person would change before the commands of
// the runbook help.

import { existsSync } from 'node:fs';
import { cacheFolder } from '@shoal/core';
import { openModel, openTokenizer } from '@shoal/models';
import { isOk, MODEL, PREFIX, type Stage, type StageOptions } from './stage.ts';
import { until } from './watcher.ts';

export interface Fault {
  /** Default: two workers. */
  readonly stage?: StageOptions;
  /** Makes the fault; resolves when it is there. Variables for the commands of the runbook. */
  begin(stage: Stage): Promise<Readonly<Record<string, string>> | void>;
  /** What the text of the runbook tells to change, before its commands. */
  mend?(stage: Stage): Promise<void>;
  /** What must be true at the end, beside silence: nothing lost. Throws otherwise. */
  check?(stage: Stage): Promise<void>;
  /** Statuses with which HTTP answers a user who asks once a second, exactly these. Left out: nobody asks. */
  readonly users?: readonly number[];
}

/** A character that no other text of a drill has. */
const DEADLY = 'z';

export const FAULTS: Readonly<Record<number, Fault>> = {
  1: { begin: async (stage) => stage.kill(stage.workers[0]!, 'SIGKILL') },
  2: {
    stage: { workers: 2, device: 'sim:1' }, // a token a millisecond: claims take a while
    async begin(stage) {
      await stage.addJobs(400, { texts: ['many words in a row '.repeat(8), 'again'] });
      await until('the worker has claims', async () => (await stage.count('active')) > 20);
      await stage.kill(stage.workers[0]!, 'SIGKILL');
      await stage.start(await renamed(stage, 0));
    },
    check: (stage) => until('every job is done', async () => (await stage.count('completed')) === 400, 300),
  },
  3: {
    async begin(stage) {
      const worker = stage.workers[0]!;
      for (let killed = 0; killed < 6; killed++) {
        await until('the executor is ready', () => isOk(`http://127.0.0.1:${worker.port}/readyz`));
        const pid = stage.executorOf(worker);
        if (pid !== undefined) process.kill(pid, 'SIGKILL');
        await until('another one is there', async () => ![undefined, pid].includes(stage.executorOf(worker)));
      }
    },
  },
  4: {
    async begin(stage) {
      const worker = stage.workers[0]!;
      await stage.kill(worker, 'SIGTERM');
      await stage.start(worker, { isReady: false });
      const child = worker.running!.child;
      while (child.exitCode === null && child.signalCode === null) {
        const pid = stage.executorOf(worker);
        if (pid !== undefined) process.kill(pid, 'SIGKILL');
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      worker.running = undefined;
    },
  },
  5: {
    users: [200],
    begin: (stage) => stage.server.restart(),
    check: answers,
  },
  6: { begin: (stage) => stage.server.kill9(), check: answers },
  7: { begin: async (stage) => void process.kill(stage.server.pid, 'SIGSTOP'), check: answers },
  8: {
    async begin(stage) {
      await stage.shell('shoal fleet drain all');
      for (const { port } of stage.workers)
        await until('it is drained', async () => !(await isOk(`http://127.0.0.1:${port}/readyz`)));
      await stage.addJobs(20);
    },
    check: answers,
  },
  9: {
    async begin(stage) {
      await stage.shell('shoal queue pause');
      await stage.addJobs(20);
    },
    check: answers,
  },
  10: {
    stage: { workers: 0 },
    begin: async (stage) => void (await stage.addJobs(3)),
    check: answers,
  },
  11: {
    async begin(stage) {
      await stage.addJobs(150, {
        tenant: 'loud',
        texts: Array.from({ length: 32 }, (_, text) => `text ${text} of many`),
      });
      await stage.addJobs(5, { class: 'interactive', tenant: 'quiet' });
    },
    check: answers,
  },
  12: {
    async begin(stage) {
      for (const worker of stage.workers) {
        worker.environment = { SHOAL_FAULT_TOKEN: String(await deadlyToken()) };
        await stage.restart(worker);
      }
      await stage.addJobs(10);
      // alone, so that two executors die and not more
      await until('the others are done', async () => (await stage.count('completed')) === 10);
      const [job = ''] = await stage.addJobs(1, { texts: [DEADLY] });
      return { JOB: job };
    },
    // the cause is gone: another driver, another version
    async mend(stage) {
      for (const worker of stage.workers) {
        worker.environment = {};
        await stage.restart(worker);
      }
    },
    check: answers,
  },
  13: {
    async begin(stage) {
      await stage.server.command('SETRANGE', 'somebody-else', String(120 * 2 ** 20), 'x');
      await stage.addJobs(20).catch(() => undefined); // a full server refuses it
    },
    check: answers,
  },
  14: {
    async begin(stage) {
      const worker = stage.workers[0]!;
      await stage.kill(worker, 'SIGTERM');
      worker.environment = {
        LD_PRELOAD: clockLibrary(),
        FAKETIME: '+300s',
        FAKETIME_DONT_FAKE_MONOTONIC: '1',
      };
      await stage.start(worker);
      await stage.addJobs(40);
    },
    check: answers,
  },
  15: {
    async begin(stage) {
      const worker = stage.workers[0]!;
      await stage.kill(worker, 'SIGTERM');
      await stage.server.command(
        'ACL',
        'SETUSER',
        'small',
        'on',
        '>secret',
        `~${PREFIX}:*`,
        `&${PREFIX}:*`,
        '+@all',
        '-info',
      );
      worker.environment = { REDIS_URL: stage.server.url.replace('redis://', 'redis://small:secret@') };
      await stage.start(worker, { isReady: false });
      const { code } = await worker.running!.ended;
      if (code === 0) throw new Error('a worker that may not ask INFO ended as if all were well');
      worker.running = undefined;
    },
    mend: async (stage) => void (await stage.server.command('ACL', 'SETUSER', 'small', '+info')),
  },
  16: {
    async begin(stage) {
      await stage.addJobs(100);
      for (const worker of stage.workers) await stage.restart(worker);
      await stage.addJobs(20);
    },
    check: answers,
  },
  17: {
    begin: async (stage) => void (await stage.addJobs(5, { v: 99 })),
    // what a newer worker would take
    async mend(stage) {
      for (const job of await stage.queue.getDelayed()) await job.remove();
    },
  },
  18: { users: [200, 503], begin: (stage) => stage.server.kill9(), check: answers },
};

/** Jobs go through, and none has failed. */
async function answers(stage: Stage): Promise<void> {
  await stage.addJobs(4);
  await until(
    'nothing waits',
    async () => (await stage.count('waiting', 'prioritized', 'active', 'delayed')) === 0,
    240,
  );
  const failed = await stage.queue.getFailed();
  if (failed.length > 0) throw new Error(`${failed.length} jobs failed, the first: ${failed[0]?.failedReason}`);
}

/** A worker of another name on the same port: it does not take its predecessor's claims back. */
async function renamed(stage: Stage, index: number): Promise<Stage['workers'][number]> {
  const old = stage.workers[index]!;
  const worker = {
    ...old,
    environment: { ...old.environment, SHOAL_WORKER_NAME: `${old.unit.replace('@', '-')}-again` },
  };
  stage.workers[index] = worker;
  return worker;
}

/** The token between the special ones of a text that is one character. */
async function deadlyToken(): Promise<number> {
  const model = await openModel(MODEL, { cacheDir: cacheFolder(process.env['SHOAL_CACHE_DIR']) });
  const { ids } = (await openTokenizer(model)).encode(DEADLY);
  return ids[1] ?? 0;
}

/** Without it the clock would be right, and the drill would hold whatever happened. */
function clockLibrary(): string {
  const path = process.env['SHOAL_TEST_FAKETIME'];
  if (path === undefined || !existsSync(path))
    throw new Error(
      `what makes a clock wrong is missing: SHOAL_TEST_FAKETIME ${path === undefined ? 'is not set' : `is ${path}, which is not there`}; ` +
        'set it to libfaketime.so.1 (Debian: apt-get install libfaketime)',
    );
  return path;
}

import { fork } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { UpProcess, type ReadyReport } from './up-process.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-part-'));
  await writeFile(
    join(folder, 'part.mjs'),
    "process.on('disconnect', () => process.exit(0)); process.send({ kind: 'ready', pid: process.pid }); " +
      "setInterval(() => process.send({ kind: 'alive' }), 5)",
  );
});
afterAll(() => rm(folder, { recursive: true }));

test('a part that is stopped and says nothing any more is killed, and another one is up in its place', async () => {
  const returned = Promise.withResolvers<ReadyReport>();
  const reasons: string[] = [];
  const part = new UpProcess({
    name: 'a part',
    start: () => fork(join(folder, 'part.mjs'), [], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] }),
    onDeath: (reason) => reasons.push(reason),
    onReturn: returned.resolve,
    stopMs: 10_000,
    signs: { everyMs: 50 },
  });
  const pid = Number((await part.ready)['pid']);
  process.kill(pid, 'SIGSTOP');
  expect(Number((await returned.promise)['pid'])).not.toBe(pid);
  expect(reasons[0]).toBe('silent for 30 s and killed');
  expect(() => process.kill(pid, 0)).toThrow('ESRCH');
  await part.stop();
}, 30_000);

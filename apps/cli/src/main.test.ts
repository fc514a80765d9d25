// What the process itself answers for: a failure that no part of a command hears is told as any other, without a raw stack
// of Node and without passwords, and what the command has to put away it puts away.

import { execFileSync } from 'node:child_process';
import { closeSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { afterAll, expect, test } from 'vitest';
import { Sandbox } from './testing/shoal-process.ts';

const box = new Sandbox();
afterAll(() => box.remove());

/** A command that waits for a pipe, with a module that fails beside it. */
async function withFailure(code: string) {
  const pipe = box.path('pipe.txt');
  execFileSync('mkfifo', ['-m', '600', pipe]);
  const writer = openSync(pipe, 'r+');
  try {
    writeFileSync(box.path('fails.mjs'), `setTimeout(() => { ${code} }, 1_000)`);
    const environment = { NODE_OPTIONS: `--import=${box.path('fails.mjs')}` };
    return await box.start(['embed', 'pipe.txt', '-o', 'x.jsonl'], { environment }).ended;
  } finally {
    closeSync(writer);
    rmSync(pipe);
  }
}

test.each([
  ['rejection', `Promise.reject(new Error('lost redis://:Hunter2@host'))`],
  ['thrown error', `throw new Error('lost redis://:Hunter2@host')`],
])('a %s that nobody hears ends the command, told as a bug without passwords', async (_, fail) => {
  const { code, stderr } = await withFailure(fail);
  expect([code, stderr]).toEqual([
    1,
    expect.stringMatching(/^shoal: something unexpected happened; this is a bug worth reporting\nError: lost redis:/m),
  ]);
  expect(stderr).not.toMatch(/Hunter2|Node\.js v/);
});

test('one that has words of its own is told in these alone', async () => {
  const full = `Promise.reject(Object.assign(new Error('x'), { code: 'ENOSPC', path: '/there' }))`;
  const { code, stderr } = await withFailure(full);
  expect([code, stderr]).toEqual([
    1,
    expect.stringMatching(/^shoal: \/there cannot be written: the disk is full.*\n$/),
  ]);
});

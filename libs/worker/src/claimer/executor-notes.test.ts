// A worker whose predecessor's executor is still there: it waits, it kills, and it starts all the same.

import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import { identityOf, placeOfPids } from '@shoal/fetch';
import { ExecutorNotes, type ExecutorNotesOptions } from './executor-notes.ts';

let cacheDir: string;
let executor: ChildProcess;
let log: RecordingLogger;
beforeEach(() => {
  cacheDir = mkdtempSync(join(tmpdir(), 'shoal-notes-'));
  executor = spawn(process.execPath, ['-e', 'setTimeout(() => undefined, 60_000)']); // of a worker that is gone
  log = new RecordingLogger();
});
afterEach(() => {
  executor.kill('SIGKILL');
  rmSync(cacheDir, { recursive: true, force: true });
});

function noteOfPredecessor(): string {
  const file = join(cacheDir, 'executors', 'gpu-0.1.json');
  mkdirSync(join(cacheDir, 'executors'));
  writeFileSync(
    file,
    JSON.stringify({
      place: placeOfPids(),
      worker: { pid: 1, startTime: 'never' },
      executor: identityOf(executor.pid!),
    }),
  );
  return file;
}

function refuse(): never {
  throw new Error('kill EPERM');
}

function notes(options: Partial<ExecutorNotesOptions> = {}): ExecutorNotes {
  return new ExecutorNotes({ cacheDir, name: 'gpu-0', log, leaveMs: 1, killedMs: 1, ...options });
}

test('the executor of a worker that died is killed, and its note goes', async () => {
  const file = noteOfPredecessor();
  await notes({ killedMs: 10_000 }).untilPredecessorsLeft();
  expect([identityOf(executor.pid!), existsSync(file)]).toEqual([undefined, false]);
  expect(log.messages('warn')).toEqual([expect.stringContaining('killing it')]);
});

test('one that does not end by being killed holds up nobody for ever, and is said', async () => {
  const file = noteOfPredecessor();
  await notes({ kill: () => undefined }).untilPredecessorsLeft();
  expect(log.messages('warn')).toEqual([
    expect.stringContaining('killing it'),
    expect.stringContaining('cannot be ended'),
  ]);
  expect(existsSync(file)).toBe(true);
});

test('one that may not be killed, or is gone at that moment, does not keep the worker from starting', async () => {
  noteOfPredecessor();
  await notes({ kill: refuse }).untilPredecessorsLeft();
  expect(log.messages('warn')).toEqual([
    expect.stringContaining('killing it'),
    expect.stringContaining('cannot be killed'),
    expect.stringContaining('cannot be ended'),
  ]);
});

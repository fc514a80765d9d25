// A run file names processes that are connected to and stopped: one field of another kind, and it names nobody.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { readRunFile, writeRunFile, type RunFile } from './run-file.ts';

const folder = mkdtempSync(join(tmpdir(), 'shoal-run-file-'));
const path = join(folder, 'run.json');
afterAll(() => rmSync(folder, { recursive: true }));

const run: RunFile = {
  version: 1,
  host: 'here',
  place: 'a.1',
  supervisor: { pid: 7, startTime: '1' },
  server: { pid: 8, startTime: '2' },
  socket: '/s',
  control: '/c',
};

test('what was written is read, with and without a server', () => {
  for (const each of [run, { ...run, server: undefined, place: undefined }]) {
    writeRunFile(path, each);
    expect(readRunFile(path)).toEqual(JSON.parse(JSON.stringify(each)));
  }
});

test.each([
  ['no JSON', '{"version":1'],
  ['null', 'null'],
  ['a list', '[]'],
  ['a version that is a text', { ...run, version: '1' }],
  ['a host that is a number', { ...run, host: 7 }],
  ['a place that is a number', { ...run, place: 7 }],
  ['a supervisor without a start', { ...run, supervisor: { pid: 7 } }],
  ['a supervisor that is its number', { ...run, supervisor: 7 }],
  ['a server with the number 0, which is everybody', { ...run, server: { pid: 0, startTime: '2' } }],
  ['a server with half a number', { ...run, server: { pid: 1.5, startTime: '2' } }],
  ['a server that is null', { ...run, server: null }],
  ['no socket', { ...run, socket: undefined }],
  ['no control', { ...run, control: undefined }],
])('%s is no run file', (_, content) => {
  writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content));
  expect(readRunFile(path)).toBeUndefined();
});

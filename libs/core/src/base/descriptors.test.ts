import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { ShoalError } from '@shoal/contract';
import { expect, test } from 'vitest';
import { withoutDescriptors } from '../testing/no-descriptors.ts';
import { descriptorFailure, descriptorLimit } from './descriptors.ts';

const caught = async (attempt: Promise<unknown>): Promise<unknown> => attempt.catch((error: unknown) => error);

test('whatever a process wanted to open when it may open nothing more, one sentence says so', async () => {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  const found = await withoutDescriptors(async () => {
    const limit = descriptorLimit();
    const errors = await Promise.all([
      caught(once(createServer().listen(0, '127.0.0.1'), 'listening')),
      caught(once(connect(port, '127.0.0.1'), 'connect')),
      caught(readFile('/dev/null')),
      caught(once(spawn('true'), 'spawn')),
    ]);
    return { limit, said: errors.map((error) => descriptorFailure(error)?.message) };
  });
  server.close();
  if (typeof found === 'string') return console.log(`descriptors are not tried: ${found}`);
  const { limit, said } = found.came;
  const cure =
    `this process has as many files and connections open as it may (EMFILE, ${limit}); raise that with ` +
    'LimitNOFILE=65536 in its unit, or ulimit -n 65536';
  expect(limit).toBeGreaterThan(0);
  expect(said).toEqual([
    `cannot listen on 127.0.0.1: ${cure}`,
    `cannot connect to 127.0.0.1:${port}: ${cure}`,
    `cannot open /dev/null: ${cure}`,
    `cannot start true: ${cure}`,
  ]);
});

test('it is found below what was caught, and nothing else is taken for it', () => {
  const cause = Object.assign(new Error('open'), { code: 'ENFILE', syscall: 'open', path: 'x' });
  expect(descriptorFailure(new ShoalError('FILE_UNREADABLE', 'x cannot be read', {}, cause))?.message).toMatch(
    /^cannot open x: this machine has as many .*fs\.file-max/,
  );
  expect(descriptorFailure(new AggregateError([new Error('other'), cause]))).toMatchObject({ code: 'SETUP_FAILED' });
  expect(descriptorFailure(new Error('Worker initialization failure: EMFILE'))?.message).toMatch(/^cannot go on: /);
  for (const other of [new Error('EMFILES'), new ShoalError('USAGE', 'EMFILE'), 'EMFILE', undefined])
    expect(descriptorFailure(other)).toBeUndefined();
});

import { EventEmitter } from 'node:events';
import type { Redis } from 'ioredis';
import { afterEach, expect, test, vi } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import { tellOutages } from './outage-lines.ts';

afterEach(() => void vi.useRealTimers());

function connections(log: RecordingLogger, count: number): EventEmitter[] {
  return Array.from({ length: count }, (_, at) => {
    const connection = new EventEmitter();
    const describe = String;
    tellOutages(connection as Redis, { name: `c${at}`, server: 'redis://here', log, describe });
    return connection;
  });
}

test('an outage of twelve connections is one line when it begins and one when the last of them is back', () => {
  const log = new RecordingLogger();
  const all = connections(log, 12);
  for (const connection of [...all, ...all]) connection.emit('error', new Error('ECONNREFUSED'));
  all[0]!.emit('end'); // closed meanwhile
  for (const connection of all.slice(1, 11)) connection.emit('ready');
  expect(log.messages('info')).toEqual([]);
  all[11]!.emit('ready');
  expect(log.lines).toMatchObject([
    {
      level: 'warn',
      fields: { connection: 'c0', reason: 'Error: ECONNREFUSED' },
      message: 'queue server lost, reconnecting',
    },
    { level: 'info', fields: { connections: 12 }, message: 'queue server is back' },
  ]);
  all[3]!.emit('error', new Error('again'));
  all[3]!.emit('ready');
  expect(log.lines).toHaveLength(4);
});

test('a server that is slow at the first contact is one line, and one when it answers; others are not told of', () => {
  vi.useFakeTimers();
  const log = new RecordingLogger();
  const [answered, closed, lost, ...slow] = connections(log, 5);
  answered!.emit('ready');
  closed!.emit('end');
  vi.advanceTimersByTime(4_000);
  expect(log.lines).toEqual([]);
  lost!.emit('error', new Error('ECONNREFUSED'));
  lost!.emit('ready');
  expect(log.messages('warn')).toEqual(['queue server lost, reconnecting']);
  vi.advanceTimersByTime(2_000);
  for (const connection of slow) connection.emit('ready');
  expect(log.lines.slice(2)).toMatchObject([
    {
      level: 'warn',
      fields: { connection: 'c3', reason: 'silent for 5000 ms' },
      message: 'queue server has not answered yet, waiting',
    },
    { level: 'info', fields: { connections: 2 }, message: 'queue server is back' },
  ]);
});

import { EventEmitter } from 'node:events';
import type { Redis } from 'ioredis';
import { expect, test } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import { tellOutages } from './outage-lines.ts';

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

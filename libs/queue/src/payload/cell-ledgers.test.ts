// Ledgers of other cells: each has its own list, and one that is away is told as that.

import { expect, onTestFinished, test } from 'vitest';
import { isShoalError } from '@shoal/contract';
import { noLog } from '@shoal/core';
import { startTestServer } from '../testing.ts';
import { CellLedgers } from './cell-ledgers.ts';

test('a run is listed in its own cell, under its prefix, and a cell that is away is told as that in time', async () => {
  const server = await startTestServer({ topology: 'single' });
  const ledgers = new CellLedgers({ prefix: '{p}', queue: 'parts-x', log: noLog, answerMs: 2_000 });
  onTestFinished(async () => {
    await ledgers.stop();
    await server.stop();
  });
  const one = ledgers.of({ name: 'one', address: server.url });
  const other = ledgers.of({ name: 'other', address: server.url, prefix: '{q}' });
  expect(await one.enter('r', 0, 'entry')).toBe(1);
  expect([await one.entries('r'), await other.entries('r')]).toEqual([{ 0: 'entry' }, {}]);
  expect(await one.entriesOf('r', [0, 1])).toEqual(['entry', undefined]);
  expect([one.keyOf('j'), other.keyOf('j')]).toEqual(['{p}:out:parts-x:j', '{q}:out:parts-x:j']);
  const away = ledgers.of({ name: 'away', address: 'redis://127.0.0.1:1' });
  await expect(away.pointer('j')).rejects.toSatisfy((error) => isShoalError(error, 'QUEUE_UNREACHABLE'));
});

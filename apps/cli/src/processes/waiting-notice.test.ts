import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { ManualClock } from '@shoal/core/testing';
import type { Waiting } from '@shoal/client';
import type { Terminal } from '../terminal.ts';
import { WaitingNotice } from './waiting-notice.ts';

const OWN = { added: 4, known: 0, delivered: 1, failed: 0 };

function setup(terms: { readonly isQuiet?: boolean; readonly waitLimitMs?: number; readonly hasCells?: boolean } = {}) {
  const stderr = new PassThrough();
  let said = '';
  stderr.setEncoding('utf8').on('data', (text: string) => (said += text));
  const clock = new ManualClock();
  const terminal = { ...process, stderr, environment: {}, words: [] } as unknown as Terminal;
  return { clock, notice: new WaitingNotice(terminal, { isQuiet: false, ...terms }, clock), said: () => said };
}

function waiting(reason: Waiting['reason'], jobs = 3): Waiting {
  return { reason, message: `it is ${reason}`, waiting: jobs, active: 0, workers: 0, drained: 0, isPaused: false };
}

test.each([
  ['paused', 3, true],
  ['drained', 3, true],
  ['server-away', 0, true],
  ['busy', 3, false], // all of them are ours: the device is slow, and progress says how slow
  ['busy', 4, true],
  ['no-worker', 3, false], // this command starts one
] as const)('%s with %i jobs is said: %s', async (reason, jobs, isSaid) => {
  const { clock, notice, said } = setup();
  notice.tell(waiting(reason, jobs), OWN);
  await clock.advance(1);
  expect(said()).toBe(isSaid ? `shoal: nothing comes: it is ${reason}\n` : '');
});

test('a cell without workers is said: one is started only where no cell has any', async () => {
  const { clock, notice, said } = setup({ hasCells: true });
  notice.tell(waiting('no-worker'), OWN);
  await clock.advance(1);
  expect(said()).toBe('shoal: nothing comes: it is no-worker\n');
});

test('a limit ends the command with the reason, and begins anew when something came', async () => {
  const { clock, notice, said } = setup({ isQuiet: true, waitLimitMs: 60_000 });
  notice.tell(waiting('paused'), OWN);
  await clock.advance(59_000);
  notice.tell(undefined, OWN);
  await clock.advance(60_000);
  expect(notice.tooLong.aborted).toBe(false);
  notice.tell(waiting('paused'), OWN);
  await clock.advance(30_000);
  notice.tell(waiting('drained'), OWN);
  await clock.advance(30_000);
  expect(notice.tooLong.reason).toMatchObject({
    code: 'DEADLINE_PASSED',
    message: 'nothing came for 1 min 0 s, the limit of --wait-limit: it is drained',
  });
  expect(said()).toBe('');
});

test('without a limit a command waits for ever', async () => {
  const { clock, notice } = setup();
  notice.tell(waiting('paused'), OWN);
  await clock.advance(1);
  expect([clock.pending, notice.tooLong.aborted]).toEqual([0, false]);
});

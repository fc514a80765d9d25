import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { ManualClock } from '@shoal/core/testing';
import { barLine, downloadProgress, rowProgress, withSteps } from './progress.ts';
import { say, type Terminal } from './terminal.ts';

function withoutTerminal() {
  const stderr = new PassThrough();
  const said: string[] = [];
  stderr.setEncoding('utf8').on('data', (text: string) => said.push(text));
  const terminal = { ...process, stderr, environment: {}, signal: AbortSignal.any([]) } as unknown as Terminal;
  return { terminal, said: () => said.join('').split('\n').slice(0, -1) };
}

test('without a terminal a run tells every half minute how far it is, and nothing once it is over', async () => {
  const { terminal, said } = withoutTerminal();
  const clock = new ManualClock();
  const progress = rowProgress(terminal, true, clock);
  progress.update(0, 10_000);
  await clock.advance(30_000);
  progress.update(1_000, 10_000);
  await clock.advance(30_000);
  progress.update(3_000, undefined);
  progress.stop();
  await clock.advance(90_000);
  expect([said(), clock.pending]).toEqual([
    ['shoal: 0 %, 0 of 10,000 rows', 'shoal: 10 %, 1,000 of 10,000 rows, 17 texts/s, 9 min 0 s left'],
    0,
  ]);
});

test('quiet is quiet, and a download that is over soon says nothing', async () => {
  const { terminal, said } = withoutTerminal();
  const clock = new ManualClock();
  rowProgress(terminal, false, clock).update(1, 2);
  const download = downloadProgress(terminal, 'model minilm', true, clock);
  download.update(1e6, 91e6);
  await clock.advance(10_000);
  download.stop();
  await clock.advance(60_000);
  expect([said(), clock.pending]).toEqual([[], 0]);
});

test('a step that lasts is told every half minute with how long it has, and the next one anew', async () => {
  const { terminal, said } = withoutTerminal();
  const clock = new ManualClock();
  const work = async (begin: (step: string) => void): Promise<string> => {
    begin('reading a.npy');
    await clock.advance(60_000);
    begin('comparing 2 × 3 vectors');
    await clock.advance(45_000);
    return 'done';
  };
  expect(await withSteps(terminal, true, work, clock)).toBe('done');
  expect(await withSteps(terminal, false, work, clock)).toBe('done');
  expect([said(), clock.pending]).toEqual([
    [
      'shoal: still reading a.npy, for 30 s',
      'shoal: still reading a.npy, for 1 min 0 s',
      'shoal: still comparing 2 × 3 vectors, for 30 s',
    ],
    0,
  ]);
});

const rows = { parts: () => ['1,472 of 10,000 rows', '18 texts/s'] };
const standing = { done: 1_472, total: 10_000, perSecond: 18 };

test.each([
  [120, '████░░░░░░░░░░░░░░░░░░░░ 14 % | 1,472 of 10,000 rows | 18 texts/s | 7 min 54 s left'],
  [70, '█░░░░░░░░░ 14 % | 1,472 of 10,000 rows | 18 texts/s | 7 min 54 s left'],
  [40, '14 % | 18 texts/s | 7 min 54 s left'],
])('a bar of %i columns shrinks, and rate and time left stay', (columns, line) => {
  expect(barLine(standing, rows, columns)).toBe(line);
});

test('a sentence takes the place of a bar that is drawn, and stands alone where there is none', () => {
  const { terminal } = withoutTerminal();
  const written: string[] = [];
  Object.assign(terminal.stderr, { isTTY: true, columns: 80, write: (text: string) => written.push(text) });
  const progress = rowProgress(terminal, true, new ManualClock());
  say(terminal, 'before');
  progress.update(10, 100);
  say(terminal, 'meanwhile');
  progress.stop();
  say(terminal, 'after');
  expect(written.filter((text) => text.includes('shoal: '))).toEqual([
    'shoal: before\n',
    '\r\u001B[Kshoal: meanwhile\n',
    'shoal: after\n',
  ]);
});

test('a bar shows no rate before there is one', () => {
  expect(barLine({ done: 0, total: undefined, perSecond: undefined }, { parts: () => ['0 rows'] }, 80)).toBe(
    `${'░'.repeat(24)} 0 rows`,
  );
});

import { expect, test } from 'vitest';
import { busyWords, keptWords } from './tune.ts';

test('a busy machine is said before it is measured', () => {
  expect(busyWords(1, 2)).toBeUndefined();
  expect(busyWords(13.14, 2)).toMatch(/^this machine is busy \(load average 13\.1 on 2 cores\)/);
});

test('what is kept is said with the file and the way back, what is not kept with the reason', () => {
  const report = { presetTokens: 1_024, kneeTokens: 1_024 } as Parameters<typeof keptWords>[1];
  expect(keptWords('minilm', { ...report, isCertain: true, path: '/p.json' })).toMatch(/kept in \/p\.json.*--undo/);
  expect(keptWords('minilm', { ...report, isCertain: false, path: '/memory.json' })).toMatch(
    /the preset of 1024 padded tokens stays: nothing beat it by more than the rounds differ/,
  );
});

import { expect, test } from 'vitest';
import { choose, inOrder, ofRounds, pick, together } from './tried-budgets.ts';

test('the first within 2 % of the best is chosen: few lanes before many, small budgets before large ones', () => {
  const tried = inOrder([
    { lanes: 2, maxPaddedTokens: 4_096, textsPerSecond: 100 },
    { lanes: 1, maxPaddedTokens: 16_384, textsPerSecond: 99 },
    { lanes: 1, maxPaddedTokens: 8_192, textsPerSecond: 98.5 },
    { lanes: 1, maxPaddedTokens: 4_096, textsPerSecond: 97 },
  ]);
  expect(pick(tried)).toEqual({ lanes: 1, maxPaddedTokens: 8_192, textsPerSecond: 98.5 });
  expect(pick(tried.filter(({ lanes }) => lanes === 2))).toMatchObject({ lanes: 2, maxPaddedTokens: 4_096 });
});

test('what was tried once is told on the scale of what was tried again, in order', () => {
  const coarse = [
    { maxPaddedTokens: 256, textsPerSecond: 10 },
    { maxPaddedTokens: 512, textsPerSecond: 20 },
  ];
  const fine = [
    { maxPaddedTokens: 512, textsPerSecond: 40 },
    { maxPaddedTokens: 384, textsPerSecond: 35 },
  ];
  expect(together(coarse, fine)).toEqual([
    { maxPaddedTokens: 256, textsPerSecond: 20 },
    { maxPaddedTokens: 384, textsPerSecond: 35 },
    { maxPaddedTokens: 512, textsPerSecond: 40 },
  ]);
  const lanes = [
    { lanes: 1, maxPaddedTokens: 512, textsPerSecond: 20 },
    { lanes: 2, maxPaddedTokens: 512, textsPerSecond: 30 },
  ];
  expect(together(lanes, [{ ...lanes[1]!, textsPerSecond: 60 }])).toEqual([
    { ...lanes[0]!, textsPerSecond: 40 },
    { ...lanes[1]!, textsPerSecond: 60 },
  ]);
});

test('what beats the preset by less than rounds lie apart anyhow is noise, and the preset stays', () => {
  const preset = ofRounds({ maxPaddedTokens: 1_024 }, [17.8, 17.0, 18.6]);
  const found = ofRounds({ maxPaddedTokens: 256 }, [17.8, 17.9, 17.7]);
  expect([preset.textsPerSecond, preset.spread]).toEqual([17.8, expect.closeTo(0.09, 2)]);
  expect(choose([found, preset], 1_024)).toEqual({ chosen: preset, isCertain: false });
  const better = ofRounds({ maxPaddedTokens: 512 }, [20, 20.2, 19.9]);
  expect(choose([found, better, preset], 1_024)).toEqual({ chosen: better, isCertain: true });
  expect(choose([preset], 1_024)).toEqual({ chosen: preset, isCertain: true });
});

test('too few rounds to know how far they lie apart decide nothing against a preset', () => {
  const preset = ofRounds({ maxPaddedTokens: 1_024 }, [10, 10]);
  const found = ofRounds({ maxPaddedTokens: 512 }, [20, 20]);
  expect(found.spread).toBeUndefined();
  expect(choose([found, preset], 1_024)).toEqual({ chosen: preset, isCertain: false });
  expect(choose([found, preset], undefined)).toEqual({ chosen: found, isCertain: true });
});

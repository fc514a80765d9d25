import { expect, test } from 'vitest';
import { liveBytes } from './memory-model.ts';
import { presetFor, type PresetQuestion } from './presets.ts';

const minilm = { hiddenSize: 384, intermediateSize: 1536, heads: 12, weightsBytes: 45e6, maxTokens: 512 };
const ask = (deviceName: string, change: Partial<PresetQuestion> = {}) =>
  presetFor({ deviceName, totalBytes: 24e9, model: minilm, precision: 'fp16', keepsScores: false, ...change });

test('cards are known by the names their drivers give, and a faster one begins with more', () => {
  const names = [
    'NVIDIA GeForce RTX 3060',
    'NVIDIA GeForce RTX 4070 Ti',
    'NVIDIA L4',
    'NVIDIA A100-SXM4-80GB',
    'NVIDIA H200',
  ];
  for (const name of names) expect(ask(name)).toMatchObject({ isKnown: true });
  expect(ask('NVIDIA H200').startTokens).toBe(65_536);
  const starts = ['NVIDIA GeForce RTX 3060', 'NVIDIA A100-SXM4-80GB', 'NVIDIA H200'].map(
    (name) => ask(name).startTokens,
  );
  expect(starts).toEqual(starts.toSorted((a, b) => a - b));
});

test('an unknown card gets safe defaults and is told so', () => {
  const preset = ask('Moore Threads S80', { totalBytes: undefined });
  expect(preset).toMatchObject({ isKnown: false, startTokens: 4_096 });
  expect(preset.line).toBe(
    'no preset for "Moore Threads S80" (memory unknown): beginning with 4096 padded tokens, the knee is found ' +
      'while running; shoal tune measures it',
  );
  expect(ask('NVIDIA A1000').isKnown).toBe(false); // not an A100
});

test('a larger model begins with fewer tokens and needs more memory for each', () => {
  const large = { hiddenSize: 1024, intermediateSize: 4096, heads: 16, weightsBytes: 670e6, maxTokens: 512 };
  const shape = { rows: 64, width: 512 };
  expect(ask('NVIDIA H200', { model: large }).startTokens).toBeLessThan(ask('NVIDIA H200').startTokens);
  expect(liveBytes(ask('NVIDIA H200', { model: large }).law, shape)).toBeGreaterThan(
    liveBytes(ask('NVIDIA H200').law, shape),
  );
});

test('the law is on the safe side of what was measured', () => {
  const MIB = 2 ** 20;
  // Arena of an H200 at 256 × 512 (2026-11-21), grown by doubling: what was needed lies between half of it and all.
  const fused = liveBytes(ask('NVIDIA H200').law, { rows: 256, width: 512 });
  expect(fused).toBeGreaterThan((3_763 / 2) * MIB);
  expect(fused).toBeLessThan(3_763 * MIB);
  const plain = liveBytes(ask('NVIDIA H200', { precision: 'fp32', keepsScores: true }).law, { rows: 256, width: 512 });
  expect(plain).toBeGreaterThan((16_047 / 2) * MIB);
  expect(plain).toBeLessThan(16_047 * MIB);
});

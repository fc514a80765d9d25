import { expect, test } from 'vitest';
import { classifyRunFailure } from './run-failure.ts';

test.each([46, 214, 220, 226, 700, 702, 709, 710, 719, 721, 810, 911, 999])(
  'CUDA failure %i leaves a device that no later call can use',
  (code) => {
    expect(classifyRunFailure(`CUDA failure ${code}: what the driver says ; GPU=0 ; hostname=H`)).toBe('device-lost');
  },
);

test.each([
  'CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED ; GPU=0',
  'CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED ; GPU=0',
])('%s may be what a lost device says', (message) => {
  expect(classifyRunFailure(message)).toBe('device-lost');
});

test('other numbers that begin like one of these do not', () => {
  for (const code of [1, 21, 22, 72, 81, 91, 800, 900])
    expect(`${code}: ${classifyRunFailure(`CUDA failure ${code}: what the driver says`)}`).toBe(`${code}: failed`);
  expect(classifyRunFailure('CUDA failure 2: out of memory ; GPU=0')).toBe('out-of-vram');
});

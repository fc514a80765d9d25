// Which GPU a worker's process sees.

import { expect, test } from 'vitest';
import { visibleDevice } from './cuda-visibility.ts';

test.each([
  [1, undefined, '1'],
  [0, '3', '3'],
  [1, '2, 5', '5'],
  [0, 'GPU-232828b6-8541-6784-201f-70a25599c8bc', 'GPU-232828b6-8541-6784-201f-70a25599c8bc'],
  [1, 'MIG-1,MIG-2', 'MIG-2'],
  [0, '4,-1,5', '4'],
])('gpu:%i under CUDA_VISIBLE_DEVICES=%j is %s', (index, given, devices) => {
  expect(visibleDevice(index, given)).toEqual({ devices });
});

test.each(['', '-1', 'none', 'NoDevFiles'])(
  'CUDA_VISIBLE_DEVICES=%j hides every GPU, and the refusal says so',
  (given) => {
    expect(visibleDevice(0, given)).toEqual({ refusal: expect.stringMatching(/hides every GPU/) });
  },
);

test('an index beyond the list, or beyond the entry that ends it, is refused with the list', () => {
  expect(visibleDevice(2, '0,1')).toEqual({ refusal: expect.stringMatching(/shows 2 GPUs \(0, 1\): gpu:2 is none/) });
  expect(visibleDevice(1, '4,-1,5')).toEqual({ refusal: expect.stringMatching(/shows one GPU \(4\)/) });
});

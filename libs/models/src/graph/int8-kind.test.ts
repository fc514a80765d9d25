// Every processor gets the form whose products are exact there: signed codes where it has instructions for them.

import { expect, test } from 'vitest';
import { int8KindFor, int8KindHere } from './int8-kind.ts';

test.each([
  ['x64', 'flags : fpu avx2 avx512f avx512_vnni', 'int8'],
  ['x64', 'flags : fpu avx2 avx_vnni', 'int8'],
  ['x64', 'flags : fpu avx2 avx512f avx512bw avx512vl', 'int8-unsigned'],
  ['x64', 'flags : fpu avx2 fma', 'int8-unsigned'],
  ['x64', '', 'int8-unsigned'],
  ['arm64', 'Features : asimddp i8mm', 'int8'],
  ['arm64', '', 'int8'],
])('%s with "%s": %s', (architecture, flags, kind) => {
  expect(int8KindFor(architecture, flags)).toBe(kind);
});

test('this processor gets one of the two', async () => {
  expect(['int8', 'int8-unsigned']).toContain(await int8KindHere());
});

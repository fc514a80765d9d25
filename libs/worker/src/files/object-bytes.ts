// How large an object of vectors becomes, about, before it is written.

import type { PartOutput } from '@shoal/contract';

const BYTES_PER_DIM: Readonly<Record<PartOutput['dtype'], number>> = { f32: 4, f16: 2, i8: 1, binary: 0.125 };

/** `carried`: bytes of what goes along. */
export function objectBytes({
  rows,
  dims,
  dtype,
  carried,
}: {
  readonly rows: number;
  readonly dims: number;
  readonly dtype: PartOutput['dtype'];
  readonly carried: number;
}): number {
  return rows * (dims * BYTES_PER_DIM[dtype] + (dtype === 'i8' ? 4 : 0)) + carried;
}

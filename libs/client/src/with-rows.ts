// The accessors on a block of vectors. Not enumerable: a result is logged, compared and sent as the data that it is.

import type { OutputDtype } from '@shoal/contract';
import type { Vectors } from './embedding.ts';
import { elementsOfRow, toFloat32, type StoredRows } from './stored-rows.ts';

/** The same object with `row` and `toFloat32`. */
export function withRows<Block extends StoredRows>(block: Block): Block & Vectors<OutputDtype> {
  const { rows, dims, dtype, vectors } = block;
  const length = elementsOfRow(dtype, dims);
  const row = (index: number): StoredRows['vectors'] => {
    if (Number.isInteger(index) && index >= 0 && index < rows)
      return vectors.subarray(index * length, (index + 1) * length);
    throw new RangeError(`there is no row ${index}; there are ${rows}, from 0 on`);
  };
  return Object.defineProperties(block, {
    row: { value: row },
    toFloat32: { value: () => toFloat32(block) },
  }) as Block & Vectors<OutputDtype>;
}

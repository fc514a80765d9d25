// The accessor of single rows on a block of vectors. Not enumerable: a result is logged, compared and sent as the data
// that it is.

import type { Vectors } from './embedding.ts';

/** The same object with `row`. */
export function withRows<Block extends Omit<Vectors, 'row'>>(block: Block): Block & Vectors {
  const { rows, dims, vectors } = block;
  const row = (index: number): Float32Array => {
    if (Number.isInteger(index) && index >= 0 && index < rows)
      return vectors.subarray(index * dims, (index + 1) * dims);
    throw new RangeError(`there is no row ${index}; there are ${rows}, from 0 on`);
  };
  return Object.defineProperty(block, 'row', { value: row }) as Block & Vectors;
}

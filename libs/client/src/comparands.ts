// Queries and candidates as plain JavaScript gives them, as the arrays that travel. What cannot be one is refused by name.

import { ShoalError, type Matrix } from '@shoal/contract';
import { shown } from './options.ts';
import type { Queries, RowIds } from './similarity-calls.ts';

/**
 * Plain arrays are what JSON and JavaScript have at hand. What is no number becomes NaN, which VECTOR_INVALID names by
 * row.
 */
export function matrixOf({ values: given, dims }: Exclude<Queries, readonly string[]>): Matrix {
  if (!(given instanceof Float32Array) && !Array.isArray(given))
    throw new ShoalError(
      'VECTOR_INVALID',
      `values are ${shown(given)}; pass a Float32Array, or one array of all numbers`,
    );
  const values =
    given instanceof Float32Array
      ? given
      : Float32Array.from(given, (value: unknown) => (typeof value === 'number' ? value : Number.NaN));
  if (Number.isInteger(dims) && dims >= 1 && values.length % dims === 0)
    return { values, rows: values.length / dims, dims };
  throw new ShoalError(
    'DIMENSIONS_MISMATCH',
    `${values.length} values are no rows of ${dims} dimensions; pass the length of one vector as dims, and ` +
      'whole vectors as values',
    { values: values.length, dims },
  );
}

/** Of one query. Throws SEARCH_INVALID. */
export function rowIdsOf(ids: RowIds, query: number): BigUint64Array {
  if (ids instanceof BigUint64Array) return ids;
  if (!Array.isArray(ids))
    throw new ShoalError(
      'SEARCH_INVALID',
      `candidates[${query}] is ${shown(ids)}; each query has a list of row ids: an array of numbers, or a ` +
        'BigUint64Array',
    );
  return BigUint64Array.from(ids, (id: unknown, at) => {
    if ((typeof id === 'number' || typeof id === 'bigint') && id >= 0 && Number.isSafeInteger(Number(id)))
      return BigInt(id);
    throw new ShoalError(
      'SEARCH_INVALID',
      `candidates[${query}][${at}] is ${shown(id)}; a row id is a whole number from 0 to ${Number.MAX_SAFE_INTEGER}`,
    );
  });
}

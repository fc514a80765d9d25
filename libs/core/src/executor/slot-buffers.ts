// Rows into a slot, vectors out of it: loops over every token and every number that passes, so they are kept plain and
// work on places in whole buffers, without a view for each row.

import type { MicroBatch } from './pool.ts';
import type { Row } from './open-job.ts';
import type { InferenceBackend, RunShape, Slot } from '../ports/device.ts';

/** Buffers of this process's own memory. */
export function newSlots(
  count: number,
  { slotRows, slotTokens, dims }: Pick<InferenceBackend, 'slotRows' | 'slotTokens' | 'dims'>,
): Slot[] {
  return Array.from({ length: count }, (_, index) => ({
    index,
    ids: new Int32Array(slotTokens),
    lengths: new Int32Array(slotRows),
    secondFrom: new Int32Array(slotRows),
    embeddings: new Float32Array(slotRows * dims),
  }));
}

/** Writes a batch into a slot. A shape may have more rows than the batch: those are one token of padding each. */
export function pack(slot: Slot, { rows }: MicroBatch<Row>, { rows: count, width }: RunShape): void {
  slot.ids.fill(0, 0, count * width);
  slot.lengths.fill(1, rows.length, count);
  for (const [i, row] of rows.entries()) {
    slot.ids.set(row.ids, i * width);
    slot.lengths[i] = row.tokens;
    slot.secondFrom[i] = row.second;
  }
}

/** The sum of the squares of `length` components from `at` on, in f64. NaN when any of them is. */
export function squaredLengthOf(vectors: Float32Array, at: number, length: number): number {
  let sum = 0;
  for (let i = at; i < at + length; i++) sum += vectors[i]! * vectors[i]!;
  return sum;
}

/**
 * The graph's own L2 norm sums 384 squares in f32 and is off by up to 1e-6 (ONNX Runtime 1.30 on the CPU, 2026-11);
 * whoever takes a dot product for the cosine would see that. One factor in f64 makes the length right to the last bit
 * of f32.
 */
export function writeScaled(
  vectors: Float32Array,
  from: number,
  length: number,
  factor: number,
  target: Float32Array,
  at: number,
): void {
  for (let i = 0; i < length; i++) target[at + i] = vectors[from + i]! * factor;
}

// Which shapes a device is given, where a shape that it has not seen before is dear. On CUDA the libraries choose
// kernels anew for each number of rows × width: 45 to 70 ms in fp16, where the run itself takes 6 (ONNX Runtime 1.30,
// CUDA 13, H200, 2026-11; bench/gpu/new-shapes.ts), so that ragged batches of any size ran at 20 k texts/s instead of
// 92 k. Here there are few: 48 widths up to 512, and for each the rows that fill so many padded tokens: 8, 12, 16, 24,
// 32, 48 … A batch in between takes fewer rows while others wait, else empty rows are added to it.
//
// Why: docs/decisions/launch-timing.md#few-shapes-where-new-ones-are-dear

import type { RunShape } from '../ports/device.ts';

/** Step of the widths: 8 up to 256, then 16. */
export function fewWidth(width: number): number {
  const step = width <= 256 ? 8 : 16;
  return Math.ceil(width / step) * step;
}

/** Most rows of a dear device's shapes that are no more than `rows`; at least 1. */
export function fewRowsAtMost(rows: number, width: number): number {
  const tokens = (rows + 1) * width - 1; // what so many rows fill, up to a part of one
  const power = 2 ** Math.floor(Math.log2(tokens));
  return Math.max(1, Math.floor((tokens >= 1.5 * power ? 1.5 * power : power) / width));
}

/** Fewest rows of such a shape that are no fewer than `rows`. */
export function fewRowsAtLeast(rows: number, width: number): number {
  const tokens = rows * width;
  const power = 2 ** Math.ceil(Math.log2(tokens));
  return Math.floor((tokens <= 0.75 * power ? 0.75 * power : power) / width);
}

/**
 * What a device runs for so many rows of this width: where it prefers few shapes, empty rows are added up to the next
 * one, and those of a half that was cut to its own width within the budget only.
 */
export function shapeFor(
  { rows, width }: RunShape,
  { prefersFewShapes, rowsAt }: { readonly prefersFewShapes?: boolean | undefined; rowsAt(width: number): number },
): RunShape {
  if (prefersFewShapes !== true) return { rows, width };
  const wider = fewWidth(width);
  const more = Math.min(fewRowsAtLeast(rows, wider), rowsAt(wider));
  return more < rows ? { rows, width } : { rows: more, width: wider };
}

/** All widths that occur, for the warm-up. */
export function fewWidths(maxTokens: number): number[] {
  return [...new Set(Array.from({ length: Math.ceil(maxTokens / 8) }, (_, i) => fewWidth((i + 1) * 8)))];
}

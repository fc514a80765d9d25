// What arenas that grow as they are asked took on a GPU, for tests of the prediction: ONNX Runtime 1.30 through the
// native binding on one NVIDIA H200, bench/gpu/memory.ts at commit 16f5502 (2026-11-22). Figures only; nothing here
// decides anything.

import type { RunShape } from '../ports/device.ts';

export interface MeasuredArenas {
  /** The open graph in its arena, MiB. */
  readonly weights: number;
  /** [rows, width, most in use, taken from the device], MiB: each shape in a session to itself. */
  readonly fresh: readonly (readonly [rows: number, width: number, peak: number, held: number])[];
  /**
   * One session through many shapes: what the driver showed before the first, then the largest run since the arena was
   * given back and what was shown, MiB.
   */
  readonly loaded: number;
  readonly walk: readonly { readonly largest: RunShape | undefined; readonly shown: number }[];
}

export const ARENAS: Readonly<Record<'fused-fp16' | 'cuda-fp32', MeasuredArenas>> = {
  'fused-fp16': {
    weights: 43.1,
    fresh: [
      [41, 24, 55.3, 56.7],
      [20, 48, 55.0, 56.4],
      [7, 128, 54.2, 55.5],
      [3, 320, 55.0, 56.4],
      [2, 448, 54.2, 55.5],
      [166, 24, 92.7, 98.5],
      [83, 48, 92.7, 98.5],
      [31, 128, 92.5, 98.3],
      [12, 320, 90.9, 96.5],
      [8, 448, 87.7, 92.9],
      [682, 24, 247.0, 271.0],
      [341, 48, 247.0, 271.0],
      [128, 128, 247.2, 271.2],
      [51, 320, 246.4, 270.3],
      [36, 448, 244.0, 267.6],
      [1375, 24, 454.2, 502.6],
      [687, 48, 453.9, 502.2],
      [257, 128, 452.9, 501.1],
      [103, 320, 453.7, 502.0],
      [73, 448, 450.5, 498.4],
      [2730, 24, 859.4, 955.4],
      [1365, 48, 859.4, 955.4],
      [512, 128, 859.5, 955.6],
      [204, 320, 856.4, 952.0],
      [146, 448, 857.9, 953.8],
      [5461, 24, 1676.1, 1868.1],
      [2730, 48, 1675.7, 1867.8],
      [1024, 128, 1676.1, 1868.2],
      [409, 320, 1673.7, 1865.5],
      [292, 448, 1672.9, 1864.6],
    ],
    loaded: 176,
    walk: [
      { largest: { rows: 41, width: 24 }, shown: 196 },
      { largest: { rows: 166, width: 24 }, shown: 258 },
      { largest: { rows: 682, width: 24 }, shown: 486 },
      { largest: undefined, shown: 176 },
      { largest: { rows: 51, width: 320 }, shown: 404 },
      { largest: { rows: 1375, width: 24 }, shown: 748 },
      { largest: { rows: 2730, width: 24 }, shown: 1420 },
      { largest: { rows: 204, width: 320 }, shown: 1088 },
      { largest: { rows: 146, width: 448 }, shown: 1472 },
      { largest: { rows: 5461, width: 24 }, shown: 2816 },
      { largest: { rows: 5461, width: 24 }, shown: 2818 },
      { largest: undefined, shown: 178 },
      { largest: { rows: 409, width: 320 }, shown: 2002 },
      { largest: { rows: 1024, width: 128 }, shown: 2770 },
      { largest: { rows: 5461, width: 24 }, shown: 2770 },
    ],
  },
  'cuda-fp32': {
    weights: 86.1,
    fresh: [
      [41, 24, 101.2, 105.6],
      [20, 48, 103.0, 107.3],
      [7, 128, 107.1, 121.7],
      [3, 320, 125.5, 158.3],
      [2, 448, 133.3, 174.7],
      [166, 24, 147.4, 164.9],
      [83, 48, 156.1, 173.7],
      [31, 128, 179.1, 243.2],
      [12, 320, 243.6, 373.5],
      [8, 448, 275.1, 438.5],
      [682, 24, 338.0, 409.9],
      [341, 48, 373.9, 445.9],
      [128, 128, 470.2, 734.4],
      [51, 320, 755.6, 1305.9],
      [36, 448, 936.7, 1669.8],
      [1375, 24, 593.9, 739.0],
      [687, 48, 666.0, 811.0],
      [257, 128, 857.3, 1387.6],
      [103, 320, 1438.2, 2549.2],
      [73, 448, 1811.0, 3296.7],
      [2730, 24, 1094.4, 1382.4],
      [1365, 48, 1238.3, 1526.4],
      [512, 128, 1622.6, 2678.8],
      [204, 320, 2764.1, 4964.0],
      [146, 448, 3535.8, 6506.7],
      [5461, 24, 1911.1, 2679.1],
      [2730, 48, 2198.6, 2966.5],
      [1024, 128, 3159.1, 5271.4],
      [409, 320, 5455.2, 9865.3],
      [292, 448, 6985.6, 12926.7],
    ],
    loaded: 240,
    walk: [
      { largest: { rows: 41, width: 24 }, shown: 264 },
      { largest: { rows: 20, width: 48 }, shown: 274 },
      { largest: { rows: 7, width: 128 }, shown: 290 },
      { largest: { rows: 3, width: 320 }, shown: 324 },
      { largest: { rows: 2, width: 448 }, shown: 366 },
      { largest: { rows: 166, width: 24 }, shown: 366 },
      { largest: { rows: 83, width: 48 }, shown: 366 },
      { largest: { rows: 31, width: 128 }, shown: 430 },
      { largest: { rows: 12, width: 320 }, shown: 560 },
      { largest: undefined, shown: 240 },
      { largest: { rows: 682, width: 24 }, shown: 564 },
      { largest: { rows: 1375, width: 24 }, shown: 898 },
      { largest: { rows: 687, width: 48 }, shown: 1188 },
      { largest: { rows: 2730, width: 24 }, shown: 1536 },
      { largest: { rows: 1365, width: 48 }, shown: 2112 },
      { largest: { rows: 5461, width: 24 }, shown: 2832 },
      { largest: { rows: 2730, width: 48 }, shown: 3984 },
      { largest: { rows: 409, width: 320 }, shown: 10022 },
    ],
  },
};

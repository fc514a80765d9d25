// How a simulated device behaves: what memory its runs need and how long they take. It is on purpose not of the form in
// which memory-model.ts predicts: bytes per token are looked up in tables as they were measured, steps of the allocator
// included, an arena grows by powers of two, libraries take workspaces by classes of shapes, and everything has noise.

import type { RunShape } from '../ports/device.ts';

const KIB = 1024;
const MIB = 2 ** 20;

/**
 * KiB per token: by width, then by padded tokens. MiniLM on the CPU provider, ONNX Runtime 1.30, each shape in a fresh
 * process (2026-11-21). `fp16` is what the fused graph with key lengths keeps on an H200, where attention needs no
 * scores: 12 to 25 KiB of the arena per token (2026-11-21).
 */
const TABLES: Readonly<
  Record<MemoryForm, readonly (readonly [width: number, readonly (readonly [tokens: number, kib: number])[]])[]>
> = {
  fused: [
    [
      8,
      [
        [2048, 23.5],
        [4096, 23.4],
      ],
    ],
    [16, [[1024, 23.2]]],
    [
      32,
      [
        [1024, 24.3],
        [4096, 24.5],
        [8192, 25.3],
      ],
    ],
    [
      64,
      [
        [1024, 26.1],
        [4096, 26.8],
        [8192, 26.3],
      ],
    ],
    [
      128,
      [
        [512, 27.6],
        [1024, 30.3],
        [4096, 30],
        [8192, 30.8],
      ],
    ],
    [
      192,
      [
        [384, 31],
        [2304, 32.4],
        [7680, 32.9],
      ],
    ],
    [
      256,
      [
        [1024, 35.1],
        [4096, 36],
        [8192, 35.8],
        [12_288, 39],
      ],
    ],
    [
      384,
      [
        [384, 46.8],
        [1920, 60.1],
        [7680, 59.7],
      ],
    ],
    [
      512,
      [
        [512, 58.1],
        [1024, 61.6],
        [4096, 61],
        [8192, 60.8],
        [12_288, 49.5],
      ],
    ],
  ],
  plain: [
    [
      8,
      [
        [2048, 26.2],
        [4096, 24.6],
      ],
    ],
    [16, [[1024, 23.6]]],
    [
      32,
      [
        [1024, 23.1],
        [4096, 24.6],
        [8192, 24.8],
      ],
    ],
    [
      64,
      [
        [1024, 23.1],
        [4096, 25.2],
        [8192, 24.7],
      ],
    ],
    [
      128,
      [
        [512, 22.3],
        [1024, 24.6],
        [4096, 24.6],
        [8192, 24.7],
      ],
    ],
    [
      192,
      [
        [384, 31.9],
        [2304, 38.2],
        [7680, 38.6],
      ],
    ],
    [
      256,
      [
        [1024, 47.1],
        [4096, 43.6],
        [8192, 44.3],
        [12_288, 50.9],
      ],
    ],
    [
      384,
      [
        [384, 59.7],
        [1920, 63.3],
        [7680, 64.6],
      ],
    ],
    [
      512,
      [
        [512, 82.3],
        [1024, 83.1],
        [4096, 82.6],
        [8192, 82.3],
        [12_288, 83.8],
      ],
    ],
  ],
  fp16: [
    [
      8,
      [
        [4096, 13.1],
        [65_536, 12.2],
      ],
    ],
    [
      128,
      [
        [4096, 13.6],
        [65_536, 14.4],
      ],
    ],
    [
      512,
      [
        [4096, 14.9],
        [131_072, 15.8],
      ],
    ],
  ],
};

export type MemoryForm = 'fused' | 'plain' | 'fp16';

export interface DeviceLaw {
  readonly totalBytes: number;
  readonly form: MemoryForm;
  /** 1 for MiniLM; a model with twice the hidden size takes twice the memory a token. */
  readonly memoryScale: number;
  /** Context of the driver and the runtime. */
  readonly contextBytes: number;
  readonly weightsBytes: number;
  /** Elements per token of the widest tensor; from 2³¹ elements on the runtime answers as if memory were out. */
  readonly elementsPerToken: number;
  readonly perRunMs: number;
  readonly perTokenMs: number;
  /** Padded tokens from which on a larger batch is slower per token, by SLOWER_BEYOND_KNEE for each doubling. */
  readonly kneeTokens: number;
  /** Of every need, up or down: 0.08. */
  readonly noise: number;
}

/** 92.5 k texts/s at 64 k tokens a batch, 88.3 k at 256 k (H200, fp16, 2026-11-21). */
const SLOWER_BEYOND_KNEE = 0.025;
/** Tokens of attention cost a little more in wide rows: 82 k texts/s at 128 tokens, 18.8 k at 512. */
const DEARER_AT_512 = 1.09;
/** A run that does not fit is refused in 62 ms (H200, 2026-11-21). */
export const REFUSAL_MS = 62;

/**
 * An H200 with MiniLM in fp16, with another amount of memory when asked: 8 million tokens a second, 2,500 tokens' worth
 * of time for every run.
 */
export function h200Law(change: Partial<DeviceLaw> = {}): DeviceLaw {
  return {
    totalBytes: 141e9,
    form: 'fp16',
    memoryScale: 1,
    contextBytes: 547 * MIB,
    weightsBytes: 45 * MIB,
    elementsPerToken: 1536,
    perRunMs: 0.31,
    perTokenMs: 0.000_125,
    kneeTokens: 65_536,
    noise: 0.08,
    ...change,
  };
}

/** Of `sim:24GB`: a device as fast as an H200, with so much memory. Undefined for any other. */
export function simulatedLaw(device: string): DeviceLaw | undefined {
  const gigabytes = /^sim:(\d+)GB$/.exec(device)?.[1];
  return gigabytes === undefined ? undefined : h200Law({ totalBytes: Number(gigabytes) * 1e9 });
}

/** Bytes that the tensors of one run take, without noise. */
export function tensorBytes({ form, memoryScale }: DeviceLaw, { rows, width }: RunShape): number {
  const table = TABLES[form];
  const above = Math.max(
    1,
    table.findIndex(([knot]) => knot >= width),
  );
  const [[lowWidth, low], [highWidth, high]] = [table[above - 1]!, table[above]!];
  const tokens = rows * width;
  const part = Math.max(0, Math.min(1, (width - lowWidth) / (highWidth - lowWidth)));
  return tokens * memoryScale * KIB * (nearest(low, tokens) * (1 - part) + nearest(high, tokens) * part);
}

/**
 * The allocator's steps come back with every power of two: beyond the table, the entry at the same place between two of
 * them.
 */
function nearest(entries: readonly (readonly [number, number])[], tokens: number): number {
  const last = Math.log2(entries.at(-1)![0]);
  const at = Math.log2(tokens) > last ? last - 1 + ((Math.log2(tokens) - last) % 1 || 1) : Math.log2(tokens);
  return entries.reduce((best, entry) =>
    Math.abs(Math.log2(entry[0]) - at) < Math.abs(Math.log2(best[0]) - at) ? entry : best,
  )[1];
}

/** Libraries keep workspaces for each class of widths from its first run on. */
export function workspaceClass(width: number): number {
  return width <= 64 ? 0 : width <= 256 ? 1 : 2;
}
export const WORKSPACE_BYTES = [8 * MIB, 32 * MIB, 96 * MIB] as const;

export function runMs({ perRunMs, perTokenMs, kneeTokens }: DeviceLaw, { rows, width }: RunShape): number {
  const tokens = rows * width;
  const beyond = Math.max(0, Math.log2(tokens / kneeTokens));
  return perRunMs + tokens * perTokenMs * (1 + (DEARER_AT_512 - 1) * (width / 512)) * (1 + SLOWER_BEYOND_KNEE * beyond);
}

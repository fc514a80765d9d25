// The settings whose defaults depend on the device that was found.

/** What depends on the device that was found, and is not known before. */
export interface Sizes {
  readonly maxRows: number;
  readonly poolTokens: number;
  /** Most that is claimed beyond the pool (prefetch.ts). */
  readonly aheadTokens: number;
}

/**
 * What depends on the kind of device. A GPU's batches are some sixty times larger: 16 k rows waiting gave a padding
 * efficiency of 0.95 at 64 k tokens a batch (one H200, 2026-11). On a CPU nothing is claimed beyond the pool: a
 * micro-batch is much of that, and interactive rows wait longer behind fuller ones (p99 of bench/queue/fairness.ts
 * --only classes 54 ms instead of 49 to 52, two cores, 2026-11).
 */
const SIZES = {
  cpu: { maxRows: 1_024, poolTokens: 24_576, poolsAhead: 0 },
  gpu: { maxRows: 16_384, poolTokens: 1_310_720, poolsAhead: 1 },
} as const;

/**
 * The sizes in force on a device, as executors name them: "cpu", "cpu:avx512", "cuda:0", "webgpu:0", "sim:24GB". What
 * was asked for under `auto` may be either.
 */
export function sizesOf(
  given: { readonly [Key in 'maxRows' | 'poolTokens']?: number | undefined },
  device: string,
): Sizes {
  const usual = SIZES[/^(cuda|webgpu)\b|GB$/.test(device) ? 'gpu' : 'cpu'];
  const { maxRows = usual.maxRows, poolTokens = usual.poolTokens } = given;
  return { maxRows, poolTokens, aheadTokens: usual.poolsAhead * poolTokens };
}

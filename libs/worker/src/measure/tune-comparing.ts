// Measures anew from which sizes on this machine's GPU is faster than its CPU at comparing, and stores it for the
// workers that start afterwards. Where there is one device there is nothing to choose, and nothing is measured.

import type { Threshold } from '@shoal/core/similarity';
import { measureThresholds } from '@shoal/similarity';
import { storeThresholds } from './threshold-store.ts';
import { openComparer, type ComparerOptions } from '../device/open-comparer.ts';

export type TuneComparingOptions = Omit<ComparerOptions, 'environment' | 'smallOnCpu' | 'onFellBack'> & {
  /** Hears how much is done, from 0 to 1. */
  readonly onProgress?: (done: number) => void;
  readonly signal?: AbortSignal;
};

export interface ComparingReport {
  /** "cuda:0", "cpu:avx512" */
  readonly device: string;
  /** GPU, CPU and its instruction set; of a machine without a GPU what computes. */
  readonly key: string;
  /** Empty where there is one device. */
  readonly breakEvens: readonly Threshold[];
  readonly seconds: number;
  /** The file in which it is stored. */
  readonly path?: string | undefined;
}

/** Throws SETUP_FAILED where a GPU was asked for and cannot be used. */
export async function tuneComparing({
  onProgress,
  signal,
  ...options
}: TuneComparingOptions): Promise<ComparingReport> {
  const startedMs = performance.now();
  const { device, cpu, gpu } = await openComparer({ ...options, environment: process.env, smallOnCpu: 'never' });
  const seconds = (): number => (performance.now() - startedMs) / 1000;
  if (gpu === undefined) return { device, key: cpu.isa, breakEvens: [], seconds: seconds() };
  try {
    const measured = await measureThresholds({
      cpu,
      gpu: gpu.engine,
      ...(onProgress === undefined ? {} : { onProgress }),
      ...(signal === undefined ? {} : { signal }),
    });
    return {
      device,
      key: gpu.key,
      breakEvens: measured.thresholds,
      seconds: seconds(),
      path: await storeThresholds(options.cacheDir, gpu.key, measured),
    };
  } finally {
    gpu.engine.close();
  }
}

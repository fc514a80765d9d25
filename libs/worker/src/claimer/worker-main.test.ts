import { existsSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

/** Whether ONNX Runtime's library is loaded into this process, on Linux. */
const hasRuntime = (): boolean => readFileSync('/proc/self/maps', 'utf8').includes('libonnxruntime');

test.runIf(existsSync('/proc/self/maps'))(
  'the entry of claimers loads no native runtime, as the main entry does',
  async () => {
    await import('@shoal/worker/claimer');
    expect(hasRuntime()).toBe(false);
    await import('@shoal/worker');
    expect(hasRuntime()).toBe(true);
  },
);

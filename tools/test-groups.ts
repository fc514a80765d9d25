// Which test file runs in which company, and which begins first. Files that reckon get one place and files that wait
// for timers, leases and processes get several, side by side, so that two cores are busy to the end. The longest begin
// first: whatever begins last decides when all is done.

import { basename, dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..');

/** Files that keep no state between them: they share processes, which saves 0.3 s of CPU a file. */
export const PURE = ['libs/contract/**/*.test.ts', 'libs/core/**/*.test.ts', 'libs/ops/**/*.test.ts'];

/** Files that use a core from their first to their last second. */
export const RECKONS = [
  'libs/models/**/*.test.ts',
  'libs/similarity/**/*.test.ts',
  'libs/inference/**/*.test.ts',
  'libs/worker/src/measure/**/*.test.ts',
  'bench/device/*.test.ts',
  'bench/rig/*.test.ts',
  'tools/**/*.test.ts',
];

/**
 * Tests that kill, stop and starve processes. They run by real clocks, and a machine that stands still for seconds
 * breaks any of them: here alone a test gets a second attempt, and the suite's last lines count those.
 */
export const FAULTS = ['**/faults/**/*.test.ts', '**/chaos.test.ts'];

/**
 * Files that load every core for ten minutes at night. They come one by one after those that wait, whose clocks they
 * would upset; by day they are as short as others and run among them.
 */
export const ALONE =
  process.env['SHOAL_TEST_NIGHTLY'] === undefined
    ? []
    : [
        '**/chaos.test.ts',
        '**/nvcc.test.ts',
        '**/nvcc-encoder.test.ts',
        '**/infra/images.test.ts',
        '**/infra/guide.test.ts',
        '**/infra/cluster.test.ts',
      ];

/**
 * Files that wait half an hour at night for what takes minutes in a fleet, and need little of a core at the right time:
 * they run beside those that load every core, which are nice to them (tools/test.sh).
 */
export const PATIENT = process.env['SHOAL_TEST_NIGHTLY'] === undefined ? [] : ['**/drills.test.ts'];

/** Files that take longest, the longest first (CPU seconds, 2026-11-26). What stands not here comes after them. */
const LONGEST = [
  'embed.test.ts',
  'kills.test.ts',
  'suspects.test.ts',
  'nvcc.test.ts',
  'worker.test.ts',
  'real-faults.test.ts',
  'bench.test.ts',
  'model-bench.test.ts',
  'bad-input.test.ts',
  'up.test.ts',
  'hand-over-faults.test.ts',
  'queue.test.ts',
  'int8.test.ts',
  'tune-encoder.test.ts',
  'chaos.test.ts',
  'server-kinds.test.ts',
  'collections.test.ts',
  'word-piece-tokenizer.test.ts',
  'try.test.ts',
  'bert-words.test.ts',
  'sentence-transformers.test.ts',
  'launcher.test.ts',
  'fuzz.test.ts',
];

function place(file: TestSpecification): number {
  const at = LONGEST.indexOf(basename(file.moduleId));
  return at === -1 ? LONGEST.length : at;
}

const pathOf = (file: TestSpecification): string => relative(ROOT, file.moduleId);

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    return files.toSorted((a, b) => place(a) - place(b) || pathOf(a).localeCompare(pathOf(b)));
  }
}

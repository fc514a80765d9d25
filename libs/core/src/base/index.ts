// @shoal/core/base: small parts that load nothing else, for processes that have to start at once: gathering, order,
// back-off, pooled memory, medians, named fault points, clocks.

export { backoffMs, type Backoff } from './backoff.ts';
export { BufferPool, SMALLEST_POOLED_BYTES } from './buffer-pool.ts';
export { Batcher, type BatcherOptions } from './batcher.ts';
export { codeOf } from './code-of.ts';
export { descriptorFailure, descriptorLimit } from './descriptors.ts';
export { editDistance } from './edit-distance.ts';
export { loopTurn } from './loop-turns.ts';
export { Serial } from './serial.ts';
export { faultPointsFrom, noFaults, type FaultPoints } from './fault-points.ts';
export { nativeCure, nativeFile, type NativeKind } from './native-files.ts';
export { lowerQuartile, median } from './median.ts';
export { programFile } from './program-file.ts';
export { seededRandom } from './seeded-random.ts';
export { processClock, type Clock } from '../ports/clock.ts';
export { unlessAborted } from './unless-aborted.ts';

// @shoal/core/base: small parts that load nothing else, for processes that have to start at once.

export { backoffMs, type Backoff } from './backoff.ts';
export { Batcher, type BatcherOptions } from './batcher.ts';
export { Serial } from './serial.ts';
export { processClock, type Clock } from '../ports/clock.ts';

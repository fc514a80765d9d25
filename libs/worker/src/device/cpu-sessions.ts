// How the cores of a worker on the CPU are divided. One run does not keep many cores busy: its operations are small,
// and the threads of one meet after each of them. Pure.
//
// Why: docs/decisions/devices-and-precision.md#the-cores-of-a-cpu-worker-are-divided-among-sessions

export interface CpuSessionsOptions {
  /** Threads of all sessions together. */
  readonly threads: number;
  /** Each session has a copy of the weights. */
  readonly graphBytes: number;
  /** What this worker's machine or control group has. */
  readonly memoryBytes: number;
}

/**
 * Fewer threads each give more texts per second, and make whoever waits for one text wait longer. Minilm through the
 * queue on 16 cores of a Xeon (bench/device/cpu-worker.ts, 2026-11), one session and two, four, eight: 293, 375, 418,
 * 468 texts/s; a short text beside bulk work 27, 37, 71, 73 ms at the median, a long one 47, 55, 106, 203.
 */
const THREADS_EACH = 8;
const MOST_SESSIONS = 8;
const MOST_MEMORY_SHARE = 1 / 8;

/** 1 or more: so many runs side by side. */
export function cpuSessions({ threads, graphBytes, memoryBytes }: CpuSessionsOptions): number {
  const withinMemory = Math.floor((MOST_MEMORY_SHARE * memoryBytes) / Math.max(1, graphBytes));
  return Math.max(1, Math.min(MOST_SESSIONS, Math.floor(threads / THREADS_EACH), withinMemory));
}

/** The threads of each session, of `threads` for all. */
export function threadsEach(threads: number, sessions: number): number {
  return Math.max(1, Math.floor(threads / sessions));
}

// Large values are not passed through scripts: they are SET under a name of their own, and the script only renames
// that.
//
// Why: docs/decisions/queue.md#nothing-large-passes-through-a-script

/**
 * From this size on. A script's arguments are copied twice and hashed whole. CPU of the server with an append-only
 * file, one way and the other (2-core Xeon, Valkey 9.1, 2026-11): results of 12 KB 50 and 56 µs, 24 KB 76 and 74, 98 KB
 * 215 and 152, 393 KB 684 and 370; inputs, their transaction alone, of 16 KB 38 and 26 µs, 41 KB 64 and 37.
 */
export const STAGED_FROM_BYTES = 16 * 1024;

/** What is staged is renamed in the next command of its connection; what a fault left there is gone by then. */
export const STAGED_TTL_MS = 60_000;

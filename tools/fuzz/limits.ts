// What one file may cost whoever reads it.

import type { Limits } from './kept-process.ts';

export const LIMITS: Limits = { clockMs: 5_000, memoryBytes: 2 ** 30 };

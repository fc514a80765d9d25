// Log lines as JSON on standard error. The only importer of pino: everybody else sees core's Logger.

import { pino } from 'pino';
import type { Logger } from '@shoal/core';

export interface LoggerOptions {
  readonly level: 'silent' | 'error' | 'warn' | 'info' | 'debug';
  /** Who writes: "worker", "executor", "cli". */
  readonly name: string;
}

/** Lines are written before the call returns, so that the last one before a crash is there. */
export function createLogger({ level, name }: LoggerOptions): Logger {
  return pino({ level, name, serializers: { err: pino.stdSerializers.err } }, pino.destination({ fd: 2, sync: true }));
}

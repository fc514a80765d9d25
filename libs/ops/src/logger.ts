// Log lines as JSON on standard error. The only importer of pino: everybody else sees core's Logger.

import { pino } from 'pino';
import { redactText, type Logger } from '@shoal/core';

export interface LoggerOptions {
  readonly level: 'silent' | 'error' | 'warn' | 'info' | 'debug';
  /** Who writes: "worker", "executor", "cli". */
  readonly name: string;
}

/** Whatever a library put into an error or a field: a line never carries the password of a URL. */
function streamWrite(line: string): string {
  return /@|passw/i.test(line) ? redactText(line) : line;
}

/** Lines are written before the call returns, so that the last one before a crash is there. */
export function createLogger({ level, name }: LoggerOptions): Logger {
  const serializers = { err: pino.stdSerializers.err };
  return pino({ level, name, serializers, hooks: { streamWrite } }, pino.destination({ fd: 2, sync: true }));
}

// Log lines on standard error: JSON, and readable ones on a terminal. The only importer of pino: everybody else sees
// core's Logger.

import { isatty } from 'node:tty';
import { pino, type DestinationStream } from 'pino';
import { redactText, type Logger, type Settings } from '@shoal/core';
import { readableLine } from './readable-line.ts';

export interface LoggerOptions {
  readonly level: 'silent' | 'error' | 'warn' | 'info' | 'debug';
  /** Who writes: "worker", "executor", "cli". */
  readonly name: string;
  /** Left out: "auto", by what standard error is. */
  readonly format?: Settings['logFormat'] | undefined;
  /** Fields of every line from now on: which worker, queue and version. May get more while it runs. */
  readonly who?: Readonly<Record<string, unknown>> | undefined;
}

const STDERR = 2;

/** Whatever a library put into an error or a field: a line never carries the password of a URL. */
function streamWrite(line: string): string {
  return /@|passw|shoal_/i.test(line) ? redactText(line) : line;
}

/** Lines are written before the call returns, so that the last one before a crash is there. */
export function createLogger({ level, name, format = 'auto', who = {} }: LoggerOptions): Logger {
  const serializers = { err: pino.stdSerializers.err };
  const formatters = { level: (word: string) => ({ level: word }) }; // what collectors of logs know, in place of 30 or 40
  const mixin = (): object => ({ ...who }); // a field of the line itself wins
  const stderr = pino.destination({ fd: STDERR, sync: true });
  const isReadable = format === 'text' || (format === 'auto' && isatty(STDERR));
  const lines: DestinationStream = isReadable ? { write: (line) => stderr.write(readableLine(line)) } : stderr;
  return pino({ level, name, serializers, formatters, mixin, hooks: { streamWrite } }, lines);
}

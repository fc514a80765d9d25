// For tests: the program with all its commands, to be looked at and not run.

import { buildProgram } from '../program.ts';

export const program = buildProgram(
  {
    stdin: process.stdin,
    stdout: process.stdout,
    stderr: process.stderr,
    environment: {},
    words: [],
    signal: new AbortController().signal,
  },
  '1.2.3',
);

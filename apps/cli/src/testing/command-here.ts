// For tests: a command in the test's own process, for what is refused before anything starts. A start costs half a
// second of CPU, and there are many refusals. At night each is a process of its own again, as its users meet it.

import { Readable, Writable } from 'node:stream';
import { Serial } from '@shoal/core/base';
import { runCommand } from '../run-command.ts';
import type { Terminal } from '../terminal.ts';
import type { Result, RunOptions, Sandbox } from './shoal-process.ts';

/** Kept here: a test that ran out of time may have left its folder behind. */
const HOME = process.cwd();
/** One folder is current, so one command runs at a time. */
const turns = new Serial();
const IS_NIGHT = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;

/** A command that another user runs needs a process by day as well. */
export async function runHere(box: Sandbox, args: readonly string[], options: RunOptions = {}): Promise<Result> {
  return IS_NIGHT || options.uid !== undefined ? box.run(args, options) : runInside(box, args, options);
}

/** By night as well, for tests of what a command leaves behind in its process. */
export function runInside(box: Sandbox, args: readonly string[], options: RunOptions = {}): Promise<Result> {
  return turns.run(() => runNow(box, args, options));
}

async function runNow(box: Sandbox, args: readonly string[], options: RunOptions): Promise<Result> {
  const stdout = new Said();
  const stderr = new Said();
  process.chdir(options.folder ?? box.files);
  try {
    const terminal = {
      stdin: Readable.from(options.input === undefined ? [] : [Buffer.from(options.input)]),
      stdout,
      stderr,
      environment: { ...box.environment(), ...options.environment },
      words: args,
      signal: new AbortController().signal,
    } as unknown as Terminal; // streams without what only terminals have
    return { code: await runCommand(terminal, '0.0.0'), signal: null, stdout: stdout.text, stderr: stderr.text };
  } finally {
    process.chdir(HOME);
  }
}

class Said extends Writable {
  text = '';

  override _write(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
    this.text += chunk.toString();
    done();
  }
}

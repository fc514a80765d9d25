// `shoal embed` as a part of the stage of the matrix: one command, again and again, over the same texts into the same
// file. When it ends early the same command is run again, as a person would; a file that is whole is compared, row by
// row, with that of a quiet moment, and removed.

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { programOf } from '@shoal/core/testing';
import { isSame } from './same-vectors.ts';

const TEXTS = 8_000;
const HEADER_BYTES = 128;
const AGAIN_MS = 200;

export interface CliReport {
  /** Files that were whole and right. */
  readonly files: number;
  /** Ends before that, by a signal or in one sentence with exit code 1. */
  readonly early: number;
  /** Other rows, another exit code, or a stack trace. */
  readonly wrong: number;
}

export interface CliLoadOptions {
  readonly model: string;
  readonly dims: number;
  /** Of the texts. */
  readonly folder: string;
  /** Of the output; may be full or read-only for a while. */
  readonly outputs: string;
  readonly environment: Readonly<Record<string, string>>;
}

export class CliLoad {
  private readonly options: CliLoadOptions;
  private readonly input: string;
  private readonly output: string;
  private child: ChildProcess | undefined;
  private expected: readonly Float32Array[] = [];
  private isStopping = false;
  /** Until then no run begins. */
  private held: Promise<void> = Promise.resolve();
  private running: Promise<void> = Promise.resolve();
  private readonly tally = { files: 0, early: 0, wrong: 0 };

  constructor(options: CliLoadOptions) {
    this.options = options;
    this.input = join(options.folder, 'texts.txt');
    this.output = join(options.outputs, 'vectors.npy');
  }

  /** Resolves when the first file is whole. Workers must be there. */
  async start(): Promise<void> {
    writeFileSync(
      this.input,
      Array.from({ length: TEXTS }, (_, at) => `row ${at} ${'of a house '.repeat(at % 7)}\n`).join(''),
    );
    const { code, stderr } = await this.run();
    if (code !== 0) throw new Error(`shoal embed ended with ${code} at a quiet moment:\n${stderr}`);
    this.expected = this.taken();
    this.running = this.again();
  }

  get pid(): number | undefined {
    return this.child?.pid;
  }

  kill(): void {
    this.child?.kill('SIGKILL');
  }

  /** Interrupts the run, and begins no other until `change` is over. */
  async between(change: () => void): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.held = promise;
    while (this.child !== undefined) {
      this.child.kill('SIGTERM');
      await sleep(AGAIN_MS);
    }
    try {
      change();
    } finally {
      resolve();
    }
  }

  report(): CliReport {
    return { ...this.tally };
  }

  async stop(): Promise<void> {
    this.isStopping = true;
    this.kill();
    await this.running;
  }

  private async again(): Promise<void> {
    while (!this.isStopping) {
      await this.held;
      const { code, stderr } = await this.run();
      if (this.isStopping) return;
      if (code === 0 && this.isRight()) this.tally.files++;
      else if (code !== 0 && isProper(code, stderr)) this.tally.early++;
      else {
        this.tally.wrong++;
        process.stderr.write(`shoal embed ended with ${code}: ${stderr.slice(-2_000)}\n`);
      }
      if (code !== 0) await sleep(AGAIN_MS);
    }
  }

  private isRight(): boolean {
    const rows = this.taken();
    return rows.length === this.expected.length && rows.every((row, at) => isSame(row, this.expected[at]!));
  }

  /** The rows of the file, which is gone then. */
  private taken(): Float32Array[] {
    const bytes = readFileSync(this.output);
    rmSync(this.output);
    const values = new Float32Array(Uint8Array.from(bytes.subarray(HEADER_BYTES)).buffer);
    const { dims } = this.options;
    return Array.from({ length: values.length / dims }, (_, row) => values.subarray(row * dims, (row + 1) * dims));
  }

  private async run(): Promise<{ readonly code: number | string; readonly stderr: string }> {
    const { main, execArgv } = programOf('cli');
    const child = spawn(
      process.execPath,
      [...execArgv, main, 'embed', this.input, '-o', this.output, '--model', this.options.model, '--quiet'],
      { env: { ...process.env, ...this.options.environment }, stdio: ['ignore', 'ignore', 'pipe'] },
    );
    this.child = child;
    let stderr = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
    const [code, signal]: unknown[] = await once(child, 'close');
    this.child = undefined;
    return { code: typeof code === 'number' ? code : String(signal), stderr };
  }
}

/** Ended by a signal, interrupted, aborted for want of memory, or with a sentence that says why. */
function isProper(code: number | string, stderr: string): boolean {
  if (typeof code === 'string' || code >= 128) return true;
  return code === 1 && /^shoal: /m.test(stderr) && !/bug worth|\n {4}at /.test(stderr);
}

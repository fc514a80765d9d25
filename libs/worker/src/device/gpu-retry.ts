// Tries a GPU that failed again, in a process of its own, because in the one where it failed nothing on it can be used
// any more: after `firstMs`, then after twice as long each time, up to ten minutes. Says when it works; what is done
// then is the caller's business.
//
// Why: docs/decisions/similarity-gpu.md#a-gpu-that-failed-is-tried-in-another-process

import { fork, type ChildProcess } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { Logger } from '@shoal/core';
import { programFile } from '@shoal/core/base';

export interface GpuRetryOptions {
  readonly cudaLibrary: string | undefined;
  readonly log: Logger;
  /** It works again. Called once. */
  readonly onBack: () => void;
  readonly firstMs: number;
}

const LAST_MS = 600_000;
const PROBE_TIMEOUT_MS = 60_000;

export class GpuRetry {
  private readonly options: GpuRetryOptions;
  private timer: NodeJS.Timeout | undefined;
  private child: ChildProcess | undefined;
  private isStarted = false;
  private isStopped = false;

  constructor(options: GpuRetryOptions) {
    this.options = options;
  }

  /** Once is enough. */
  start(): void {
    if (this.isStarted) return;
    this.isStarted = true;
    this.wait(this.options.firstMs);
  }

  stop(): void {
    this.isStopped = true;
    clearTimeout(this.timer);
    this.child?.kill('SIGKILL');
  }

  private wait(ms: number): void {
    this.timer = setTimeout(() => this.probe(ms), ms);
  }

  private probe(waitedMs: number): void {
    const { cudaLibrary, log, onBack } = this.options;
    const main = fileURLToPath(programFile('./gpu-probe-main', import.meta.url));
    this.child = fork(main, cudaLibrary === undefined ? [] : [cudaLibrary], {
      stdio: ['ignore', 'ignore', 2, 'ipc'],
      timeout: PROBE_TIMEOUT_MS,
      killSignal: 'SIGKILL',
    });
    this.child.once('close', (code) => {
      if (this.isStopped) return;
      if (code === 0) return onBack();
      log.debug({ code, waitedMs }, 'the GPU does not work yet');
      this.wait(Math.min(LAST_MS, 2 * waitedMs));
    });
    this.child.once('error', () => undefined); // `close` follows
  }
}

// The workers of the chaos bench, each under a supervisor that starts another under the same name as soon as one is
// gone. What a worker's end was is remembered: killed by us, or left by itself.

import { fork, type ChildProcess } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { programOf } from '@shoal/core/testing';
import { childrenOf, threadsOf } from '../rig/processes.ts';
import { signalled } from './process-faults.ts';

export interface FleetOptions {
  readonly redisUrl: string;
  /** Settings of each worker. */
  readonly workers: readonly Readonly<Record<string, string>>[];
}

/** A worker that cannot start is not started again sooner. */
const RESTART_MS = 200;
/** A worker that was told to end has 30 s for what it has begun, and as many to write down how that ended. */
const END_MS = 120_000;

export class SupervisedFleet {
  private readonly options: FleetOptions;
  private readonly children: (ChildProcess | undefined)[] = [];
  private readonly killed = new WeakSet<ChildProcess>();
  private isStopping = false;
  /** Exit codes of workers that ended without being killed. */
  readonly leftByThemselves: string[] = [];
  /** Workers that had to be killed in the end: in which state they were. */
  readonly unended: string[] = [];
  starts = 0;

  constructor(options: FleetOptions) {
    this.options = options;
  }

  /** Resolves when all are ready. */
  async start(): Promise<void> {
    await Promise.all(this.options.workers.map((_, index) => this.launch(index)));
  }

  killWorker(index: number): void {
    const child = this.children[index];
    if (child === undefined) return;
    this.killed.add(child);
    child.kill('SIGKILL');
  }

  workerPid(index: number): number | undefined {
    return this.children[index]?.pid;
  }

  executorPid(index: number): number | undefined {
    const pid = this.workerPid(index);
    return pid === undefined ? undefined : childrenOf(pid)[0];
  }

  killExecutor(index: number): void {
    const executor = this.executorPid(index);
    if (executor !== undefined) signalled(executor, 'SIGKILL');
  }

  /** SIGTERM to all; resolves with their exit codes. One that does not end is killed, and what it did is remembered. */
  async stop(): Promise<(number | null)[]> {
    this.isStopping = true;
    return Promise.all(this.children.flatMap((child) => (child === undefined ? [] : [this.end(child)])));
  }

  private async end(child: ChildProcess): Promise<number | null> {
    if (child.exitCode !== null || child.signalCode !== null) return child.exitCode;
    const ended = new Promise<number | null>((resolve) => child.once('exit', resolve));
    child.kill('SIGTERM');
    const late = new AbortController();
    const watch = sleep(END_MS, undefined, { signal: late.signal }).then(
      () => this.tellUnended(child),
      () => undefined, // it has ended
    );
    const code = await ended;
    late.abort();
    await watch;
    return code;
  }

  private tellUnended(child: ChildProcess): void {
    const pids = [child.pid!, ...childrenOf(child.pid!)];
    this.unended.push(pids.map((pid) => `${pid} (${threadsOf(pid).join(', ')})`).join(', its executor '));
    child.kill('SIGKILL');
  }

  /** Resolves when it, or one that was started in its place, is ready. */
  private launch(index: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.starts++;
    const child = fork(programOf('cpu-worker').main, [], {
      env: {
        ...process.env,
        SHOAL_REDIS_URL: this.options.redisUrl,
        SHOAL_WORKER_NAME: `chaos-${index}`,
        ...this.options.workers[index],
      },
      stdio: ['ignore', 2, 2, 'ipc'],
    });
    this.children[index] = child;
    child.once('exit', (code, signal) => {
      this.children[index] = undefined;
      if (this.isStopping) return;
      if (!this.killed.has(child)) this.leftByThemselves.push(String(code ?? signal));
      setTimeout(() => (this.isStopping ? undefined : void this.launch(index).then(resolve)), RESTART_MS);
    });
    child.on('message', (message: { readonly kind: string }) => (message.kind === 'ready' ? resolve() : undefined));
    return promise;
  }
}

// ExecutorLink over a child process: starts executor-main, carries the protocol over its IPC channel, notices its
// death. One process at a time; whoever replaces a dead one calls start() again. The child kills itself when this side
// is gone.

import { fork, type ChildProcess } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { ShoalError } from '@shoal/contract';
import type { AnyOrder, ExecutorLink, FromExecutor, LearnedBudget, ToExecutor } from '@shoal/core';
import { descriptorFailure, programFile } from '@shoal/core/base';
import {
  EXECUTOR_ENVIRONMENT,
  type ExecutorSettings,
  type SimilarityExecutorSettings,
} from '../executor/executor-settings.ts';

type Ready = Extract<FromExecutor, { kind: 'ready' }>;

/** What the claimer hears, and what only the next executor is told. Travels in lists. */
export type FromExecutorProcess = FromExecutor | { readonly kind: 'learned'; readonly learned: LearnedBudget };

/**
 * Opening a graph takes under a second, building it first a few, a GPU's context and kernels up to twenty (2026-11).
 */
const START_TIMEOUT_MS = 180_000;

/** Of libuv, which has four: three parts may sync their objects at the same time, and files are read and written meanwhile. */
const PART_FILE_THREADS = '8';

export class ForkedExecutor implements ExecutorLink {
  private readonly settings: ExecutorSettings | SimilarityExecutorSettings;
  private child: ChildProcess | undefined;
  private readonly messageListeners: ((message: FromExecutor) => void)[] = [];
  private readonly lostListeners: ((reason: string) => void)[] = [];
  private killReason: string | undefined;
  private isStopping = false;
  private learned: LearnedBudget | undefined;
  private readonly startTimeoutMs: number;
  private starts = 0;
  private early: Promise<Ready> | undefined;
  /** What the early one said before anybody took it over: facts that it tells once. */
  private unheard: FromExecutor[] = [];
  /** Of the first one. Lanes and sizes were chosen for it. */
  private device: string | undefined;

  /** `startTimeoutMs`: an executor that is not ready by then is killed, and `start` throws EXECUTOR_LOST. */
  constructor(settings: ExecutorSettings | SimilarityExecutorSettings, { startTimeoutMs = START_TIMEOUT_MS } = {}) {
    this.settings = settings;
    this.startTimeoutMs = startTimeoutMs;
  }

  /** Begins what the next `start()` will wait for. */
  startEarly(): Promise<Ready> {
    this.early = this.launch();
    this.early.catch(() => undefined); // `start` hands it on
    return this.early;
  }

  start(): Promise<Ready> {
    const started = this.early ?? this.launch();
    this.early = undefined;
    for (const message of this.unheard.splice(0)) this.hand(message);
    return started;
  }

  private launch(): Promise<Ready> {
    const child = this.spawn();
    this.child = child;
    this.killReason = undefined;
    const limit = setTimeout(
      () => child === this.child && this.kill(`it was not ready ${this.startTimeoutMs} ms after its start`),
      this.startTimeoutMs,
    );
    const started = Promise.withResolvers<Ready>();
    let isReady = false;
    const hear = (message: FromExecutorProcess): void => {
      if (message.kind === 'learned') this.learned = message.learned;
      else if (message.kind === 'unfit') {
        started.reject(new ShoalError(message.failure.code, message.failure.message));
      } else if (message.kind === 'ready') {
        const refusal = this.refusalOf(message);
        isReady = refusal === undefined;
        if (refusal === undefined) return started.resolve(message);
        started.reject(refusal);
        this.kill('it has another device');
      } else if (child === this.child) {
        if (this.early === undefined) this.hand(message);
        else this.unheard.push(message);
      }
    };
    child.on('message', (together: readonly FromExecutorProcess[]) => together.forEach(hear));
    child.once('error', (error) => started.reject(descriptorFailure(error) ?? error));
    // `close`, not `exit`: only then has every message of the channel been read
    child.once('close', (code, signal) => {
      const reason = this.killReason ?? (signal === null ? `exit code ${code}` : `killed by ${signal}`);
      if (child === this.child) this.forget(isReady);
      if (!isReady)
        started.reject(new ShoalError('EXECUTOR_LOST', `the executor process ended before it was ready (${reason})`));
      else if (!this.isStopping) for (const listener of this.lostListeners) listener(reason);
    });
    return started.promise.finally(() => clearTimeout(limit));
  }

  /** Lanes and sizes were chosen for the first device; similarity chooses anew for each call. */
  private refusalOf({ device }: Ready): ShoalError<'DEVICE_LOST'> | undefined {
    this.device ??= device;
    if (this.settings.kind === 'similarity' || device === this.device) return undefined;
    return new ShoalError(
      'DEVICE_LOST',
      `the worker began on ${this.device}, and its next executor found ${device} only; start ` +
        'the worker again to have it serve that',
    );
  }

  private forget(wasReady: boolean): void {
    this.child = undefined;
    if (!wasReady || this.early === undefined) return;
    // it died before anybody took it over: `start` begins another
    this.early = undefined;
    this.unheard = [];
  }

  send(message: ToExecutor<AnyOrder>): void {
    // A child that is dying cannot be written to; its exit tells the listeners, and its jobs are dispatched again.
    if (this.child?.connected) this.child.send(message, () => undefined);
  }

  onMessage(listener: (message: FromExecutor) => void): void {
    this.messageListeners.push(listener);
  }

  onLost(listener: (reason: string) => void): void {
    this.lostListeners.push(listener);
  }

  kill(reason: string): void {
    this.killReason = reason;
    this.child?.kill('SIGKILL');
  }

  async stop(): Promise<void> {
    this.isStopping = true;
    const child = this.child;
    if (child === undefined) return;
    const closed = new Promise<void>((resolve) => child.once('close', () => resolve()));
    this.send({ kind: 'stop' });
    await closed;
  }

  private hand(message: FromExecutor): void {
    for (const listener of this.messageListeners) listener(message);
  }

  private get takesParts(): boolean {
    return this.settings.kind !== 'similarity' && this.settings.parts !== undefined;
  }

  private spawn(): ChildProcess {
    const program =
      this.settings.kind === 'similarity' ? '../executor/similarity-executor-main' : '../executor/executor-main';
    const main = fileURLToPath(programFile(program, import.meta.url));
    const { SHOAL_FAULT_POINT: faultPoint, ...environment } = process.env;
    return fork(main, [], {
      serialization: 'advanced',
      env: {
        ...(this.takesParts && { UV_THREADPOOL_SIZE: PART_FILE_THREADS }),
        ...environment,
        [EXECUTOR_ENVIRONMENT]: JSON.stringify({ ...this.settings, learned: this.learned }),
        // a test's fault happens once: not again in the executor that replaces the one it killed
        ...(this.starts++ === 0 && faultPoint !== undefined ? { SHOAL_FAULT_POINT: faultPoint } : {}),
      },
      stdio: ['ignore', 2, 2, 'ipc'], // standard output belongs to whoever started the worker
    });
  }
}

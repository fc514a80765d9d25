// A command's end of the line to the supervisor. An open line is an attachment; it does not keep the command alive.
// Knows nothing of starting supervisors: it only says whether this one took us, and what became of it.

import { connect, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { ShoalError } from '@shoal/contract';
import { isAlive, type ProcessIdentity } from '@shoal/fetch';
import { onMessage, send, type ToCommand } from './control-protocol.ts';
import type { RunFile } from './run-file.ts';

/** Longest time from connecting until the supervisor says that it counts us. */
const ANSWER_TIMEOUT_MS = 10_000;
/** The server may write for as long as its shutdown takes (20 s), then it is killed. */
const EXIT_TIMEOUT_MS = 30_000;

export class ControlLine {
  readonly #socket: Socket;
  readonly #supervisor: ProcessIdentity;
  readonly #attached = Promise.withResolvers<boolean>();
  readonly #ready = Promise.withResolvers<boolean>();
  readonly #answered = Promise.withResolvers<'left' | 'stopping'>();
  readonly #listeners: ((message: ToCommand) => void)[] = [];
  #failure: ShoalError | undefined;

  private constructor(path: string, supervisor: ProcessIdentity) {
    this.#supervisor = supervisor;
    this.#socket = connect(path);
    this.#socket.on('error', () => undefined); // 'close' follows
    this.#socket.on('close', () => this.#closed());
    onMessage<ToCommand>(this.#socket, (message) => this.#hear(message));
  }

  /** A line on which the supervisor counts us, or undefined when it is going or gone. */
  static async open(run: RunFile): Promise<ControlLine | undefined> {
    const line = new ControlLine(run.control, run.supervisor);
    const tooLate = setTimeout(() => line.#socket.destroy(), ANSWER_TIMEOUT_MS);
    const isAttached = await line.#attached.promise;
    clearTimeout(tooLate);
    if (!isAttached) line.#socket.destroy();
    return isAttached ? line : undefined;
  }

  /** True once the queue server answers; false when the supervisor went away first; throws what it gave up with. */
  async ready(): Promise<boolean> {
    const isReady = await this.#ready.promise;
    if (this.#failure !== undefined) throw this.#failure;
    if (isReady) this.#socket.unref();
    return isReady;
  }

  /** Every later message; the line's end is `stopping` without a question. */
  onMessage(listener: (message: ToCommand) => void): void {
    this.#listeners.push(listener);
  }

  get failure(): ShoalError | undefined {
    return this.#failure;
  }

  /** Says farewell. When we were the last, waits until server and supervisor are gone. */
  async bye(): Promise<void> {
    this.#socket.ref();
    send(this.#socket, { kind: 'bye' });
    const answer = await this.#answered.promise;
    this.#socket.destroy();
    if (answer === 'stopping') await waitUntilGone(this.#supervisor);
  }

  #hear(message: ToCommand): void {
    if (message.kind === 'attached') this.#attached.resolve(true);
    if (message.kind === 'ready') this.#ready.resolve(true);
    if (message.kind === 'left' || message.kind === 'stopping') this.#answered.resolve(message.kind);
    if (message.kind === 'failed')
      this.#failure = new ShoalError('SETUP_FAILED', `the private queue server cannot run: ${message.message}`);
    if (message.kind === 'stopping') this.#attached.resolve(false);
    for (const listener of this.#listeners) listener(message);
  }

  #closed(): void {
    this.#attached.resolve(false);
    this.#ready.resolve(false);
    this.#answered.resolve('stopping');
    for (const listener of this.#listeners) listener({ kind: 'stopping' });
  }
}

export async function waitUntilGone(supervisor: ProcessIdentity): Promise<void> {
  const giveUpAt = performance.now() + EXIT_TIMEOUT_MS;
  while (isAlive(supervisor)) {
    if (performance.now() > giveUpAt) {
      throw new ShoalError(
        'SETUP_FAILED',
        `the private queue server's supervisor (process ${supervisor.pid}) neither answers nor ends: kill -9 ` +
          `${supervisor.pid}, then try again`,
        { pid: supervisor.pid },
      );
    }
    await delay(10);
  }
}

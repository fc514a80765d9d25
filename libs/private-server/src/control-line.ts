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
/** After that a person is told whose answer is waited for. */
const SILENT_AFTER_MS = 5_000;
/** A server that reads its data takes longer. */
const NOT_READY_AFTER_MS = 10_000;
/** The server may write for as long as its shutdown takes (20 s), then it is killed. */
const EXIT_TIMEOUT_MS = 30_000;

/** Told what is waited for, as a sentence for a person. */
export type OnSilent = (what: string) => void;

function silence({ pid }: ProcessIdentity): string {
  return (
    `the private queue server's supervisor (process ${pid}) takes connections and does not answer; where it was stopped, ` +
    `kill -CONT ${pid} lets it go on`
  );
}

export class ControlLine {
  readonly #socket: Socket;
  readonly #supervisor: ProcessIdentity;
  readonly #attached = Promise.withResolvers<boolean>();
  readonly #ready = Promise.withResolvers<boolean>();
  readonly #answered = Promise.withResolvers<'left' | 'stopping'>();
  readonly #listeners: ((message: ToCommand) => void)[] = [];
  readonly #onSilent: OnSilent | undefined;
  #failure: ShoalError | undefined;

  private constructor(path: string, supervisor: ProcessIdentity, onSilent: OnSilent | undefined) {
    this.#supervisor = supervisor;
    this.#onSilent = onSilent;
    this.#socket = connect(path);
    this.#socket.on('error', () => undefined); // 'close' follows
    this.#socket.on('close', () => this.#closed());
    onMessage<ToCommand>(this.#socket, (message) => this.#hear(message));
  }

  /**
   * A line on which the supervisor counts us, or undefined when it is going or gone. Throws QUEUE_UNREACHABLE where it
   * lives and does not answer: a process that was stopped does so.
   */
  static async open(run: RunFile, onSilent?: OnSilent): Promise<ControlLine | undefined> {
    const line = new ControlLine(run.control, run.supervisor, onSilent);
    let isLate = false;
    const tooLate = setTimeout(() => {
      isLate = true;
      line.#socket.destroy();
    }, ANSWER_TIMEOUT_MS);
    const isAttached = await line.#told(line.#attached.promise, silence(run.supervisor));
    clearTimeout(tooLate);
    if (!isAttached) line.#socket.destroy();
    if (isLate && isAlive(run.supervisor))
      throw new ShoalError('QUEUE_UNREACHABLE', silence(run.supervisor), { pid: run.supervisor.pid });
    return isAttached ? line : undefined;
  }

  /** True once the queue server answers; false when the supervisor went away first; throws what it gave up with. */
  async ready(): Promise<boolean> {
    const isReady = await this.#told(
      this.#ready.promise,
      'waiting until the private queue server answers',
      NOT_READY_AFTER_MS,
    );
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

  /**
   * Says farewell. When we were the last, waits until server and supervisor are gone. One that hears nothing will see
   * that our end of the line is closed.
   */
  async bye(): Promise<void> {
    this.#socket.ref();
    send(this.#socket, { kind: 'bye' });
    const tooLate = setTimeout(() => this.#answered.resolve('left'), ANSWER_TIMEOUT_MS);
    const answer = await this.#told(this.#answered.promise, silence(this.#supervisor));
    clearTimeout(tooLate);
    this.#socket.destroy();
    if (answer === 'stopping') await waitUntilGone(this.#supervisor);
  }

  /** What `answer` comes to; when that lasts, a person is told what is waited for. */
  async #told<Answer>(answer: Promise<Answer>, what: string, afterMs = SILENT_AFTER_MS): Promise<Answer> {
    const soon = setTimeout(() => this.#onSilent?.(what), afterMs);
    return answer.finally(() => clearTimeout(soon));
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

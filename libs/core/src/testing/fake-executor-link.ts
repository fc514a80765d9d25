// The claimer's end of the line with nobody at the other: a test says what the executor says, and when it dies.

import type { ExecutorLink } from '../ports/link.ts';
import type { FromExecutor, JobOrder, JobOutcome, ToExecutor } from '../protocol.ts';
import { Gate } from './gate.ts';

export type Ready = Extract<FromExecutor, { kind: 'ready' }>;

export const READY: Ready = {
  kind: 'ready',
  model: 'fake@0123456789ab',
  dims: 8,
  maxTokens: 64,
  device: 'fake',
  precision: 'fp32',
  pid: 1,
};

export class FakeExecutorLink implements ExecutorLink {
  readonly sent: ToExecutor[] = [];
  readonly kills: string[] = [];
  starts = 0;
  stops = 0;
  /** Errors that the next starts throw, in order. */
  readonly startErrors: Error[] = [];
  /** Held, a start, or the end of a stop, takes until it is released. */
  readonly startGate = new Gate();
  readonly stopGate = new Gate();
  answersPings = true;
  runningMs = 0;
  isUp = false;
  private readonly messageListeners: ((message: FromExecutor) => void)[] = [];
  private readonly lostListeners: ((reason: string) => void)[] = [];

  async start(): Promise<Ready> {
    this.starts++;
    await this.startGate.pass();
    const error = this.startErrors.shift();
    if (error !== undefined) throw error;
    this.isUp = true;
    return READY;
  }

  send(message: ToExecutor): void {
    this.sent.push(structuredClone(message));
    if (message.kind === 'ping' && this.answersPings && this.isUp)
      this.say({ kind: 'pong', sequence: message.sequence, runningMs: this.runningMs });
  }

  onMessage(listener: (message: FromExecutor) => void): void {
    this.messageListeners.push(listener);
  }

  onLost(listener: (reason: string) => void): void {
    this.lostListeners.push(listener);
  }

  kill(reason: string): void {
    if (this.isUp) this.kills.push(reason);
    this.stopGate.release();
    this.die(reason);
  }

  async stop(): Promise<void> {
    this.stops++;
    if (this.isUp) await this.stopGate.pass();
    this.isUp = false;
  }

  // ---- what a test makes it do ----------------------------------------------------------------------------------

  die(reason = 'killed by SIGKILL'): void {
    if (!this.isUp) return;
    this.isUp = false;
    for (const listener of this.lostListeners) listener(reason);
  }

  say(message: FromExecutor): void {
    for (const listener of this.messageListeners) listener(structuredClone(message));
  }

  sayOutcomes(...outcomes: readonly JobOutcome[]): void {
    this.say({ kind: 'outcomes', outcomes });
  }

  /** Every order sent so far, in order. */
  orders(): JobOrder[] {
    return this.sent.flatMap((message) => (message.kind === 'run' ? message.jobs : []));
  }

  orderOf(jobId: string): JobOrder | undefined {
    return this.orders().findLast((order) => order.jobId === jobId);
  }
}

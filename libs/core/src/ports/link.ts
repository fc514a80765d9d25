// The claimer's end of the line to its executor.

import type { AnyOrder, FromExecutor, ToExecutor } from '../protocol.ts';

/** The claimer's end of the line to its executor. Messages of one executor arrive in order; none after `onLost`. */
export interface ExecutorLink {
  /** Starts an executor and resolves with its `ready`; throws when the model cannot be opened. */
  start(): Promise<Extract<FromExecutor, { kind: 'ready' }>>;
  send(message: ToExecutor<AnyOrder>): void;
  onMessage(listener: (message: FromExecutor) => void): void;
  /** The executor died or was killed. */
  onLost(listener: (reason: string) => void): void;
  /** SIGKILL: for an executor that stopped answering. */
  kill(reason: string): void;
  /** Lets the executor finish and waits until its process is gone. */
  stop(): Promise<void>;
}

// What the server knows of one connection.

import type { Reply } from './replies.ts';
import { encodeReply } from './resp.ts';

export interface Waiting {
  readonly keys: readonly string[];
  /** ms since 1970; undefined: for ever. */
  readonly until: number | undefined;
  /** The reply, once there is something. */
  readonly serve: () => Reply | undefined;
}

export class Session {
  readonly id: number;
  readonly since: number;
  readonly #send: (bytes: Buffer) => void;
  readonly #onClose: (() => void) | undefined;
  name = '';
  readonly library = new Map<string, string>();
  lastCommand = '';
  readonly channels = new Set<string>();
  readonly patterns = new Set<string>();
  readonly watched = new Set<string>();
  /** Something that it watches has changed. */
  isStale = false;
  /** Commands of a transaction; undefined outside. */
  queued: (readonly string[])[] | undefined;
  /** A command of the transaction was refused. */
  isAborted = false;
  isInTransaction = false;
  waiting: Waiting | undefined;
  /** Requests that came while it waits. */
  readonly pending: (readonly string[])[] = [];
  isEnded = false;

  constructor(id: number, send: (bytes: Buffer) => void, onClose: (() => void) | undefined, since: number) {
    this.id = id;
    this.#send = send;
    this.#onClose = onClose;
    this.since = since;
  }

  get isSubscribed(): boolean {
    return this.channels.size + this.patterns.size > 0;
  }

  reply(reply: Reply): void {
    if (!this.isEnded) this.#send(encodeReply(reply));
  }

  push(reply: Reply): void {
    this.reply(reply);
  }

  end(byServer: boolean): void {
    this.isEnded = true;
    this.waiting = undefined;
    this.pending.length = 0;
    this.channels.clear();
    this.patterns.clear();
    if (byServer) this.#onClose?.();
  }
}

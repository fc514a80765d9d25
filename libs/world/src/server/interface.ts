// What a model of the queue server looks like to the world that it lives in. Nothing here knows sockets or timers: bytes
// and the hour come from outside, so that a seed decides both.

import type { Flavour } from './command.ts';

/** A connection of the model. */
export interface ServerSession {
  /** As CLIENT ID tells it. */
  readonly id: number;
  /** What the client sent, in RESP; any cut of it. Replies leave in the same call, unless a command blocks. */
  receive(bytes: Buffer): void;
  /** The client is gone: what blocks is given up, a transaction begun is forgotten, subscriptions end. */
  close(): void;
}

/** What a server refuses while something is wrong with it. */
export type Refusal =
  /** Its disk is full, so that the append-only file cannot be written: writes, and PING, end with MISCONF. */
  | 'misconf'
  /** `maxmemory` is reached: commands that take memory end with OOM. */
  | 'oom'
  /** It follows another server: writes end with READONLY. */
  | 'readonly'
  /** It reads its data in: all but a few commands end with LOADING. */
  | 'loading';

/** The switches that make the model ill. Each can be set and taken back at any time. */
export interface ServerFaults {
  refuse: Refusal | undefined;
  /** Whether a published message is lost on its way to the subscriber with this session id. PUBLISH counts it all the same. */
  dropPublished: ((channel: string, subscriber: number) => boolean) | undefined;
  /** Commands, in capitals, that its user may not run: NOPERM. */
  denied: ReadonlySet<string> | undefined;
}

export interface ModelServerOptions {
  /** Wall clock, ms since 1970. It may step both ways; TTLs follow it. */
  readonly now: () => number;
  /** In [0, 1). */
  readonly random: () => number;
  /**
   * Time that only goes forward, in ms, by which `restart` knows what is young. Without it the clock's steps forward count
   * as time and those backward as none.
   */
  readonly elapsed?: (() => number) | undefined;
  readonly flavour?: Flavour | undefined;
  /** For so long a restart can look back, at least; 0: nothing is ever forgotten, and nothing is kept for it. */
  readonly keptMs?: number | undefined;
}

export interface RestartOptions {
  /** Writes that were acknowledged less than so long ago are lost, as with `appendfsync everysec`: at most `keptMs`. */
  readonly forgetMs: number;
}

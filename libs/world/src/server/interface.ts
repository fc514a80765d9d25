// What a model of the queue server looks like to the world that it lives in. Nothing here knows sockets or timers: bytes
// and the hour come from outside, so that a seed decides both.

/** A connection of the model. */
export interface ServerSession {
  /** What the client sent, in RESP; any cut of it. Replies leave in the same call, unless a command blocks. */
  receive(bytes: Buffer): void;
  /** The client is gone: what blocks is given up, a transaction begun is forgotten, subscriptions end. */
  close(): void;
}

/** What a server refuses while something is wrong with it. `undefined`: nothing. */
export type Refusal =
  /** The disk is full: writes end with MISCONF (snapshots) or MISCONF (append-only file). */
  | 'misconf'
  /** `maxmemory` is reached: commands that take memory end with OOM. */
  | 'oom'
  /** It is a replica: writes end with READONLY. */
  | 'readonly'
  /** It reads its data in: nearly every command ends with LOADING. */
  | 'loading';

/** The switches that make the model ill. Each can be set and taken back at any time. */
export interface ServerFaults {
  refuse: Refusal | undefined;
  /** Whether a published message of this channel is lost on its way to the subscriber of this session id. */
  dropPublished: ((channel: string, subscriber: number) => boolean) | undefined;
}

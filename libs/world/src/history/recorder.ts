// Writes the events of one process. What it writes into is a list in memory or a file; the file gets each event by one
// write to its end, so that a process that is killed has lost nothing it had done, and at most its last line is
// unfinished. No buffer, no fsync: what the operating system has outlives the process, not the machine.

import { closeSync, openSync, writeSync } from 'node:fs';
import type { EventFacts, EventKind, EventOp, HistoryEvent } from './event.ts';

/** Where events go. */
export interface HistorySink {
  write(event: HistoryEvent): void;
}

/** Ends a call: how it ended, and what the answer says. Only the first end counts. */
export type EndCall = (kind: Exclude<EventKind, 'invoke'>, facts?: EventFacts) => void;

/** A history in memory, in the order of its events. */
export class MemoryHistory implements HistorySink {
  readonly events: HistoryEvent[] = [];

  write(event: HistoryEvent): void {
    this.events.push(event);
  }
}

/** A history on disk: JSON, an event a line. Each life of a process has a file of its own. */
export class HistoryWriter implements HistorySink {
  readonly path: string;
  private file: number | undefined;

  /** Throws what the file system says, and when the file is there already: a line that it may end with is not whole. */
  constructor(path: string) {
    this.path = path;
    this.file = openSync(path, 'ax');
  }

  /** In the file when it returns. Throws what the file system says; events after `close` are a mistake and throw. */
  write(event: HistoryEvent): void {
    if (this.file === undefined) throw new Error(`an event came after ${this.path} was closed`);
    writeSync(this.file, `${JSON.stringify(event)}\n`);
  }

  /** Safe to call twice. */
  close(): void {
    if (this.file !== undefined) closeSync(this.file);
    this.file = undefined;
  }
}

/** ms of the clock that all processes of this machine share and that never steps. */
export function sharedClockMs(): number {
  return Number(process.hrtime.bigint() / 1_000n) / 1_000;
}

/** The voice of one process in a history. */
export class Recorder {
  readonly process: string;
  private readonly sink: HistorySink;
  private readonly nowMs: () => number;
  private calls = 0;

  /** `nowMs`: of the clock that all processes of the history share. */
  constructor(process: string, sink: HistorySink, nowMs: () => number = sharedClockMs) {
    this.process = process;
    this.sink = sink;
    this.nowMs = nowMs;
  }

  /** Writes that a call begins, before it does; what is returned writes its end. */
  invoke(op: EventOp, id: string, facts: EventFacts = {}): EndCall {
    const call = ++this.calls;
    this.write(op, id, 'invoke', { ...facts, call });
    let isOpen = true;
    return (kind, answer = {}) => {
      if (isOpen) this.write(op, id, kind, { ...answer, call });
      isOpen = false;
    };
  }

  /** Something that was found out: true now, or from `facts.since` on. */
  observe(op: EventOp, id: string, facts: EventFacts = {}): void {
    this.write(op, id, 'ok', facts);
  }

  private write(op: EventOp, id: string, kind: EventKind, facts: EventFacts & { readonly call?: number }): void {
    this.sink.write({ at: this.nowMs(), process: this.process, op, id, kind, ...facts });
  }
}

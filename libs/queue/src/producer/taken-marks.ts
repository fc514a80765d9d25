// What a reader has taken in the last seconds, so that a server which died and forgot it can be told again: under AOF
// `everysec` up to 2 s of what was acknowledged may be lost with the process, and a result that was delivered would lie
// there once more, or be computed and delivered anew. The same before it is marked at all, from when its body was seen.
// Remembers headers, never bodies.
//
// Why: docs/decisions/queue.md#a-reader-tells-a-server-that-came-back-what-it-had-taken

import { RESULT_FLAG, RESULT_HEADER_BYTES, decodeResultHeader } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { runScriptOver } from '../redis/script.ts';
import { MARK_TAKEN, MARK_TAKEN_AGAIN } from './lua/scripts.generated.ts';

/** Twice what a server postpones writing for while an fsync is running. */
const REMEMBERED_MS = 5_000;
/** As long as a result with a live waiter is kept. */
const TTL_MS = 300_000;

/** Results that were seen and are not marked yet; of those beyond, the oldest are forgotten. */
const MOST_SEEN = 50_000;

export class TakenMarks {
  private readonly nowMs: () => number;
  /** By key, in the order of their age. */
  private readonly marks = new Map<string, { readonly head: Buffer; readonly atMs: number }>();
  private readonly seen = new Map<string, Buffer>();
  private lostAtMs: number | undefined;

  constructor(nowMs: () => number) {
    this.nowMs = nowMs;
  }

  /**
   * Bodies that somebody has now: a server that dies before they are marked may forget them, and have them computed
   * once more.
   */
  saw(keys: readonly string[], bodies: readonly (Buffer | undefined)[]): void {
    for (const [at, bytes] of bodies.entries()) {
      const head = bytes === undefined ? undefined : takenHeader(bytes);
      if (head !== undefined) this.seen.set(keys[at]!, head);
    }
    for (const key of this.seen.keys()) {
      if (this.seen.size <= MOST_SEEN) break;
      this.seen.delete(key);
    }
  }

  /** Marks them on the server, there or forgotten where they were seen; what was not seen only where it is there. */
  async mark(connection: Redis, keys: readonly string[]): Promise<void> {
    const isSeen = (key: string): boolean => this.seen.has(key);
    const [seen, others] = [keys.filter(isSeen), keys.filter((key) => !isSeen(key))];
    const heads = seen.map((key) => this.seen.get(key)!);
    for (const key of seen) this.seen.delete(key);
    this.add(seen, heads); // before the server has them: whatever it forgets from here on is told again
    const [found] = await Promise.all([
      runScriptOver(
        connection,
        MARK_TAKEN,
        others.map((key) => ({ keys: [key], values: [] })),
      ),
      runScriptOver(
        connection,
        MARK_TAKEN_AGAIN,
        seen.map((key, at) => ({ keys: [key], values: [heads[at]!, TTL_MS] })),
      ),
    ]);
    this.add(others, found);
  }

  /** Headers as the server has them now; what is none is passed over. */
  add(keys: readonly string[], heads: readonly unknown[]): void {
    const atMs = this.nowMs();
    this.forgetOld();
    for (const [at, head] of heads.entries()) {
      if (!Buffer.isBuffer(head) || head.length !== RESULT_HEADER_BYTES) continue;
      this.marks.delete(keys[at]!); // it is the youngest now
      this.marks.set(keys[at]!, { head, atMs });
    }
  }

  /** Somebody asks for these once more: a mark that is told again would hit the result that comes. */
  forget(keys: readonly string[]): void {
    for (const key of keys) this.marks.delete(key);
  }

  /** The connection broke: the age of a mark is told from here on, however long it takes until they can be repeated. */
  lost(): void {
    this.lostAtMs ??= this.nowMs();
  }

  /**
   * For a server that came back. Older marks it has written down: by now they would hit a later result of the same
   * request.
   */
  async repeat(connection: Redis): Promise<void> {
    this.forgetOld();
    const marks = [...this.marks];
    try {
      await runScriptOver(
        connection,
        MARK_TAKEN_AGAIN,
        marks.map(([key, { head }]) => ({ keys: [key], values: [head, TTL_MS] })),
      );
    } finally {
      this.lostAtMs = undefined; // one that was refused for good would be refused again
    }
  }

  private forgetOld(): void {
    const sinceMs = (this.lostAtMs ?? this.nowMs()) - REMEMBERED_MS;
    for (const [key, { atMs }] of this.marks) {
      if (atMs > sinceMs) break;
      this.marks.delete(key);
    }
  }
}

/** What the server keeps of a result that was handed out; undefined for what is no result. */
export function takenHeader(bytes: Buffer): Buffer | undefined {
  if (decodeResultHeader(bytes) === undefined) return undefined;
  const head = Buffer.from(bytes.subarray(0, RESULT_HEADER_BYTES));
  head.writeUInt16LE(head.readUInt16LE(6) | RESULT_FLAG.taken, 6);
  return head;
}

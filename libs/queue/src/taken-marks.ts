// What a reader has taken in the last seconds, so that a server which died and forgot it can be told again: under AOF `everysec`
// up to 2 s of what was acknowledged may be lost with the process, and a result that was delivered would lie there once more,
// or be computed and delivered anew. Remembers headers, never bodies.

import { RESULT_HEADER_BYTES } from '@shoal/core';
import type { Redis } from './connection.ts';
import { runScript, script } from './payload/script.ts';

/** Twice what a server postpones writing for while an fsync is running. */
const REMEMBERED_MS = 5_000;
/** As long as a result with a live waiter is kept. */
const TTL_MS = 300_000;

// KEYS[1] the result, ARGV[1] its header, marked TAKEN, ARGV[2] its time to live where nothing is left of it. Another result under
// the same key belongs to a later request.
const MARK_AGAIN = script(1, 'allow-oom', `
local head = redis.call('GETRANGE', KEYS[1], 0, ${RESULT_HEADER_BYTES - 1})
if head == '' then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
elseif string.sub(head, 21, 28) == string.sub(ARGV[1], 21, 28) then redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL') end
`);

export class TakenMarks {
  private readonly nowMs: () => number;
  private marks: { readonly key: string; readonly head: Buffer; readonly atMs: number }[] = [];

  constructor(nowMs: () => number) {
    this.nowMs = nowMs;
  }

  /** Headers as the server has them now; what is none is passed over. */
  add(keys: readonly string[], heads: readonly unknown[]): void {
    const atMs = this.nowMs();
    this.marks = this.marks.filter((mark) => atMs - mark.atMs < REMEMBERED_MS);
    for (const [at, head] of heads.entries()) if (Buffer.isBuffer(head) && head.length === RESULT_HEADER_BYTES) this.marks.push({ key: keys[at]!, head, atMs });
  }

  /** For a server that came back. */
  async repeat(connection: Redis): Promise<void> {
    const { marks } = this;
    if (marks.length > 0) await runScript(connection, MARK_AGAIN, marks.map(({ key, head }) => [key, head, TTL_MS]));
  }
}

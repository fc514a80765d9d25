// Acknowledging a result: its body is handed out once, its header stays behind, marked TAKEN, for the rest of its time to
// live, so that a repeated job still finds that it was answered. What the bytes mean is checked by core's `openResult`.

import type { Redis } from '../connection.ts';
import { runScript, script } from './script.ts';

export type Acknowledged =
  /** Header and body as they were stored (SHL1). */
  | { readonly kind: 'body'; readonly bytes: Buffer }
  /** It was acknowledged before: by somebody else, or by this very call when the connection broke before its reply came. */
  | { readonly kind: 'taken' }
  | { readonly kind: 'absent' };

// KEYS[1] the result. "SHL1" in bytes 0..3, the flags as a little-endian u16 in bytes 6 and 7, so TAKEN (1) is the lowest
// bit of byte 6. KEEPTTL leaves the time to live as it was. What is not a result is handed out unchanged and left alone:
// the reader reports it; what is not even a string counts as an empty one.
const ACKNOWLEDGE = script(1, 'allow-oom', `
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return false end
if kind ~= 'string' then return {''} end
local bytes = redis.call('GET', KEYS[1])
if #bytes < 32 or string.sub(bytes, 1, 4) ~= 'SHL1' then return {bytes} end
local flags = string.byte(bytes, 7)
if flags % 2 == 1 then return {} end
redis.call('SET', KEYS[1], string.sub(bytes, 1, 6) .. string.char(flags + 1) .. string.sub(bytes, 8, 32), 'KEEPTTL')
return {bytes}
`);

/**
 * Takes the results at `keys` in one pipeline, one answer per key in order. Faults that pass are waited out; throws
 * QUEUE_UNREACHABLE when the connection is closed meanwhile.
 */
export async function acknowledge(connection: Redis, keys: readonly string[]): Promise<Acknowledged[]> {
  const replies = await runScript(connection, ACKNOWLEDGE, keys.map((key) => [key]));
  return replies.map(toAcknowledged);
}

function toAcknowledged(reply: unknown): Acknowledged {
  if (!Array.isArray(reply)) return { kind: 'absent' };
  const [bytes]: readonly unknown[] = reply;
  return Buffer.isBuffer(bytes) ? { kind: 'body', bytes } : { kind: 'taken' };
}

// Acknowledging a result: its body is handed out once, its header stays behind, marked TAKEN, for the rest of its time
// to live, so that a repeated job still finds that it was answered. What the bytes mean is checked by core's
// `openResult`.
//
// The body does not pass through the script that marks it, which would copy it three times and hash it whole (575
// instead of 150 µs of the server's CPU for 393 KB; 2-core Xeon, Valkey 9.1, 2026-11). The script renames it, next
// comes a plain GET of that name, which nobody else knows.

import { randomUUID } from 'node:crypto';
import { RESULT_HEADER_BYTES, type KeySpace } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { askAll, bytesOf, type Command } from '../redis/command-pipeline.ts';
import { runScriptOver, script } from '../redis/script.ts';
import { STAGED_TTL_MS } from '../redis/staging.ts';

export type Acknowledged =
  /** Header and body as they were stored (SHL1). */
  | { readonly kind: 'body'; readonly bytes: Buffer }
  /** It was acknowledged before. */
  | { readonly kind: 'taken' }
  | { readonly kind: 'absent' };

// KEYS of each result: it, and where its body is put. ARGV of each: for how long, ms. Answers with a word for each.
// "SHL1" in bytes 0..3, the flags as a little-endian u16 in bytes 6 and 7, so TAKEN (1) is the lowest bit of byte 6.
// What is not a result is left alone. A call that is repeated, because its reply was lost, finds the body where it put
// it.
const TAKE = script(
  0,
  'allow-oom',
  `
local function take(output, body, ttl)
  local head = redis.pcall('GETRANGE', output, 0, ${RESULT_HEADER_BYTES - 1})
  if head == '' then return 'absent' end
  if type(head) ~= 'string' or #head < ${RESULT_HEADER_BYTES} or string.sub(head, 1, 4) ~= 'SHL1' then return 'foreign' end
  local flags = string.byte(head, 7)
  if flags % 2 == 1 then return redis.call('EXISTS', body) == 1 and 'body' or 'taken' end
  local leftMs = redis.call('PTTL', output)
  redis.call('RENAME', output, body)
  redis.call('PEXPIRE', body, ttl)
  head = string.sub(head, 1, 6) .. string.char(flags + 1) .. string.sub(head, 8)
  if leftMs < 0 then redis.call('SET', output, head) else redis.call('SET', output, head, 'PX', math.max(leftMs, 1)) end
  return 'body'
end
local answers = {}
for at = 1, #ARGV do answers[at] = take(KEYS[2 * at - 1], KEYS[2 * at], ARGV[at]) end
return answers
`,
);

/**
 * Takes the results of these jobs in one round trip, one answer per job in order. What is no result is handed out
 * unchanged and left alone: the reader reports it; what is not even a string counts as an empty one. Faults that pass
 * are waited out; throws QUEUE_UNREACHABLE when the connection is closed meanwhile.
 */
export async function acknowledge(
  connection: Redis,
  keys: KeySpace,
  queue: string,
  jobIds: readonly string[],
): Promise<Acknowledged[]> {
  const token = randomUUID();
  const places = jobIds.map((jobId, at) => ({
    output: keys.output(queue, jobId),
    body: keys.staged(queue, jobId, `${token}-${at}`),
  }));
  const [outcomes, bodies] = await Promise.all([
    runScriptOver(
      connection,
      TAKE,
      places.map(({ output, body }) => ({ keys: [output, body], values: [STAGED_TTL_MS] })),
    ),
    askAll(
      connection,
      places.map(({ body }): Command => ['GET', body]),
    ),
  ]);
  const taken = places.filter((_, at) => String(outcomes[at]) === 'body').map(({ body }) => body);
  const answers = await Promise.all(
    places.map(async ({ output, body }, at): Promise<Acknowledged> => {
      switch (String(outcomes[at])) {
        case 'absent':
          return { kind: 'absent' };
        case 'taken':
          return { kind: 'taken' };
        case 'foreign':
          return { kind: 'body', bytes: (await read(connection, output)) ?? Buffer.alloc(0) };
        default: {
          // Not there yet when the script had to be loaded first; not any more when the server was away for longer than
          // a minute.
          const bytes = bytesOf(bodies[at]) ?? (await read(connection, body));
          return bytes === undefined ? { kind: 'taken' } : { kind: 'body', bytes };
        }
      }
    }),
  );
  if (taken.length > 0) void connection.unlink(...taken).catch(() => undefined); // else they expire
  return answers;
}

async function read(connection: Redis, key: string): Promise<Buffer | undefined> {
  const [reply] = await askAll(connection, [['GET', key]]);
  return bytesOf(reply);
}

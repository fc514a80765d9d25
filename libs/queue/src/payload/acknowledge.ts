// Acknowledging a result: its body is handed out once, its header stays behind, marked TAKEN, for the rest of its time
// to live, so that a repeated job still finds that it was answered. What the bytes mean is checked by core's
// `openResult`.
//
// The body does not pass through the script that marks it, which would copy it three times and hash it whole (575
// instead of 150 µs of the server's CPU for 393 KB; 2-core Xeon, Valkey 9.1, 2026-11). The script renames it, next
// comes a plain GET of that name, which nobody else knows.

import { randomUUID } from 'node:crypto';
import type { KeySpace } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { askAll, bytesOf, type Command } from '../redis/command-pipeline.ts';
import { runScriptOver } from '../redis/script.ts';
import { STAGED_TTL_MS } from '../redis/staging.ts';
import { TAKE_RESULTS } from './lua/scripts.generated.ts';

export type Acknowledged =
  /** Header and body as they were stored (SHL1). */
  | { readonly kind: 'body'; readonly bytes: Buffer }
  /** It was acknowledged before. */
  | { readonly kind: 'taken' }
  | { readonly kind: 'absent' };

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
  const answers: Acknowledged[] = [];
  let open = jobIds.map((jobId, at): Place => ({
    at,
    output: keys.output(queue, jobId),
    body: keys.staged(queue, jobId, `${token}-${at}`),
  }));
  for (let round = 1; open.length > 0; round++) {
    const found = await take(connection, open);
    const lost = open.filter((_, index) => found[index] === 'lost');
    for (const [index, { at }] of open.entries()) {
      const answer = found[index]!;
      if (answer !== 'lost') answers[at] = answer;
      else if (round === ROUNDS) answers[at] = { kind: 'taken' };
    }
    open = round === ROUNDS ? [] : lost;
  }
  return answers;
}

interface Place {
  /** Of the answer. */
  readonly at: number;
  readonly output: string;
  readonly body: string;
}

/** A server may forget in one restart what it answered, and be away again when it is asked. */
const ROUNDS = 3;

/**
 * Once. "lost": the script took it, and its body is not there any more. A server that forgot the last it was told may
 * have the whole result again, or not even that, and says so when it is asked again; one that was away for longer than a
 * body is kept says "taken" then.
 */
async function take(connection: Redis, places: readonly Place[]): Promise<(Acknowledged | 'lost')[]> {
  const [outcomes, bodies] = await Promise.all([
    runScriptOver(
      connection,
      TAKE_RESULTS,
      places.map(({ output, body }) => ({ keys: [output, body], values: [STAGED_TTL_MS] })),
    ),
    askAll(
      connection,
      places.map(({ body }): Command => ['GET', body]),
    ),
  ]);
  const taken = places.filter((_, at) => String(outcomes[at]) === 'body').map(({ body }) => body);
  const answers = await Promise.all(
    places.map(async ({ output, body }, at): Promise<Acknowledged | 'lost'> => {
      switch (String(outcomes[at])) {
        case 'absent':
          return { kind: 'absent' };
        case 'taken':
          return { kind: 'taken' };
        case 'foreign':
          return { kind: 'body', bytes: (await read(connection, output)) ?? Buffer.alloc(0) };
        default: {
          // not there yet when the script had to be loaded first
          const bytes = bytesOf(bodies[at]) ?? (await read(connection, body));
          return bytes === undefined ? 'lost' : { kind: 'body', bytes };
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

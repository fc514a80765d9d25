// Which version the structures have that Shoal keeps of its own under a prefix: order, admitted, load, drained, facts,
// inputs (SHI1), results (SHL1), and what scripts of different processes expect of each other. The first worker or
// producer writes it down, every process reads it before it does anything, and one that cannot read such structures
// refuses to start: it would misread them without a word.
//
// Jobs have versions of their own (`v`), which are not meant here.

import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalError, keySpace } from '@shoal/contract';
import { denied } from './denied.ts';
import { SLOW_MS } from './patience.ts';
import type { Redis } from './connection.ts';

/** Raised with every change that a process of the version before would misread; then a reader of both stays for a while. */
export const SCHEMA_VERSION = 1;
/** The oldest structures that this process can read. */
const OLDEST_READ = 1;

interface Schema {
  readonly version: number;
  /** A process that knows less than this cannot read what is there. */
  readonly minReader: number;
  /** Shoal's version, of whoever wrote it. */
  readonly writer: string;
}

/** What a process can read; another one than ours only in tests. */
export interface Reader {
  readonly knows: number;
  readonly oldest: number;
}

const OURS: Reader = { knows: SCHEMA_VERSION, oldest: OLDEST_READ };

/**
 * One round trip. Throws QUEUE_UNSAFE where this process cannot read the structures under the prefix, QUEUE_DAMAGED where
 * the key holds something else, QUEUE_UNREACHABLE where the server still says after `waitMs` that it cannot answer yet,
 * and what else it says.
 */
export async function checkSchema(
  connection: Redis,
  prefix: string,
  reader: Reader = OURS,
  waitMs = SLOW_MS,
): Promise<void> {
  const found = await readSchema(connection, prefix, waitMs);
  if (found === undefined) return;
  const { version, minReader, writer } = found;
  const what = `what is under the prefix ${prefix} was written by Shoal ${writer} in structures of version ${version}`;
  if (reader.knows < minReader)
    throw new ShoalError(
      'QUEUE_UNSAFE',
      `${what}, which only processes can read that know version ${minReader}; this one knows ${reader.knows}. Update it ` +
        '(docs/upgrade.md), or give it a prefix of its own (SHOAL_PREFIX or --prefix)',
      { prefix, ...found, knows: reader.knows },
    );
  if (version < reader.oldest)
    throw new ShoalError(
      'QUEUE_UNSAFE',
      `${what}, and this process reads none older than ${reader.oldest}. Let workers of Shoal ${writer} empty the queues ` +
        'first (docs/upgrade.md), or take a prefix of its own (SHOAL_PREFIX or --prefix)',
      { prefix, ...found, oldest: reader.oldest },
    );
}

/** Writes it down where nobody has. A server that takes no writes just now is left as it is. */
export async function enterSchema(connection: Redis, prefix: string, writer: string): Promise<void> {
  await checkSchema(connection, prefix);
  const key = keySpace(prefix).schema();
  const fields = { version: SCHEMA_VERSION, minReader: SCHEMA_VERSION, maxReader: SCHEMA_VERSION, writer };
  const entries = Object.entries(fields);
  await Promise.all(entries.map(([field, value]) => connection.hsetnx(key, field, value))).catch(() => undefined);
}

async function readSchema(connection: Redis, prefix: string, waitMs: number): Promise<Schema | undefined> {
  const key = keySpace(prefix).schema();
  const ask = (): Promise<(string | null)[]> => connection.hmget(key, 'version', 'minReader', 'writer');
  const [version, minReader, writer] = await answered(ask, waitMs).catch((error: unknown) => {
    if (!(error instanceof Error)) throw error;
    if (error.message.startsWith('NOPERM')) throw denied(error);
    throw error.message.includes('WRONGTYPE') ? notASchema(key, 'is no hash', error) : error;
  });
  if (version === null || version === undefined) return undefined;
  const known = { version: Number(version), minReader: Number(minReader ?? version), writer: writer ?? '(unknown)' };
  if (Number.isSafeInteger(known.version) && Number.isSafeInteger(known.minReader)) return known;
  throw notASchema(key, `says version ${JSON.stringify(version)}, minReader ${JSON.stringify(minReader)}`);
}

/** A server that comes up, takes over or is in a long script says so, while it already lets connections in. */
const NOT_YET = /^(BUSY|CLUSTERDOWN|MASTERDOWN|LOADING|TRYAGAIN) /;
const ASK_AGAIN_MS = 100;

async function answered<Answer>(ask: () => Promise<Answer>, waitMs: number): Promise<Answer> {
  const untilMs = performance.now() + waitMs;
  for (;;) {
    const isLast = performance.now() >= untilMs; // by when it was asked: a process that stood still asks once more
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof Error && NOT_YET.test(error.message))) throw error;
      if (isLast) throw notYet(error, waitMs);
      await sleep(ASK_AGAIN_MS);
    }
  }
}

function notYet(refusal: Error, waitMs: number): ShoalError<'QUEUE_UNREACHABLE'> {
  return new ShoalError(
    'QUEUE_UNREACHABLE',
    `the queue server answers and cannot serve yet, for ${waitMs / 1_000} s: ${refusal.message.replace(/\.$/, '')}. ` +
      'Try again when it is through with that, which its log tells, or set redisUrl (REDIS_URL) to another one',
    { reply: refusal.message },
    refusal,
  );
}

function notASchema(key: string, found: string, cause?: unknown): ShoalError<'QUEUE_DAMAGED'> {
  return new ShoalError(
    'QUEUE_DAMAGED',
    `the hash ${key} should say of which version Shoal's structures are, and ${found}. Delete it (DEL '${key}'): the ` +
      'next worker writes it anew',
    { key },
    cause,
  );
}

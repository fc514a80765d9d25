// Reads what kind of server the queue lives on and says whether jobs are safe there: refuses one that may evict keys or is
// too old for what the claim loop needs, warns of one that forgets everything when it dies. Changes nothing on the server.

import { ShoalError } from '@shoal/core';
import type { Redis } from './connection.ts';

export interface ServerFacts {
  readonly product: 'valkey' | 'redis';
  readonly version: string;
  /** Undefined where the server does not tell. */
  readonly evictionPolicy: string | undefined;
  readonly isAppendOnly: boolean | undefined;
  /** 0 means no limit. */
  readonly maxMemoryBytes: number;
  /** What to add to Date.now() to get the server's clock. */
  readonly clockOffsetMs: number;
}

export interface ServerReport {
  readonly facts: ServerFacts;
  /** Sentences for a person; the queue works all the same. */
  readonly warnings: readonly string[];
}

/** BZPOPMIN with a wait below 10 ms came with 7.0.8; BullMQ uses it. */
const OLDEST_REDIS = '7.0.8';
/** What the project is tested with. */
const TESTED = { redis: '7.2.0', valkey: '8.0.0' } as const;

/** Throws QUEUE_UNSAFE with what was found and the command that cures it. */
export async function checkServer(connection: Redis): Promise<ServerReport> {
  const [info, config, clockOffsetMs] = await Promise.all([readInfo(connection), readConfig(connection), readClockOffset(connection)]);
  const facts: ServerFacts = {
    product: info.has('valkey_version') ? 'valkey' : 'redis',
    // Valkey reports the Redis version that it is compatible with (7.2.4) as redis_version.
    version: info.get('valkey_version') ?? info.get('redis_version') ?? '0',
    evictionPolicy: config?.get('maxmemory-policy') ?? info.get('maxmemory_policy'),
    isAppendOnly: yesNo(config?.get('appendonly')) ?? yesNo(info.get('aof_enabled')),
    maxMemoryBytes: Number(info.get('maxmemory') ?? 0),
    clockOffsetMs,
  };
  refuse(facts);
  return { facts, warnings: warningsOf(facts, config !== undefined) };
}

function refuse({ evictionPolicy, product, version }: ServerFacts): void {
  if (evictionPolicy !== undefined && evictionPolicy !== 'noeviction') {
    throw new ShoalError(
      'QUEUE_UNSAFE',
      `the queue server evicts keys when its memory is full (maxmemory-policy is ${evictionPolicy}), so it can lose jobs. ` +
        'Run: CONFIG SET maxmemory-policy noeviction, and set "maxmemory-policy noeviction" in its configuration file',
      { evictionPolicy },
    );
  }
  if (product === 'redis' && isOlder(version, OLDEST_REDIS)) {
    throw new ShoalError('QUEUE_UNSAFE', `the queue server is Redis ${version}; Shoal needs ${OLDEST_REDIS} or newer, best ${TESTED.redis}, or Valkey ${TESTED.valkey}. Upgrade it`, { version });
  }
}

function warningsOf(facts: ServerFacts, mayReadConfig: boolean): string[] {
  const warnings: string[] = [];
  const oldest = TESTED[facts.product];
  if (isOlder(facts.version, oldest)) warnings.push(`the queue server is ${facts.product} ${facts.version}; Shoal is tested with ${oldest} and newer`);
  if (facts.isAppendOnly === false) warnings.push('the queue server keeps no append-only file: when it dies, every job and result is lost. Run: CONFIG SET appendonly yes');
  if (!mayReadConfig) warnings.push('the queue server does not allow CONFIG GET, so its settings could not all be checked; make sure that maxmemory-policy is noeviction and appendonly is yes');
  return warnings;
}

async function readInfo(connection: Redis): Promise<Map<string, string>> {
  const text = await connection.info();
  return new Map(text.split(/\r?\n/).flatMap((line) => {
    const colon = line.indexOf(':');
    return colon > 0 ? [[line.slice(0, colon), line.slice(colon + 1)] as const] : [];
  }));
}

/** Undefined where managed servers forbid or rename CONFIG. */
async function readConfig(connection: Redis): Promise<Map<string, string> | undefined> {
  try {
    const reply = await connection.config('GET', 'maxmemory-policy', 'appendonly');
    const flat = Array.isArray(reply) ? reply.map(String) : [];
    return new Map(flat.flatMap((name, index) => (index % 2 === 0 ? [[name, flat[index + 1] ?? ''] as const] : [])));
  } catch {
    return undefined;
  }
}

async function readClockOffset(connection: Redis): Promise<number> {
  const askedMs = Date.now();
  const [seconds, microseconds] = await connection.time();
  const halfwayMs = (askedMs + Date.now()) / 2;
  return Math.round(Number(seconds) * 1_000 + Number(microseconds) / 1_000 - halfwayMs);
}

function yesNo(value: string | undefined): boolean | undefined {
  if (value === undefined) return undefined;
  return value === 'yes' || value === '1';
}

/** Compares numbers between dots; what follows them ("-rc1") does not count. */
function isOlder(version: string, than: string): boolean {
  const have = version.split('.').map(Number.parseFloat);
  for (const [index, wanted] of than.split('.').map(Number.parseFloat).entries()) {
    const part = have[index] ?? 0;
    if (part !== wanted) return !(part > wanted);
  }
  return false;
}

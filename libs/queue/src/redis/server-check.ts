// Reads what kind of server the queue lives on and says whether jobs are safe there: refuses one that may evict keys,
// is too old for what the claim loop needs or takes no writes; warns of what can lose jobs on a bad day, each with its
// cure. Changes nothing on the server.

import { ShoalError } from '@shoal/contract';
import type { Redis } from './connection.ts';
import { serverTime } from './server-time.ts';
import { translate } from './translated.ts';
import { ADVISED_SERVERS, OLDEST_REDIS, isBelowAdvised, isTooOld, type ServerName } from '@shoal/contract';

export interface ServerFacts {
  readonly product: ServerName;
  readonly version: string;
  /** Where this server follows another one and takes no writes: that one's address. */
  readonly replicaOf: string | undefined;
  /** Replicas that follow this server now. */
  readonly replicas: number;
  /** Replicas without which it refuses writes; undefined where the server does not tell. */
  readonly minReplicas: number | undefined;
  /** Undefined where the server does not tell. */
  readonly evictionPolicy: string | undefined;
  readonly isAppendOnly: boolean | undefined;
  readonly appendFsync: string | undefined;
  /** 0 means no limit. */
  readonly maxMemoryBytes: number;
  readonly machineMemoryBytes: number;
  /** Reached over a socket of its own machine only: a user's private server. */
  readonly isPrivate: boolean;
  /** What the server says could not be written to its disk the last time, as INFO calls it. */
  readonly failedWrites: readonly string[];
  /** What to add to Date.now() to get the server's clock. */
  readonly clockOffsetMs: number;
}

export interface ServerReport {
  readonly facts: ServerFacts;
  /** Sentences for a person; the queue works all the same. */
  readonly warnings: readonly string[];
}

export interface CheckOptions {
  /** What would be refused because jobs could be lost is only warned of: the setting unsafeServer = "warn". */
  readonly isUnsafeAllowed?: boolean | undefined;
}

/** Less holds few jobs: one of 64 texts takes 21 KB while it waits and its result 100 KB (2026-11). */
const SMALL_MEMORY_BYTES = 128 << 20;
/** The copy that a server writes in the background, and its buffers, need room beside the data. */
const MOST_OF_MACHINE = 0.8;
/** Clocks further apart make delayed jobs late or early; deadlines and leases count by the server's. */
const MOST_CLOCK_OFFSET_MS = 5_000;
/** What INFO says of the disk, and what each means where it is "err". */
const WRITES: Readonly<Record<string, string>> = {
  aof_last_write_status: 'the last write to its append-only file',
  aof_last_bgrewrite_status: 'the last rewrite of its append-only file',
  rdb_last_bgsave_status: 'the last snapshot',
};
const IN_FILE = 'in its configuration file';

/** Throws QUEUE_UNSAFE with what was found and the command that cures it. */
export async function checkServer(
  connection: Redis,
  { isUnsafeAllowed = false }: CheckOptions = {},
): Promise<ServerReport> {
  const [info, config, clockOffsetMs] = await Promise.all([
    readInfo(connection),
    readConfig(connection),
    readClockOffset(connection),
  ]);
  const facts = factsOf(info, config, clockOffsetMs);
  if (facts.replicaOf !== undefined) throw readOnly(facts.replicaOf);
  const dangers = dangersOf(facts);
  const [danger] = dangers;
  if (danger !== undefined && !isUnsafeAllowed)
    throw new ShoalError(
      'QUEUE_UNSAFE',
      `${danger}. To go on all the same, set unsafeServer to "warn" (SHOAL_UNSAFE_SERVER)`,
      { ...facts },
    );
  return { facts, warnings: [...dangers, ...warningsOf(facts, config !== undefined)] };
}

/** What INFO and CONFIG GET say; `config` is undefined where the server does not allow that. */
function factsOf(
  info: ReadonlyMap<string, string>,
  config: ReadonlyMap<string, string> | undefined,
  clockOffsetMs: number,
): ServerFacts {
  return {
    product: info.has('valkey_version') ? 'Valkey' : 'Redis',
    // Valkey reports the Redis version that it is compatible with (7.2.4) as redis_version.
    version: info.get('valkey_version') ?? info.get('redis_version') ?? '0',
    replicaOf: info.get('role') === 'slave' ? `${info.get('master_host')}:${info.get('master_port')}` : undefined,
    replicas: numberIn(info, 'connected_slaves'),
    minReplicas: config === undefined ? undefined : minReplicasIn(config),
    evictionPolicy: config?.get('maxmemory-policy') ?? info.get('maxmemory_policy'),
    isAppendOnly: yesNo(config?.get('appendonly')) ?? yesNo(info.get('aof_enabled')),
    appendFsync: config?.get('appendfsync'),
    maxMemoryBytes: numberIn(info, 'maxmemory'),
    machineMemoryBytes: numberIn(info, 'total_system_memory'),
    isPrivate: info.get('tcp_port') === '0',
    failedWrites: Object.keys(WRITES).filter((field) => info.get(field) === 'err'),
    clockOffsetMs,
  };
}

function numberIn(info: ReadonlyMap<string, string>, field: string): number {
  return Number(info.get(field) ?? 0);
}

/** Older servers call it by another name. */
function minReplicasIn(config: ReadonlyMap<string, string>): number {
  return Number(config.get('min-replicas-to-write') ?? config.get('min-slaves-to-write') ?? 0);
}

/** What loses jobs while everything else looks well. */
function dangersOf({ evictionPolicy, product, version }: ServerFacts): string[] {
  return [
    ...(evictionPolicy === undefined || evictionPolicy === 'noeviction'
      ? []
      : [
          `the queue server evicts keys when its memory is full (maxmemory-policy is ${evictionPolicy}), so it ` +
            'can lose jobs. ' +
            `Run: CONFIG SET maxmemory-policy noeviction, and set "maxmemory-policy noeviction" ${IN_FILE}`,
        ]),
    ...(isTooOld(product, version)
      ? [
          `the queue server is ${product} ${version}; Shoal needs ${OLDEST_REDIS} or newer; ${ADVISED_SERVERS} ` +
            'are advised. Upgrade it',
        ]
      : []),
  ];
}

function readOnly(master: string): ShoalError<'QUEUE_UNSAFE'> {
  return new ShoalError(
    'QUEUE_UNSAFE',
    `the queue server is a replica of ${master} and takes no writes. Use its master's address, or let ` +
      'Sentinels name it: redis+sentinel://host:26379,host:26379/mymaster',
    { master },
  );
}

function warningsOf(facts: ServerFacts, mayReadConfig: boolean): string[] {
  const { product, version, replicas, minReplicas, clockOffsetMs } = facts;
  return [
    ...(isBelowAdvised(product, version)
      ? [`the queue server is ${product} ${version}; ${ADVISED_SERVERS} are advised. Upgrade it when you can`]
      : []),
    ...durabilityWarnings(facts),
    ...facts.failedWrites.map(
      (field) =>
        `the queue server says that ${WRITES[field]} failed (${field} is err): free space on its disk, or let it ` +
        'write there; its log says what it met',
    ),
    ...memoryWarnings(facts),
    ...(replicas > 0 && minReplicas === 0
      ? [
          `the queue server has ${replicas} replica${replicas === 1 ? '' : 's'} and takes writes without any: ` +
            'what it acknowledged alone is lost when another one takes over. Run: CONFIG SET ' +
            'min-replicas-to-write 1',
        ]
      : []),
    ...(Math.abs(clockOffsetMs) > MOST_CLOCK_OFFSET_MS
      ? [
          `the clock of this machine and the queue server's are ${Math.round(Math.abs(clockOffsetMs) / 1_000)} ` +
            's apart; delayed jobs come early or late by that much. Let both follow a time server (NTP)',
        ]
      : []),
    ...(mayReadConfig
      ? []
      : [
          'the queue server does not allow CONFIG GET, so its settings could not all be checked; make sure ' +
            'that maxmemory-policy is noeviction and appendonly is yes',
        ]),
  ];
}

function durabilityWarnings({ isAppendOnly, appendFsync }: ServerFacts): string[] {
  if (isAppendOnly === false)
    return [
      'the queue server keeps no append-only file: when it dies, every job and result is lost. Run: CONFIG SET ' +
        `appendonly yes, and set "appendonly yes" ${IN_FILE}`,
    ];
  if (appendFsync === 'no')
    return [
      'the queue server leaves it to the system when its append-only file reaches the disk (appendfsync is ' +
        'no): half a minute can be lost. Run: CONFIG SET appendfsync everysec',
    ];
  return [];
}

function memoryWarnings({ maxMemoryBytes, machineMemoryBytes, isPrivate }: ServerFacts): string[] {
  if (maxMemoryBytes === 0) {
    if (isPrivate || machineMemoryBytes === 0) return [];
    return [
      'the queue server has no memory limit (maxmemory is 0): when the machine has none left, the system kills ' +
        `it. Run: CONFIG SET maxmemory ${inMegabytes(machineMemoryBytes / 2)}`,
    ];
  }
  if (maxMemoryBytes < SMALL_MEMORY_BYTES)
    return [
      `the queue server may use ${inMegabytes(maxMemoryBytes)} only; producers soon have to wait. Run: CONFIG ` +
        `SET maxmemory ${inMegabytes(Math.max(machineMemoryBytes / 2, SMALL_MEMORY_BYTES))}`,
    ];
  if (machineMemoryBytes > 0 && maxMemoryBytes > machineMemoryBytes * MOST_OF_MACHINE) {
    return [
      `the queue server may use ${inMegabytes(maxMemoryBytes)} of its machine's ` +
        `${inMegabytes(machineMemoryBytes)}, which leaves too little for rewriting its append-only file. Run: ` +
        `CONFIG SET maxmemory ${inMegabytes(machineMemoryBytes / 2)}`,
    ];
  }
  return [];
}

function inMegabytes(bytes: number): string {
  return `${Math.floor(bytes / (1 << 20))}mb`;
}

async function readInfo(connection: Redis): Promise<Map<string, string>> {
  const text = await connection.info().catch((error: unknown) => {
    throw translate(error);
  });
  return new Map(
    text.split(/\r?\n/).flatMap((line) => {
      const colon = line.indexOf(':');
      return colon > 0 ? [[line.slice(0, colon), line.slice(colon + 1)] as const] : [];
    }),
  );
}

/** Undefined where managed servers forbid or rename CONFIG. */
async function readConfig(connection: Redis): Promise<Map<string, string> | undefined> {
  try {
    const reply = await connection.config(
      'GET',
      'maxmemory-policy',
      'appendonly',
      'appendfsync',
      'min-replicas-to-write',
    );
    const flat = Array.isArray(reply) ? reply.map(String) : [];
    return new Map(flat.flatMap((name, index) => (index % 2 === 0 ? [[name, flat[index + 1] ?? ''] as const] : [])));
  } catch {
    return undefined;
  }
}

async function readClockOffset(connection: Redis): Promise<number> {
  const askedMs = Date.now();
  const serverMs = await serverTime(connection);
  const halfwayMs = (askedMs + Date.now()) / 2;
  return Math.round(serverMs - halfwayMs);
}

function yesNo(value: string | undefined): boolean | undefined {
  if (value === undefined) return undefined;
  return value === 'yes' || value === '1';
}

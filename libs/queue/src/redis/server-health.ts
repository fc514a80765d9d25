// How the queue server fares: memory, disk, clients, replicas, and how long an answer takes. What follows from it is for
// whoever asks; whether it is safe at all says server-check.ts. Reads only, and what a user may not read is undefined.

import type { Redis } from './connection.ts';
import { translated } from './translated.ts';

export interface ReplicaHealth {
  readonly address: string;
  readonly isOnline: boolean;
  readonly lagSeconds: number;
}

export interface ServerHealth {
  /** The median of some questions that cost the server nothing. */
  readonly roundTripMs: number;
  readonly uptimeSeconds: number;
  readonly usedBytes: number;
  /** 0: no limit. */
  readonly maxBytes: number;
  readonly machineBytes: number;
  /** What the process holds for each byte that it uses. */
  readonly fragmentation: number;
  readonly clients: number;
  readonly maxClients: number | undefined;
  readonly rejectedConnections: number;
  readonly evictedKeys: number;
  readonly isAppendOnly: boolean;
  readonly isAppendOk: boolean;
  readonly isRewriteOk: boolean;
  readonly isSnapshotOk: boolean;
  /** Fsyncs that the disk was too slow for, since the server began. */
  readonly delayedFsyncs: number;
  readonly appendFileBytes: number;
  readonly lastForkMs: number;
  readonly replicas: readonly ReplicaHealth[];
  /** Its working folder, where it tells. */
  readonly folder: string | undefined;
  /** Commands that took it longer than its own limit (10 ms unless it was set); undefined where nobody may ask. */
  readonly slowCommands: number | undefined;
}

const PINGS = 9;

/** Throws QUEUE_UNREACHABLE. */
export function readServerHealth(connection: Redis): Promise<ServerHealth> {
  return translated(async () => {
    const [text, config, slowCommands] = await Promise.all([
      connection.info(),
      connection.config('GET', 'maxclients', 'dir').catch(() => undefined),
      connection.slowlog('LEN').catch(() => undefined),
    ]);
    const info = fieldsOf(text);
    const number = (field: string): number => Number(info.get(field) ?? 0);
    const isOk = (field: string): boolean => info.get(field) !== 'err';
    const maxClients = Number(configured(config, 'maxclients') ?? info.get('maxclients') ?? NaN);
    return {
      roundTripMs: await roundTrip(connection),
      uptimeSeconds: number('uptime_in_seconds'),
      usedBytes: number('used_memory') - number('mem_not_counted_for_evict'),
      maxBytes: number('maxmemory'),
      machineBytes: number('total_system_memory'),
      fragmentation: number('mem_fragmentation_ratio'),
      clients: number('connected_clients'),
      maxClients: Number.isFinite(maxClients) && maxClients > 0 ? maxClients : undefined,
      rejectedConnections: number('rejected_connections'),
      evictedKeys: number('evicted_keys'),
      isAppendOnly: info.get('aof_enabled') === '1',
      isAppendOk: isOk('aof_last_write_status'),
      isRewriteOk: isOk('aof_last_bgrewrite_status'),
      isSnapshotOk: isOk('rdb_last_bgsave_status'),
      delayedFsyncs: number('aof_delayed_fsync'),
      appendFileBytes: number('aof_current_size'),
      lastForkMs: number('latest_fork_usec') / 1_000,
      replicas: replicasIn(info),
      folder: configured(config, 'dir'),
      slowCommands: typeof slowCommands === 'number' ? slowCommands : undefined,
    };
  });
}

/** One after the other: what is asked at once is answered at once. */
async function roundTrip(connection: Redis): Promise<number> {
  const times: number[] = [];
  for (let ping = 0; ping < PINGS; ping++) {
    const askedMs = performance.now();
    await connection.ping();
    times.push(performance.now() - askedMs);
  }
  return times.toSorted((a, b) => a - b)[Math.floor(PINGS / 2)] ?? 0;
}

/** As INFO has it: `slave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0`, in both products. */
function replicasIn(info: ReadonlyMap<string, string>): ReplicaHealth[] {
  return [...info].flatMap(([name, value]) => {
    if (!/^(?:slave|replica)\d+$/.test(name)) return [];
    const facts = new Map(value.split(',').map((pair) => pair.split('=') as [string, string]));
    const address = `${facts.get('ip') ?? '?'}:${facts.get('port') ?? '?'}`;
    return [{ address, isOnline: facts.get('state') === 'online', lagSeconds: Number(facts.get('lag') ?? 0) }];
  });
}

function fieldsOf(text: string): Map<string, string> {
  return new Map(
    text.split('\r\n').flatMap((line) => {
      const at = line.indexOf(':');
      return at > 0 ? [[line.slice(0, at), line.slice(at + 1)] as const] : [];
    }),
  );
}

function configured(reply: unknown, name: string): string | undefined {
  const list = Array.isArray(reply) ? reply.map(String) : [];
  const at = list.indexOf(name);
  return at < 0 ? undefined : list[at + 1];
}

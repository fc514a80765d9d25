// INFO and CONFIG GET: the fields that the product and its clients read. What the model does not know is not there.

import type { Flavour } from './command.ts';
import { globMatcher } from './arguments.ts';

export interface InfoFacts {
  readonly flavour: Flavour;
  readonly uptimeSeconds: number;
  readonly clients: number;
  readonly usedBytes: number;
  readonly maxMemoryBytes: number;
  readonly keys: number;
  readonly expiring: number;
  readonly isLoading: boolean;
  readonly isReplica: boolean;
  readonly isDiskFull: boolean;
}

const VERSIONS: Readonly<Record<Flavour, readonly string[]>> = {
  'valkey-9': ['redis_version:7.2.4', 'server_name:valkey', 'valkey_version:9.1.2'],
  'redis-7.0': ['redis_version:7.0.15'],
};

/** Every section in one: who asks reads lines by their name. */
export function infoText(facts: InfoFacts): string {
  const status = facts.isDiskFull ? 'err' : 'ok';
  return [
    '# Server',
    ...VERSIONS[facts.flavour],
    `${facts.flavour === 'valkey-9' ? 'server_mode' : 'redis_mode'}:standalone`,
    ...(facts.flavour === 'valkey-9' ? ['redis_mode:standalone'] : []),
    'arch_bits:64',
    'tcp_port:6379',
    'run_id:0000000000000000000000000000000000000000',
    `uptime_in_seconds:${facts.uptimeSeconds}`,
    '',
    '# Clients',
    `connected_clients:${facts.clients}`,
    'maxclients:10000',
    '',
    '# Memory',
    `used_memory:${facts.usedBytes}`,
    `maxmemory:${facts.maxMemoryBytes}`,
    'maxmemory_policy:noeviction',
    'mem_not_counted_for_evict:0',
    'mem_fragmentation_ratio:1.00',
    'total_system_memory:17179869184',
    '',
    '# Persistence',
    `loading:${facts.isLoading ? 1 : 0}`,
    ...(facts.isLoading ? ['loading_eta_seconds:1'] : []),
    'aof_enabled:1',
    'aof_current_size:0',
    'aof_last_bgrewrite_status:ok',
    `aof_last_write_status:${status}`,
    'aof_delayed_fsync:0',
    'rdb_last_bgsave_status:ok',
    '',
    '# Stats',
    'rejected_connections:0',
    'evicted_keys:0',
    'latest_fork_usec:0',
    '',
    '# Replication',
    `role:${facts.isReplica ? 'slave' : 'master'}`,
    ...(facts.isReplica ? ['master_host:127.0.0.1', 'master_port:6380', 'master_link_status:up'] : []),
    'connected_slaves:0',
    '',
    '# Cluster',
    'cluster_enabled:0',
    '',
    '# Keyspace',
    ...(facts.keys > 0 ? [`db0:keys=${facts.keys},expires=${facts.expiring},avg_ttl=0`] : []),
    '',
  ].join('\r\n');
}

const CONFIG: Readonly<Record<string, string>> = {
  'maxmemory-policy': 'noeviction',
  appendonly: 'yes',
  appendfsync: 'everysec',
  'min-replicas-to-write': '0',
  maxclients: '10000',
  maxmemory: '0',
  dir: '/data',
  save: '',
  'notify-keyspace-events': '',
};

/** Names and values in turn. */
export function configOf(patterns: readonly string[]): string[] {
  const wanted = patterns.map((pattern) => globMatcher(pattern.toLowerCase()));
  return Object.entries(CONFIG).flatMap(([name, value]) =>
    wanted.some((matches) => matches(name)) ? [name, value] : [],
  );
}

// What `shoal doctor` says of a queue server beyond whether it is safe: one finding a check, each with a cure where
// something is to be done. Pure; the facts are read by libs/queue's server-health.ts.

import type { ServerHealth } from '@shoal/queue';
import type { Finding } from '@shoal/worker';

export interface ServerChecked extends ServerHealth {
  /** Results that nobody has acknowledged, bytes. */
  readonly unreadBytes: number;
  /** Whether the server runs on this machine. */
  readonly isHere: boolean;
  /** Free bytes where it keeps its files, if that can be seen from here. */
  readonly freeDiskBytes: number | undefined;
  readonly isTls: boolean;
  readonly hasPassword: boolean;
  /** The only one of its user, reached over a socket. */
  readonly isPrivate: boolean;
}

/** A claim is two round trips; above this a worker's rate suffers, and above the other leases do. */
const SLOW_MS = 5;
const FAR_MS = 250;
const MEMORY_SHARES = [0.7, 0.9] as const;
const UNREAD_SHARES = [0.4, 0.5] as const;
const CLIENTS_SHARE = 0.8;
/** GPU workers have twelve connections each. */
const FEW_CLIENTS = 1_000;
const FRAGMENTED = 1.5;
const LARGE_BYTES = 1e9;
const LONG_FORK_MS = 1_000;
const LATE_REPLICA_S = 10;
const SLOW_COMMANDS = 10;

type Check = (server: ServerChecked) => Finding;

export const SERVER_CHECKS: readonly Check[] = [
  ({ roundTripMs: ms }) => {
    const found = `an answer takes ${ms.toFixed(ms < 10 ? 2 : 0)} ms`;
    if (ms < SLOW_MS) return ok('server round trip', found);
    const cure =
      'put workers, HTTP and the server into one network zone; a busy machine or a swapping server is slow too';
    return { about: 'server round trip', state: ms < FAR_MS ? 'warning' : 'broken', found, cure };
  },
  ({ usedBytes, maxBytes }) => {
    const about = 'server memory';
    if (maxBytes === 0) return ok(about, `${gb(usedBytes)} used, no maxmemory (see queue server)`);
    const share = usedBytes / maxBytes;
    return graded(about, share, MEMORY_SHARES, `${percent(share)} of maxmemory ${gb(maxBytes)} used`, {
      cure: 'fetch results or shorten resultTtlMs, clean finished jobs (shoal queue clean), or raise maxmemory',
    });
  },
  ({ unreadBytes, maxBytes, machineBytes }) => {
    const most = maxBytes || machineBytes;
    const share = most === 0 ? 0 : unreadBytes / most;
    return graded(
      'unread results',
      share,
      UNREAD_SHARES,
      `${gb(unreadBytes)}, ${percent(share)} of what the server may use`,
      {
        cure: 'producers do not fetch or acknowledge: start their readers, shorten resultTtlMs; workers stop claiming at half',
      },
    );
  },
  ({ fragmentation, usedBytes }) =>
    fragmentation > FRAGMENTED && usedBytes > LARGE_BYTES
      ? {
          about: 'server fragmentation',
          state: 'warning',
          found: `the server holds ${fragmentation.toFixed(2)} bytes for each that it uses`,
          cure: 'a server built with jemalloc keeps it flat; CONFIG SET activedefrag yes gives it back',
        }
      : ok('server fragmentation', fragmentation === 0 ? 'not told' : fragmentation.toFixed(2)),
  ({ clients, maxClients }) => {
    const about = 'server connections';
    if (maxClients === undefined) return ok(about, `${clients} of a number that the server does not tell`);
    const found = `${clients.toLocaleString('en')} of ${maxClients.toLocaleString('en')}`;
    const cure = 'raise maxclients and the open files of the server; a GPU worker has twelve connections';
    if (clients > CLIENTS_SHARE * maxClients) return { about, state: 'broken', found, cure };
    return maxClients < FEW_CLIENTS ? { about, state: 'warning', found, cure } : ok(about, found);
  },
  ({ rejectedConnections: count }) =>
    count === 0
      ? ok('refused connections', 'none')
      : {
          about: 'refused connections',
          state: 'warning',
          found: `the server has refused ${count.toLocaleString('en')} connections since it began`,
          cure: 'raise maxclients, or find who opens them: CLIENT LIST shows names that begin with "shoal:"',
        },
  ({ evictedKeys: count }) =>
    count === 0
      ? ok('evicted keys', 'none')
      : {
          about: 'evicted keys',
          state: 'broken',
          found: `the server has thrown away ${count.toLocaleString('en')} keys for want of memory: jobs or results may be gone`,
          cure: 'CONFIG SET maxmemory-policy noeviction, then shoal queue repair',
        },
  ({ isAppendOnly, isAppendOk }) =>
    isAppendOk
      ? ok('append-only file', isAppendOnly ? 'written' : 'none (see queue server)')
      : {
          about: 'append-only file',
          state: 'broken',
          found: 'its last write failed, so the server takes no writes',
          cure: 'free space on its disk; the server goes on by itself',
        },
  ({ isRewriteOk }) =>
    isRewriteOk
      ? ok('rewrite of the file', 'no failure')
      : {
          about: 'rewrite of the file',
          state: 'warning',
          found: 'the last rewrite of the append-only file failed, so the file only grows',
          cure: 'free disk and memory (a rewrite is a copy of the process), then BGREWRITEAOF',
        },
  ({ isHere, isAppendOnly, appendFileBytes, freeDiskBytes }) => {
    const about = 'room for a rewrite';
    if (!isHere || !isAppendOnly || freeDiskBytes === undefined)
      return ok(about, 'not looked at: its disk is not of this machine');
    const found = `the file has ${gb(appendFileBytes)}, its disk has ${gb(freeDiskBytes)} free`;
    if (freeDiskBytes > appendFileBytes + LARGE_BYTES / 10) return ok(about, found);
    return {
      about,
      state: 'broken',
      found,
      cure: 'free space: a rewrite needs room for a second file beside the first',
    };
  },
  ({ delayedFsyncs: count, uptimeSeconds }) => {
    const about = 'disk of the server';
    const found = `${count.toLocaleString('en')} late fsyncs in ${Math.round(uptimeSeconds / 3_600)} h`;
    if (count === 0 || count < uptimeSeconds / 3_600) return ok(about, found);
    return {
      about,
      state: 'warning',
      found,
      cure: 'the disk is too slow for the writes: a disk of its own for the server, no-appendfsync-on-rewrite yes',
    };
  },
  ({ isSnapshotOk }) =>
    isSnapshotOk
      ? ok('snapshot', 'no failure')
      : {
          about: 'snapshot',
          state: 'warning',
          found: 'the last snapshot failed',
          cure: 'free disk and memory; where the append-only file is the copy, switch snapshots off: CONFIG SET save ""',
        },
  ({ lastForkMs }) =>
    lastForkMs < LONG_FORK_MS
      ? ok('fork of the server', `the last took ${lastForkMs.toFixed(0)} ms`)
      : {
          about: 'fork of the server',
          state: 'warning',
          found: `the last took ${(lastForkMs / 1_000).toFixed(1)} s, in which nothing was answered`,
          cure: 'less memory a server, transparent huge pages off, a larger auto-aof-rewrite-min-size for fewer of them',
        },
  ({ replicas }) => {
    const late = replicas.filter(({ isOnline, lagSeconds }) => !isOnline || lagSeconds > LATE_REPLICA_S);
    if (late.length === 0) return ok('replicas', replicas.length === 0 ? 'none' : `${replicas.length} follow`);
    return {
      about: 'replicas',
      state: 'broken',
      found: `${late.map(({ address, lagSeconds }) => `${address} is ${lagSeconds} s behind or away`).join(', ')}`,
      cure: 'look at its log and its link: a failover now would lose what it has not got',
    };
  },
  ({ slowCommands: count }) =>
    count === undefined || count < SLOW_COMMANDS
      ? ok('slow commands', count === undefined ? 'nobody may ask' : `${count} are listed`)
      : {
          about: 'slow commands',
          state: 'warning',
          found: `the server lists ${count} commands that took it long`,
          cure: 'SLOWLOG GET names them; KEYS and large collections of other users of the server are usual',
        },
  ({ isTls, isHere }) =>
    isTls || isHere
      ? ok('wire to the server', isTls ? 'TLS' : 'within this machine')
      : {
          about: 'wire to the server',
          state: 'warning',
          found: 'jobs, texts and vectors travel readable for whoever is on the way',
          cure: 'rediss:// (docs/security.md), or a network of its own for the fleet',
        },
  ({ hasPassword, isPrivate, isHere }) =>
    hasPassword || isPrivate
      ? ok('password of the server', hasPassword ? 'one is used' : 'a socket of this user alone')
      : {
          about: 'password of the server',
          state: 'warning',
          found: `whoever reaches ${isHere ? 'a port of this machine' : 'the server'} may read and change every job`,
          cure: 'a user with the rights of docs/security.md, its password in redisPasswordFile',
        },
];

export function checkServerHealth(server: ServerChecked): Finding[] {
  return SERVER_CHECKS.map((check) => check(server));
}

export function ok(about: string, found: string): Finding {
  return { about, state: 'ok', found };
}

function graded(
  about: string,
  value: number,
  [warnFrom, failFrom]: readonly [number, number],
  found: string,
  { cure }: { readonly cure: string },
): Finding {
  if (value < warnFrom) return ok(about, found);
  return { about, state: value < failFrom ? 'warning' : 'broken', found, cure };
}

function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}

function gb(bytes: number): string {
  return `${(bytes / 1e9).toPrecision(3)} GB`;
}

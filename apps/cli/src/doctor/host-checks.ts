// What `shoal doctor` says of this machine: one finding a check, each with a cure where something is to be done. Pure;
// host-facts.ts reads the facts.

import type { Finding } from '@shoal/worker';
import { ok } from './server-checks.ts';

export interface HostFacts {
  readonly node: string;
  readonly platform: string;
  readonly cores: number;
  /** Threads that the settings ask for; 0: as many as there are cores. */
  readonly threads: number;
  /** Of the process, soft; undefined where that cannot be read. */
  readonly openFiles: number | undefined;
  readonly availableBytes: number;
  readonly totalBytes: number;
  /** Of the container; undefined: none. */
  readonly containerBytes: number | undefined;
  readonly swapUsedBytes: number | undefined;
  /** vm.overcommit_memory, of the machine of the server where that is this one; undefined elsewhere. */
  readonly overcommit: number | undefined;
  /** The mode in force: "always", "madvise", "never". */
  readonly hugePages: string | undefined;
  /** Whether a queue server runs on this machine. */
  readonly hasServer: boolean;
  /** A sentence for each variable that looks like a setting and is none, as core says it. */
  readonly strays: readonly string[];
  /** Settings in force. */
  readonly drainTimeoutMs: number;
  readonly metricsPort: number;
  readonly metricsHost: string;
  readonly hasMasterKey: boolean;
  /** Whether a password stands in the environment, in REDIS_URL. */
  readonly hasPasswordInEnvironment: boolean;
  /** How long whoever keeps workers waits for them to end: by unit or name, ms. */
  readonly stopLimits: readonly { readonly name: string; readonly ms: number }[];
  readonly umask: number;
}

const OLDEST_NODE = [22, 12] as const;
const FEW_FILES = 4_096;
const TOO_FEW_FILES = 1_024;
const LITTLE_MEMORY = 1e9;
const MUCH_SWAP = 0.5e9;
/** Beside the drain itself, for settling and goodbyes. */
const BEYOND_DRAIN_MS = 15_000;

type Check = (host: HostFacts) => Finding;

export const HOST_CHECKS: readonly Check[] = [
  ({ node }) => {
    const [major = 0, minor = 0] = node.replace('v', '').split('.').map(Number);
    const isOld = major < OLDEST_NODE[0] || (major === OLDEST_NODE[0] && minor < OLDEST_NODE[1]);
    return isOld
      ? { about: 'Node', state: 'broken', found: `${node} is too old`, cure: 'install Node 22.12 or later' }
      : ok('Node', node);
  },
  ({ openFiles }) => {
    const about = 'open files';
    if (openFiles === undefined) return ok(about, 'not told on this system');
    const found = `this process may open ${openFiles.toLocaleString('en')}`;
    const cure = 'LimitNOFILE=65536 in the unit, or ulimit -n 65536';
    if (openFiles < TOO_FEW_FILES) return { about, state: 'broken', found, cure };
    return openFiles < FEW_FILES ? { about, state: 'warning', found, cure } : ok(about, found);
  },
  ({ availableBytes, totalBytes }) => {
    const found = `${gb(availableBytes)} of ${gb(totalBytes)} free`;
    if (availableBytes > LITTLE_MEMORY) return ok('memory', found);
    return {
      about: 'memory',
      state: 'warning',
      found,
      cure: 'fewer workers here, a smaller memoryFraction, or more memory',
    };
  },
  ({ containerBytes, totalBytes }) => {
    const about = 'memory of the container';
    if (containerBytes === undefined || containerBytes >= totalBytes) return ok(about, 'no limit');
    if (containerBytes > 2 * LITTLE_MEMORY) return ok(about, `a limit of ${gb(containerBytes)}`);
    return {
      about,
      state: 'warning',
      found: `a limit of ${gb(containerBytes)}`,
      cure: 'a worker on the CPU takes 1 to 2 GB; whoever passes the limit is killed without a word',
    };
  },
  ({ swapUsedBytes }) =>
    swapUsedBytes === undefined || swapUsedBytes < MUCH_SWAP
      ? ok('swap', swapUsedBytes === undefined ? 'not told' : `${gb(swapUsedBytes)} used`)
      : {
          about: 'swap',
          state: 'warning',
          found: `${gb(swapUsedBytes)} are swapped out`,
          cure: 'a process that is swapped out loses leases and answers late: more memory, or fewer processes',
        },
  ({ threads, cores }) =>
    threads <= cores
      ? ok('threads', `${threads === 0 ? `as many as cores, ${cores}` : `${threads} on ${cores} cores`}`)
      : {
          about: 'threads',
          state: 'warning',
          found: `${threads} on ${cores} core${cores === 1 ? '' : 's'}`,
          cure: 'take the setting threads away, or lower it to the cores of this machine',
        },
  ({ overcommit, hasServer }) =>
    !hasServer || overcommit === undefined || overcommit === 1
      ? ok('vm.overcommit_memory', hasServer ? String(overcommit ?? 'not told') : 'no queue server here')
      : {
          about: 'vm.overcommit_memory',
          state: 'warning',
          found: `${overcommit}: the server may fail to write its file when memory is more than half full`,
          cure: 'sysctl vm.overcommit_memory=1, and the same in /etc/sysctl.d/shoal.conf',
        },
  ({ hugePages, hasServer }) =>
    !hasServer || hugePages !== 'always'
      ? ok('transparent huge pages', hasServer ? (hugePages ?? 'not told') : 'no queue server here')
      : {
          about: 'transparent huge pages',
          state: 'warning',
          found: 'always: each rewrite of the server copies more memory, and pauses are longer',
          cure: 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, at each boot',
        },
  ({ strays }) =>
    strays.length === 0
      ? ok('variables', 'none that looks like a setting and is none')
      : {
          about: 'variables',
          state: 'warning',
          found: strays.join('; '),
          cure: 'nobody reads them: correct the names, or take them away',
        },
  ({ stopLimits, drainTimeoutMs }) => {
    const about = 'time to drain';
    const short = stopLimits.filter(({ ms }) => ms < drainTimeoutMs + BEYOND_DRAIN_MS);
    if (stopLimits.length === 0) return ok(about, `${drainTimeoutMs / 1_000} s; who keeps workers is not known here`);
    if (short.length === 0) return ok(about, `${drainTimeoutMs / 1_000} s, and whoever keeps workers waits for longer`);
    return {
      about,
      state: 'warning',
      found: `${short.map(({ name, ms }) => `${name} kills after ${ms / 1_000} s`).join(', ')}, and a drain may take ${drainTimeoutMs / 1_000} s`,
      cure: `TimeoutStopSec (terminationGracePeriodSeconds) of ${(drainTimeoutMs + BEYOND_DRAIN_MS) / 1_000} s or more, or a shorter drainTimeoutMs`,
    };
  },
  ({ metricsPort }) =>
    metricsPort > 0
      ? ok('metrics', `at port ${metricsPort} and up`)
      : {
          about: 'metrics',
          state: 'warning',
          found: 'workers tell none: metricsPort is 0',
          cure: 'SHOAL_METRICS_PORT=9464, or whatever port is free',
        },
  ({ hasPasswordInEnvironment }) =>
    hasPasswordInEnvironment
      ? {
          about: 'password of REDIS_URL',
          state: 'warning',
          found: 'it stands in the environment, which whoever may enter the container or read /proc sees',
          cure: 'the address without it, and redisPasswordFile (SHOAL_REDIS_PASSWORD_FILE)',
        }
      : ok('password of REDIS_URL', 'not in the environment'),
  ({ umask }) =>
    (umask & 0o002) !== 0
      ? ok('umask', umask.toString(8).padStart(4, '0'))
      : {
          about: 'umask',
          state: 'warning',
          found: `${umask.toString(8).padStart(4, '0')}: what commands write, everybody may change`,
          cure: 'umask 027, or UMask=0027 in the unit',
        },
];

export function checkHost(host: HostFacts): Finding[] {
  return HOST_CHECKS.map((check) => check(host));
}

function gb(bytes: number): string {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}

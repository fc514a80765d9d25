// For tests: queue servers that are more than one process, all on this machine: a master with a replica that three
// Sentinels watch, and a cluster of three masters. Each looks like a single TestServer to whoever uses it; a master
// that is killed is succeeded as in production, within a second or two.

import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { DEFAULT_PREFIX } from '@shoal/contract';
import { closeConnection, connected, openConnection, untilReady } from '../redis/connection.ts';
import { ServerProcess, freePort } from './server-process.ts';

export interface Topology {
  readonly url: string;
  /** Pid of the server that is written to now, as far as was seen. */
  readonly pid: number;
  /** On the server that is written to. */
  command(name: string, ...values: (string | number | Buffer)[]): Promise<unknown>;
  /** SIGKILL of the server that is written to. */
  kill9(): Promise<void>;
  /** Starts again what is dead and waits until all is as it was at the start, whoever is written to now. */
  restart(): Promise<void>;
  /** After kill9: resolves when another server has taken over. */
  succeeded(): Promise<void>;
  /**
   * Another server takes over while the one that was written to lives: a switch by hand. Resolves when that one
   * follows.
   */
  switchOver(): Promise<void>;
  readonly servers: readonly ServerProcess[];
  stop(): Promise<void>;
}

export interface TopologyOptions {
  readonly program: string;
  readonly folder: string;
  /** Of the servers that hold data. */
  readonly args: readonly string[];
  /**
   * How the slots of a cluster are divided. `one-node`: all but two slots on the first, for tests that use many
   * prefixes.
   */
  readonly slots?: 'even' | 'one-node';
  /** Replicas of each master of a cluster. */
  readonly replicas?: 0 | 1;
  /** Hash tag that decides on the node of a cluster. */
  readonly prefix?: string;
  /** A master that says nothing for so long is down. */
  readonly downAfterMs?: number;
}

const MASTER_NAME = 'shoal';
const SENTINELS = 3;
/** Short, so that tests of a failover are; production has 5,000 and more. */
const DOWN_AFTER_MS = 700;
const HEALTHY_WITHIN_MS = 30_000;

export async function startSentinels(options: TopologyOptions): Promise<Topology> {
  const { program, folder, downAfterMs = DOWN_AFTER_MS } = options;
  const ports = await Promise.all(Array.from({ length: 2 }, freePort));
  const servers = ports.map(
    (port, index) =>
      new ServerProcess(
        program,
        [
          '--bind',
          '127.0.0.1',
          '--port',
          String(port),
          '--dir',
          folder,
          ...options.args,
          '--appenddirname',
          `aof-${port}`,
          '--dbfilename',
          `${port}.rdb`,
          '--repl-diskless-sync-delay',
          '0',
          ...(index === 0 ? [] : ['--replicaof', `127.0.0.1 ${ports[0]}`]),
        ],
        port,
      ),
  );
  for (const server of servers) await server.start();
  const sentinels = await Promise.all(
    Array.from({ length: SENTINELS }, () => startSentinel(program, folder, ports[0]!, downAfterMs)),
  );
  const url = `redis+sentinel://${sentinels.map(({ port }) => `127.0.0.1:${port}`).join(',')}/${MASTER_NAME}`;
  return assemble({
    ...options,
    url,
    servers,
    others: sentinels,
    isHealthy: () => demoteReturned(sentinels, servers).then(() => sentinelsAgree(sentinels)),
    switchOver: () => ask(sentinels[0]!, ['SENTINEL', 'FAILOVER', MASTER_NAME]),
  });
}

async function startSentinel(
  program: string,
  folder: string,
  masterPort: number,
  downAfterMs: number,
): Promise<ServerProcess> {
  const port = await freePort();
  const file = join(folder, `sentinel-${port}.conf`);
  const monitor = [
    `monitor ${MASTER_NAME} 127.0.0.1 ${masterPort} 2`,
    `down-after-milliseconds ${MASTER_NAME} ${downAfterMs}`,
    `failover-timeout ${MASTER_NAME} 4000`,
  ];
  await writeFile(
    file,
    [`port ${port}`, 'bind 127.0.0.1', `dir ${folder}`, ...monitor.map((line) => `sentinel ${line}`), ''].join('\n'),
  );
  const sentinel = new ServerProcess(program, [file, '--sentinel'], port);
  await sentinel.start();
  return sentinel;
}

/** A master that comes back after it was replaced is told so at once; a Sentinel would do it some ten seconds later. */
async function demoteReturned(sentinels: readonly ServerProcess[], servers: readonly ServerProcess[]): Promise<void> {
  const named = await Promise.all(
    sentinels.map((sentinel) => ask(sentinel, ['SENTINEL', 'GET-MASTER-ADDR-BY-NAME', MASTER_NAME])),
  );
  const [masterPort = 0, ...others] = new Set(
    named.map((address) => (Array.isArray(address) ? Number(address[1]) : 0)),
  );
  if (others.length > 0) return; // a failover is under way
  for (const server of servers) {
    if (!server.isRunning || server.port === masterPort) continue;
    if (String(await ask(server, ['INFO', 'replication'])).includes('role:master'))
      await ask(server, ['REPLICAOF', '127.0.0.1', masterPort]);
  }
}

/** Every Sentinel knows the others, one live master and its live replica. */
async function sentinelsAgree(sentinels: readonly ServerProcess[]): Promise<boolean> {
  const masters = new Set<string>();
  for (const sentinel of sentinels) {
    const master = pairs(await ask(sentinel, ['SENTINEL', 'MASTER', MASTER_NAME]));
    const replicas = await ask(sentinel, ['SENTINEL', 'REPLICAS', MASTER_NAME]);
    const isLinked =
      Array.isArray(replicas) &&
      replicas.some(
        (replica) => pairs(replica).get('flags') === 'slave' && pairs(replica).get('master-link-status') === 'ok',
      );
    if (master.get('num-other-sentinels') !== String(SENTINELS - 1) || master.get('flags') !== 'master' || !isLinked)
      return false;
    masters.add(master.get('port') ?? '');
  }
  return masters.size === 1;
}

export async function startCluster(options: TopologyOptions): Promise<Topology> {
  const { slots = 'even', replicas = 0 } = options;
  const servers = await Promise.all(Array.from({ length: 3 * (1 + replicas) }, () => clusterNode(options)));
  for (const server of servers) await server.start();
  const masters = servers.slice(0, 3);
  for (const [index, server] of masters.entries()) {
    const [first, last] = slotsOf(index, slots);
    await ask(server, ['CLUSTER', 'ADDSLOTSRANGE', first, last]);
  }
  for (const [index, server] of servers.entries()) {
    await ask(server, ['CLUSTER', 'SET-CONFIG-EPOCH', index + 1]);
    if (index > 0) await ask(servers[0]!, ['CLUSTER', 'MEET', '127.0.0.1', server.port, server.busPort ?? 0]);
  }
  await until('all nodes of the cluster know each other', async () =>
    (await knownNodes(servers)).every((known) => known === servers.length),
  );
  for (const [index, replica] of servers.slice(3).entries())
    await ask(replica, ['CLUSTER', 'REPLICATE', String(await ask(masters[index]!, ['CLUSTER', 'MYID']))]);
  const url = `redis+cluster://${servers.map(({ port }) => `127.0.0.1:${port}`).join(',')}`;
  return assemble({
    ...options,
    url,
    servers,
    others: [],
    isHealthy: () => clusterIsWhole(servers, replicas * 3),
    switchOver: async (owner) => {
      const replica = await replicaOf(servers, owner);
      await ask(replica, ['CLUSTER', 'FAILOVER']);
    },
  });
}

async function clusterNode(options: TopologyOptions): Promise<ServerProcess> {
  const { program, folder, args, downAfterMs = DOWN_AFTER_MS } = options;
  const [port, busPort] = [await freePort(), await freePort()];
  const settings = {
    bind: '127.0.0.1',
    port,
    dir: folder,
    appenddirname: `aof-${port}`,
    dbfilename: `${port}.rdb`,
    'cluster-enabled': 'yes',
    'cluster-port': busPort,
    'cluster-config-file': join(folder, `nodes-${port}.conf`),
    'cluster-node-timeout': downAfterMs,
    'cluster-replica-validity-factor': 0,
    'repl-diskless-sync-delay': 0,
  };
  const own = Object.entries(settings).flatMap(([name, value]) => [`--${name}`, String(value)]);
  return new ServerProcess(program, [...own, ...args], port, busPort);
}

function slotsOf(index: number, slots: 'even' | 'one-node'): [number, number] {
  const bounds = slots === 'even' ? [0, 5_461, 10_923, 16_384] : [0, 16_382, 16_383, 16_384];
  return [bounds[index]!, bounds[index + 1]! - 1];
}

async function knownNodes(servers: readonly ServerProcess[]): Promise<number[]> {
  return Promise.all(
    servers.map(async (server) =>
      Number(/cluster_known_nodes:(\d+)/.exec(String(await ask(server, ['CLUSTER', 'INFO'])))?.[1] ?? 0),
    ),
  );
}

/** Every node sees all slots served, and every replica has its master's data. */
async function clusterIsWhole(servers: readonly ServerProcess[], replicas: number): Promise<boolean> {
  const states = await Promise.all(servers.map(async (server) => String(await ask(server, ['CLUSTER', 'INFO']))));
  if (!states.every((state) => state.includes('cluster_state:ok'))) return false;
  const roles = await Promise.all(servers.map(async (server) => String(await ask(server, ['INFO', 'replication']))));
  return (
    roles.filter((role) => role.includes('role:slave') && role.includes('master_link_status:up')).length === replicas
  );
}

async function replicaOf(servers: readonly ServerProcess[], ownerPort: number): Promise<ServerProcess> {
  for (const server of servers)
    if (String(await ask(server, ['INFO', 'replication'])).includes(`master_port:${ownerPort}`)) return server;
  throw new Error(`no replica follows port ${ownerPort}`);
}

interface Parts extends TopologyOptions {
  readonly url: string;
  readonly servers: readonly ServerProcess[];
  readonly others: readonly ServerProcess[];
  isHealthy(): Promise<boolean>;
  switchOver(ownerPort: number): Promise<unknown>;
}

async function assemble(parts: Parts): Promise<Topology> {
  const { url, servers, others, prefix = DEFAULT_PREFIX } = parts;
  const healthy = (): Promise<void> => until(`${url} is healthy`, () => parts.isHealthy().catch(() => false));
  await healthy();
  const control = await connected({ url, prefix, name: 'test-server-control' });
  const findOwner = async (): Promise<ServerProcess> => ownerOf(url, prefix, servers);
  let owner = await findOwner();
  /** Commands without keys would be answered by a replica as well. */
  const moveControl = async (): Promise<void> => {
    owner = await findOwner();
    control.disconnect(true);
    // `once` of node:events would take a first try's error for the end
    await new Promise((resolve) => control.once('ready', resolve));
  };
  return {
    url,
    servers,
    get pid() {
      return owner.pid;
    },
    command: (name, ...values) => control.call(name, ...values),
    async kill9() {
      owner = await findOwner();
      await owner.kill9();
    },
    async restart() {
      if (servers.every(({ isRunning }) => isRunning)) await (await findOwner()).kill9();
      for (const server of servers) if (!server.isRunning) await server.start();
      await healthy();
      await moveControl();
    },
    async succeeded() {
      const before = owner;
      await until('another server took over', async () => (await findOwner().catch(() => before)) !== before);
      await moveControl();
    },
    async switchOver() {
      const before = await findOwner();
      await parts.switchOver(before.port);
      await until('another server took over', async () => (await findOwner()) !== before);
      await untilItFollows(before);
      await moveControl();
    },
    async stop() {
      await closeConnection(control);
      await Promise.all([...others, ...servers].map((server) => server.kill9()));
    },
  };
}

/** Sentinels name the new master first: what the one before still takes is lost. */
async function untilItFollows(before: ServerProcess): Promise<void> {
  await until(`port ${before.port} follows`, async () =>
    String(await ask(before, ['INFO', 'replication'])).includes('role:slave'),
  );
}

/** Asked anew, as every connection does. */
async function ownerOf(url: string, prefix: string, servers: readonly ServerProcess[]): Promise<ServerProcess> {
  const connection = await connected({ url, prefix, name: 'test-topology' });
  const port = Number(/tcp_port:(\d+)/.exec(await connection.info('server'))?.[1]);
  await closeConnection(connection);
  const owner = servers.find((server) => server.port === port);
  if (owner === undefined) throw new Error(`port ${port} is none of the servers`);
  return owner;
}

async function ask(
  server: ServerProcess,
  [name, ...values]: readonly [string, ...(string | number)[]],
): Promise<unknown> {
  const connection = openConnection({ url: server.url, name: 'test-topology' }); // a node without slots has no schema yet
  try {
    await untilReady(connection, server.url);
    return await connection.call(name, ...values);
  } finally {
    await closeConnection(connection);
  }
}

function pairs(reply: unknown): Map<string, string> {
  if (!Array.isArray(reply)) return new Map();
  return new Map(
    reply.flatMap((name: unknown, index) =>
      index % 2 === 0 ? [[String(name), String(reply[index + 1])] as const] : [],
    ),
  );
}

async function until(what: string, look: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + HEALTHY_WITHIN_MS;
  while (!(await look())) {
    if (performance.now() > deadline) throw new Error(`did not come true within ${HEALTHY_WITHIN_MS} ms: ${what}`);
    await sleep(50);
  }
}

// A master is looked for while Sentinels are slow, hang, or say late what was asked of nobody any more.

import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { closeConnection, connected, openConnection, untilReady, type Redis } from './connection.ts';
import { startTestTopology } from '../testing.ts';

const MASTER = 'shoal';
const PATIENCE = { timeout: 60_000 };

/** A connection to a Sentinel through a wire; what the Sentinel says is kept while `held`. */
interface Passing {
  readonly near: Socket;
  readonly far: Socket;
  held: Buffer[] | undefined;
  isListening: boolean;
}

/** Before one Sentinel: passes everything on, and keeps its words back when told to. */
class SlowWire {
  readonly port: number;
  private readonly server: Server;
  private readonly open = new Set<Passing>();
  private isSlow = false;

  private constructor(server: Server) {
    this.server = server;
    this.port = (server.address() as AddressInfo).port;
  }

  static async before(sentinelPort: number): Promise<SlowWire> {
    const server = createServer({ allowHalfOpen: true }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const wire = new SlowWire(server);
    server.on('connection', (near) => wire.pass(near, connect(sentinelPort, '127.0.0.1')));
    return wire;
  }

  get listeners(): number {
    return [...this.open].filter(({ isListening }) => isListening).length;
  }

  /** Who hears of a new master through it now; they and who comes hear nothing until they are let go. */
  slowDown(): Passing[] {
    this.isSlow = true;
    for (const passing of this.open) passing.held = [];
    return [...this.open];
  }

  letGo(passings: Iterable<Passing> = this.open): void {
    if (passings === this.open) this.isSlow = false;
    for (const passing of passings) {
      for (const bytes of passing.held ?? []) passing.near.write(bytes);
      passing.held = undefined;
      if (passing.near.readableEnded) passing.far.end();
    }
  }

  close(): void {
    for (const { near } of this.open) near.destroy();
    this.server.close();
  }

  private pass(near: Socket, far: Socket): void {
    const passing: Passing = { near, far, held: this.isSlow ? [] : undefined, isListening: false };
    this.open.add(passing);
    near.on('data', (bytes) => far.write(bytes));
    far.on('data', (bytes) => {
      passing.isListening ||= bytes.includes('+switch-master');
      if (passing.held === undefined) near.write(bytes);
      else passing.held.push(bytes);
    });
    near.on('end', () => (passing.held === undefined ? far.end() : undefined));
    far.on('end', () => near.end());
    for (const [one, other] of [
      [near, far],
      [far, near],
    ] as const)
      one.on('error', () => other.destroy()).on('close', () => other.destroy());
    near.on('close', () => this.open.delete(passing));
  }
}

let servers: Awaited<ReturnType<typeof startTestTopology>>;
let sentinels: number[];

beforeAll(async () => {
  servers = await startTestTopology('sentinel');
  sentinels = [...servers.url.matchAll(/:(\d+)/g)].map(([, port]) => Number(port));
});
afterAll(() => servers.stop());

const urlOf = (ports: readonly number[]): string =>
  `redis+sentinel://${ports.map((port) => `127.0.0.1:${port}`).join(',')}/${MASTER}`;

async function portOf(connection: Redis): Promise<number> {
  return Number(/tcp_port:(\d+)/.exec(await connection.info('server'))?.[1]);
}

/** By hand, and known to every Sentinel; the old master goes on as one. */
async function replaceMaster(): Promise<void> {
  const asked = sentinels.map((port) => openConnection({ url: `redis://127.0.0.1:${port}`, name: 'test' }));
  const named = (one: Redis): Promise<unknown> => one.call('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', MASTER);
  const before = String(await named(asked[0]!));
  await asked[0]!.call('SENTINEL', 'FAILOVER', MASTER);
  for (const one of asked) await vi.waitUntil(async () => String(await named(one)) !== before, PATIENCE);
  await Promise.all(asked.map(closeConnection));
}

async function withWires(use: (wires: readonly SlowWire[]) => Promise<void>): Promise<void> {
  const wires = await Promise.all(sentinels.map((port) => SlowWire.before(port)));
  try {
    await use(wires);
  } finally {
    for (const wire of wires) wire.close();
  }
}

const socketOf = (connection: Redis): Socket => Reflect.get(connection, 'stream') as Socket;

test('a Sentinel that says late who is master, to whom asks again already, does not end the connection', () =>
  withWires(async (wires) => {
    const connection = await connected({ url: urlOf(wires.map(({ port }) => port)), name: 'test' });
    const before = await portOf(connection);
    await vi.waitUntil(() => wires.every(({ listeners }) => listeners === 1), PATIENCE);
    const late = wires.map((wire) => wire.slowDown());
    await replaceMaster();
    socketOf(connection).destroy();
    await vi.waitUntil(() => connection.status === 'connecting', PATIENCE);
    for (const [at, wire] of wires.entries()) wire.letGo(late[at]);
    await Promise.all(late.flat().map(({ near }) => near.closed || once(near, 'close')));
    for (const wire of wires) wire.letGo();
    await untilReady(connection, 'the new master', { waitMs: 30_000 });
    expect(await portOf(connection)).not.toBe(before);
    await closeConnection(connection);
  }));

test('a wish to leave the server, made while the master is asked for, does not end the connection', () =>
  withWires(async (wires) => {
    for (const wire of wires) wire.slowDown();
    const connection = openConnection({ url: urlOf(wires.map(({ port }) => port)), name: 'test' });
    await vi.waitUntil(() => connection.status === 'connecting', PATIENCE);
    connection.disconnect(true);
    for (const wire of wires) wire.letGo();
    await untilReady(connection, 'the master', { waitMs: 30_000 });
    expect(await connection.ping()).toBe('PONG');
    await closeConnection(connection);
  }));

test('a Sentinel that takes connections and says nothing is passed over, and does not keep a close waiting', () =>
  withWires(async ([mute]) => {
    mute!.slowDown();
    const connection = openConnection({ url: urlOf([mute!.port, ...sentinels]), name: 'test' });
    await untilReady(connection, 'the master', { waitMs: 30_000 });
    await closeConnection(connection);
    const asking = openConnection({ url: urlOf([mute!.port]), name: 'test' });
    await vi.waitUntil(() => asking.status === 'connecting', PATIENCE);
    await closeConnection(asking);
    expect([connection.status, asking.status]).toEqual(['end', 'end']);
  }));

test('a connection that somebody gave us listens to its Sentinels as one of a URL does', () =>
  withWires(async (wires) => {
    const given = { sentinels: wires.map(({ port }) => ({ host: '127.0.0.1', port })), name: MASTER };
    const connection = await connected({ url: given, name: 'test' });
    await expect.poll(() => wires.map(({ listeners }) => listeners), PATIENCE).toEqual([1, 1, 1]);
    await closeConnection(connection);
  }));

// A wire that can go bad: a TCP proxy before a queue server. Connections are chosen by the name that a client gives
// itself (CLIENT SETNAME), so that the two processes of a worker can be told apart. Bytes that vanished are gone: when
// the trouble is over, connections that lost some are closed, as by a peer that has forgotten them.

import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';

export type Trouble = 'half-open' | 'one-way' | 'latency';

const LATENCY_MS = 200;
const NAME = /setname\r\n\$\d+\r\n([^\r]+)\r\n/i;
/** A name comes in the first bytes or never. */
const NAME_WITHIN = 2_048;

/** Bytes of one direction, in order, each not before its time. */
class Lane {
  private readonly queue: { readonly chunk: Buffer; readonly atMs: number }[] = [];
  private timer: NodeJS.Timeout | undefined;
  private readonly to: Socket;

  constructor(to: Socket) {
    this.to = to;
  }

  send(chunk: Buffer, delayMs: number): void {
    this.queue.push({ chunk, atMs: performance.now() + delayMs });
    if (this.timer === undefined) this.pump();
  }

  private pump(): void {
    this.timer = undefined;
    for (;;) {
      const next = this.queue[0];
      if (next === undefined) return;
      const waitMs = next.atMs - performance.now();
      if (waitMs > 0) {
        this.timer = setTimeout(() => this.pump(), waitMs);
        return;
      }
      this.queue.shift();
      if (!this.to.destroyed) this.to.write(next.chunk);
    }
  }
}

class Connection {
  readonly near: Socket;
  readonly far: Socket;
  name = '';
  hasLost = false;
  private said = '';

  constructor(near: Socket, far: Socket, troubleOf: (connection: Connection) => Trouble | undefined) {
    this.near = near;
    this.far = far;
    const [out, back] = [new Lane(far), new Lane(near)];
    near.on('data', (chunk: Buffer) => {
      this.listen(chunk);
      this.pass(out, chunk, troubleOf(this), true);
    });
    far.on('data', (chunk: Buffer) => this.pass(back, chunk, troubleOf(this), false));
    for (const [one, other] of [
      [near, far],
      [far, near],
    ] as const) {
      one.setNoDelay(true);
      one.on('error', () => other.destroy());
      one.on('close', () => {
        if (troubleOf(this) === 'half-open') this.hasLost = true; // the other end does not hear of it
        else other.destroy();
      });
    }
  }

  close(): void {
    this.near.destroy();
    this.far.destroy();
  }

  private pass(lane: Lane, chunk: Buffer, trouble: Trouble | undefined, isRequest: boolean): void {
    if (trouble === 'half-open' || (trouble === 'one-way' && !isRequest)) this.hasLost = true;
    else lane.send(chunk, trouble === 'latency' ? LATENCY_MS : 0);
  }

  private listen(chunk: Buffer): void {
    if (this.name !== '' || this.said.length > NAME_WITHIN) return;
    this.said += chunk.toString('latin1');
    this.name = NAME.exec(this.said)?.[1] ?? '';
  }
}

export class BadWire {
  readonly url: string;
  private readonly server: Server;
  private readonly connections = new Set<Connection>();
  private trouble: Trouble | undefined;
  private which = /^/;

  private constructor(server: Server, url: string) {
    this.server = server;
    this.url = url;
  }

  /** `target`: redis://host:port or unix:///path. A connection that the server refuses is closed. */
  static async open(target: string): Promise<BadWire> {
    const { protocol, hostname, port, pathname } = new URL(target);
    const far = (): Socket => (protocol === 'unix:' ? connect(pathname) : connect(Number(port), hostname));
    const server = createServer();
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const wire = new BadWire(server, `redis://127.0.0.1:${(server.address() as AddressInfo).port}`);
    server.on('connection', (near) => {
      const connection = new Connection(near, far(), (one) => wire.troubleOf(one));
      wire.connections.add(connection);
      near.once('close', () => (connection.hasLost ? undefined : wire.connections.delete(connection)));
    });
    return wire;
  }

  /** From now on for connections whose name matches, those that come included. */
  begin(trouble: Trouble, which = /^/): void {
    this.trouble = trouble;
    this.which = which;
  }

  end(): void {
    this.trouble = undefined;
    for (const connection of this.connections) {
      if (!connection.hasLost) continue;
      connection.close();
      this.connections.delete(connection);
    }
  }

  /** Whether a connection of such a name is open. */
  has(which: RegExp): boolean {
    return [...this.connections].some(({ name, hasLost }) => which.test(name) && !hasLost);
  }

  /** How many were cut. */
  cut(which = /^/): number {
    const chosen = [...this.connections].filter(({ name }) => which.test(name));
    for (const connection of chosen) connection.close();
    return chosen.length;
  }

  async close(): Promise<void> {
    this.cut();
    this.server.close();
    await once(this.server, 'close');
  }

  private troubleOf({ name }: Connection): Trouble | undefined {
    return this.trouble !== undefined && this.which.test(name) ? this.trouble : undefined;
  }
}

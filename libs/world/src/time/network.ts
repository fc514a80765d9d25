// TCP between processes of a world, in place of node:net: connections that take their time, break, refuse and hang. In
// one direction of a connection bytes keep their order and each byte comes once; between connections there is no order.
//
// How a connection breaks: *cut*, both ends hear of it (what was on its way may or may not have arrived: requests that
// were carried out without an answer come of this); *half-open*, neither end hears of it and nothing arrives any more,
// until one of them gives up.

import { EventEmitter } from 'node:events';
import { createRequire, syncBuiltinESMExports } from 'node:module';
import { invariant } from '@shoal/contract';
import type { Random } from './random.ts';
import { presentWorld, type Process, type World } from './world.ts';

/** One end of a connection, as whoever listens has it. */
export interface Session {
  receive(bytes: Buffer): void;
  close(): void;
}

/** What listens: gives a session for each connection, and sends into it by `send`. */
export type Listener = (send: (bytes: Buffer) => void) => Session;

export interface LinkTimes {
  /** Mean time that bytes travel one way, ms. */
  readonly latencyMs: number;
}

interface Written {
  readonly data: Buffer | string;
  readonly encoding: BufferEncoding | undefined;
}

interface OnRead {
  readonly buffer: Uint8Array;
  readonly callback: (count: number, buffer: Uint8Array) => boolean;
}

interface ConnectOptions {
  readonly onread?: OnRead | undefined;
}

/** The server's side, with all connections to it. */
export class Network {
  readonly world: World;
  /** In whose steps bytes are received. */
  readonly host: Process;
  readonly links = new Set<Link>();
  /** Nobody listens: connections are refused. */
  isDown = false;
  latencyMs: number;
  readonly random: Random;
  /** Called after each step in which the server received something. */
  onReceived: () => void = () => undefined;
  private readonly listener: Listener;

  constructor(world: World, host: Process, listener: Listener, { latencyMs }: LinkTimes) {
    this.world = world;
    this.host = host;
    this.listener = listener;
    this.latencyMs = latencyMs;
    this.random = world.random.fork('network');
  }

  open(socket: SimulatedSocket): void {
    const link = new Link(this, socket);
    socket.attach(link);
    this.links.add(link);
    link.begin((send) => this.listener(send));
  }

  /** What the server sent in a step outside of the network, such as by a clock of its own, goes out. */
  flush(): void {
    for (const link of this.links) link.flushReplies();
  }

  /** All connections break, as when the server dies. */
  cutAll(): void {
    for (const link of this.links) link.cut();
  }
}

/** One connection. */
export class Link {
  readonly network: Network;
  readonly socket: SimulatedSocket;
  private session: Session | undefined;
  private isClosed = false;
  private isHalfOpen = false;
  /** The next request is carried out, and its answer is lost with the connection. */
  private losesAnswer = false;
  private lastArrivalMs = { there: 0, back: 0 };
  private replies: Buffer[] = [];
  private requests: Buffer[] = [];

  constructor(network: Network, socket: SimulatedSocket) {
    this.network = network;
    this.socket = socket;
    socket.owner.onDeath.push(() => this.leave());
  }

  begin(listen: (send: (bytes: Buffer) => void) => Session): void {
    const { world, host } = this.network;
    world.at(this.socket.owner, this.arrival('back') + this.travelMs(), 'connected', () => {
      if (this.isClosed) return;
      if (this.network.isDown) {
        this.isClosed = true;
        this.network.links.delete(this);
        return this.socket.fail(refused());
      }
      world.current = host; // who listens reads its own clock
      this.session = listen((bytes) => this.reply(bytes));
      world.current = this.socket.owner;
      this.socket.connected();
    });
  }

  // ---- client to server -----------------------------------------------------------------------------------------

  /** What a client writes within a step arrives together. */
  request(bytes: Buffer): void {
    if (this.isClosed || !this.socket.owner.isAlive) return;
    this.requests.push(bytes);
    if (this.requests.length === 1) this.network.world.atStepEnd(() => this.sendRequests());
  }

  /** Who was stopped in this step writes when it goes on, if it lives then. */
  private sendRequests(): void {
    const { world } = this.network;
    const { owner } = this.socket;
    if (owner.freeAtMs > world.nowMs) world.at(owner, owner.freeAtMs, 'goes on', () => this.flushRequests());
    else this.flushRequests();
  }

  private flushRequests(): void {
    if (this.requests.length === 0) return;
    const bytes = joined(this.requests.splice(0));
    const { world, host } = this.network;
    world.at(
      host,
      this.arrival('there'),
      'request',
      () => {
        if (this.isClosed || this.isHalfOpen || this.session === undefined) return;
        const { losesAnswer } = this;
        this.session.receive(bytes);
        if (losesAnswer) {
          this.replies = [];
          this.cut();
        }
        this.network.flush();
        this.network.onReceived();
      },
      bytes,
    );
  }

  // ---- server to client -----------------------------------------------------------------------------------------

  private reply(bytes: Buffer): void {
    if (!this.isClosed) this.replies.push(bytes);
  }

  flushReplies(): void {
    if (this.replies.length === 0) return;
    const bytes = joined(this.replies.splice(0));
    const at = this.arrival('back');
    const { random } = this.network;
    const cutAt = bytes.length > 1 && random.chance(0.02) ? random.whole(1, bytes.length) : bytes.length;
    this.deliver(at, bytes.subarray(0, cutAt));
    if (cutAt < bytes.length) this.deliver(this.arrival('back'), bytes.subarray(cutAt));
  }

  private deliver(at: number, bytes: Buffer): void {
    this.network.world.at(
      this.socket.owner,
      at,
      'reply',
      () => {
        if (!this.isClosed && !this.isHalfOpen) this.socket.arrived(bytes);
      },
      bytes,
    );
  }

  // ---- ends -----------------------------------------------------------------------------------------------------

  /** Both ends hear of it. */
  cut(): void {
    if (this.isClosed) return;
    this.end();
    this.network.world.after(this.socket.owner, this.travelMs(), 'cut', () => this.socket.fail(reset()));
  }

  /** Nobody hears of it. */
  halfOpen(): void {
    this.isHalfOpen = true;
  }

  /** What is asked next is done, and nobody hears that it was. */
  loseNextAnswer(): void {
    this.losesAnswer = true;
  }

  /** The client's end is closed by itself: in order behind what it has sent. */
  leave(): void {
    const { world, host } = this.network;
    const { owner } = this.socket;
    if (owner.isAlive || owner.freeAtMs <= world.nowMs) this.flushRequests();
    world.at(host, this.arrival('there'), 'goodbye', () => {
      if (this.isHalfOpen) return;
      this.end();
      world.after(this.socket.owner, this.travelMs(), 'goodbye', () => this.socket.closed());
    });
  }

  /** The client's end is gone at once. */
  abandon(): void {
    const { world, host } = this.network;
    const { isClosed } = this;
    this.isClosed = true;
    if (!isClosed) world.after(host, this.travelMs(), 'abandoned', () => this.endSession());
  }

  private end(): void {
    this.isClosed = true;
    this.endSession();
  }

  private endSession(): void {
    this.network.links.delete(this);
    this.session?.close();
    this.session = undefined;
    this.network.flush();
  }

  // ---- times ----------------------------------------------------------------------------------------------------

  private travelMs(): number {
    return this.network.random.longTailed(this.network.latencyMs);
  }

  /** Nothing overtakes in one direction. */
  private arrival(way: 'there' | 'back'): number {
    const ms = Math.max(this.network.world.nowMs + this.travelMs(), this.lastArrivalMs[way]);
    this.lastArrivalMs[way] = ms;
    return ms;
  }
}

/** What node:net's Socket is to the libraries that are simulated; no more of it. */
export class SimulatedSocket extends EventEmitter {
  readonly owner: Process;
  readonly remoteAddress = '127.0.0.1';
  readonly remotePort = 6379;
  connecting = true;
  destroyed = false;
  writable = true;
  private readonly link: Network;
  private readonly onRead: OnRead | undefined;
  private connection: Link | undefined;
  private corks = 0;
  private held: Buffer[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(network: Network, owner: Process, { onread }: ConnectOptions = {}) {
    super();
    this.link = network;
    this.owner = owner;
    this.onRead = onread;
  }

  get writableLength(): number {
    let bytes = 0;
    for (const { length } of this.held) bytes += length;
    return bytes;
  }

  begin(): this {
    this.link.open(this);
    return this;
  }

  attach(link: Link): void {
    this.connection = link;
  }

  // ---- what its owner calls -------------------------------------------------------------------------------------

  write(data: Written['data'], encoding?: Written['encoding']): boolean {
    if (this.destroyed || !this.writable) return false;
    this.held.push(typeof data === 'string' ? Buffer.from(data, encoding) : Buffer.from(data));
    if (this.corks === 0) this.send();
    return true;
  }

  cork(): void {
    this.corks++;
  }

  uncork(): void {
    if (this.corks > 0) this.corks--;
    if (this.corks === 0) this.send();
  }

  end(): this {
    if (!this.writable) return this;
    this.writable = false;
    this.corks = 0;
    this.send();
    this.connection?.leave();
    return this;
  }

  destroy(error?: Error): this {
    if (this.destroyed) return this;
    this.shut();
    this.connection?.abandon();
    process.nextTick(() => {
      if (error !== undefined) this.emit('error', error);
      this.emit('close', error !== undefined);
    });
    return this;
  }

  setTimeout(ms: number, listener?: () => void): this {
    clearTimeout(this.timer);
    if (listener !== undefined) this.once('timeout', listener);
    this.timer = ms > 0 ? setTimeout(() => this.emit('timeout'), ms) : undefined;
    return this;
  }

  setNoDelay(): this {
    return this;
  }

  setKeepAlive(): this {
    return this;
  }

  resume(): this {
    return this;
  }

  pause(): this {
    invariant(false, 'nothing that is simulated stops reading');
  }

  ref(): this {
    return this;
  }

  unref(): this {
    return this;
  }

  // ---- what the network calls -----------------------------------------------------------------------------------

  connected(): void {
    if (this.destroyed) return;
    this.connecting = false;
    this.emit('connect');
    this.emit('ready');
    this.send();
  }

  arrived(bytes: Buffer): void {
    if (this.destroyed) return;
    this.timer?.refresh();
    if (this.onRead === undefined) {
      this.emit('data', bytes);
      return;
    }
    const { buffer, callback } = this.onRead;
    for (let at = 0; at < bytes.length; at += buffer.length)
      callback(bytes.copy(buffer, 0, at, at + buffer.length), buffer);
  }

  fail(error: Error): void {
    if (this.destroyed) return;
    this.shut();
    this.emit('error', error);
    this.emit('close', true);
  }

  closed(): void {
    if (this.destroyed) return;
    this.shut();
    this.emit('end');
    this.emit('close', false);
  }

  private shut(): void {
    this.destroyed = true;
    this.writable = false;
    this.connecting = false;
    this.held = [];
    clearTimeout(this.timer);
  }

  private send(): void {
    if (this.connecting || this.connection === undefined) return;
    for (const bytes of this.held.splice(0)) this.connection.request(bytes);
  }
}

let network: Network | undefined;

/** Where connections lead from now on; undefined: nowhere. */
export function listenOn(listening: Network | undefined): void {
  network = listening;
}

let isPatched = false;

/** To be called before product code is loaded. Calling it again does nothing. */
export function patchNetwork(): void {
  if (isPatched) return;
  isPatched = true;
  void [process.stdout, process.stderr]; // sockets as well, which are made when they are first used
  const net = createRequire(import.meta.url)('node:net') as Record<string, unknown>;
  const connect = (options: ConnectOptions): SimulatedSocket => {
    const world = presentWorld();
    invariant(world !== undefined && network !== undefined, 'connections are made in a world that has a server');
    return new SimulatedSocket(network, world.current, options).begin();
  };
  Object.assign(net, { connect, createConnection: connect, Socket: SimulatedSocket });
  syncBuiltinESMExports();
}

function joined(parts: readonly Buffer[]): Buffer {
  return parts.length === 1 ? parts[0]! : Buffer.concat(parts);
}

function refused(): Error {
  return Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:6379'), { code: 'ECONNREFUSED' });
}

function reset(): Error {
  return Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' });
}

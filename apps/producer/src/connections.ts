// How many connections the HTTP server holds: no more than the setting and the descriptors of this process allow, so
// that it can always take one more. When they are all taken, the one that has been idle longest is closed for the
// newcomer; where none is idle, the newcomer is told to come back. Some are kept from requests for vectors, so that
// health checks are answered whatever the rest do.

import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import type { Logger } from '@shoal/core';

export interface ConnectionLimits {
  /** The setting. */
  readonly most: number;
  /** Descriptors that this process may have; undefined where that is not known. */
  readonly descriptors: number | undefined;
}

/** Connections to the queue server, files, threads, pipes: some 40, and as many again. */
const KEPT_DESCRIPTORS = 96;
/** Of the connections, for what is not a request for vectors. */
const KEPT_FOR_HEALTH = 16;
const SAY_EVERY_MS = 60_000;

export function connectionsFor({ most, descriptors = Number.POSITIVE_INFINITY }: ConnectionLimits): number {
  return Math.max(KEPT_FOR_HEALTH + 4, Math.min(most, descriptors - KEPT_DESCRIPTORS));
}

export class Connections {
  readonly most: number;
  private readonly log: Logger;
  /** Those that wait for nothing, idle longest first. */
  private readonly idle = new Set<Socket>();
  private readonly busy = new Map<Socket, number>();
  private saidMs = Number.NEGATIVE_INFINITY;

  constructor(most: number, log: Logger) {
    this.most = most;
    this.log = log;
  }

  /** `refuse` answers a connection that there is no room for. */
  watch(server: Server, refuse: (socket: Socket) => void): void {
    server.on('connection', (socket: Socket) => {
      if (this.size >= this.most && !this.closeIdlest()) return refuse(socket);
      this.idle.add(socket);
      socket.once('close', () => {
        this.idle.delete(socket);
        this.busy.delete(socket);
      });
    });
  }

  /** Whether another request for vectors may keep its connection. */
  get hasRoom(): boolean {
    return this.busy.size <= this.most - KEPT_FOR_HEALTH;
  }

  /** A request has begun on it; one call of `rested` for each. */
  began(socket: Socket): void {
    this.idle.delete(socket);
    this.busy.set(socket, (this.busy.get(socket) ?? 0) + 1);
  }

  rested(socket: Socket): void {
    const left = (this.busy.get(socket) ?? 0) - 1;
    if (left > 0) return void this.busy.set(socket, left);
    this.busy.delete(socket);
    if (!socket.destroyed) this.idle.add(socket);
  }

  private get size(): number {
    return this.idle.size + this.busy.size;
  }

  private closeIdlest(): boolean {
    const [idlest] = this.idle;
    this.say(idlest !== undefined);
    if (idlest === undefined) return false;
    this.idle.delete(idlest);
    idlest.destroy();
    return true;
  }

  private say(isIdleClosed: boolean): void {
    const nowMs = performance.now();
    if (nowMs - this.saidMs < SAY_EVERY_MS) return;
    this.saidMs = nowMs;
    this.log.warn(
      { connections: this.size, most: this.most, busy: this.busy.size },
      isIdleClosed
        ? 'as many connections as there may be: the idlest are closed for new ones'
        : 'as many connections as there may be, and all are busy: new ones are refused',
    );
  }
}

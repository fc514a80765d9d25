// For tests: a way to a server that can be taken away and given back.

import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';

/** Between the client and the store: taken away, nobody listens, and what was open breaks. */
export class Way {
  private readonly target: number;
  private readonly sockets = new Set<Socket>();
  private server: Server | undefined;
  port = 0;

  constructor(target: number) {
    this.target = target;
  }

  async open(): Promise<void> {
    this.server = createServer((socket) => {
      const other = connect(this.target, '127.0.0.1');
      for (const one of [socket, other]) {
        this.sockets.add(one);
        one.on('error', () => undefined).once('close', () => this.sockets.delete(one));
      }
      socket.pipe(other).pipe(socket);
    }).listen(this.port, '127.0.0.1');
    await once(this.server, 'listening');
    this.port = (this.server.address() as AddressInfo).port;
  }

  get connections(): number {
    return this.sockets.size / 2;
  }

  /** What is open breaks; who comes anew is let in. */
  break(): void {
    for (const socket of this.sockets) socket.destroy();
  }

  async close(): Promise<void> {
    const gone = once(this.server!, 'close');
    this.server!.close();
    this.break();
    await gone;
  }
}

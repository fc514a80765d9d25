// For tests: HTTP between whoever asks a store of S3's protocol and the store, which answers what a store at the end of
// its strength does. What it does not answer itself goes through as it came, so that signatures hold.

import { once } from 'node:events';
import { createServer, request, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface S3Refusal {
  /** 503 SlowDown, 403 AccessDenied, 507 StorageFull, … */
  readonly status: number;
  readonly code: string;
  /** Of requests: PUT, GET, DELETE. */
  readonly methods: readonly string[];
  /** Of those alone that carry this header. */
  readonly having?: string | undefined;
  /** So many of them; left out: all. */
  readonly times?: number | undefined;
}

export class S3Gate {
  private readonly server: Server;
  private readonly target: URL;
  private refusal: (S3Refusal & { left: number }) | undefined;
  /** How often each method was refused, since it began to. */
  readonly refused = new Map<string, number>();

  private constructor(target: string) {
    this.target = new URL(target);
    this.server = createServer((asked, answer) => this.handle(asked, answer));
  }

  /** In front of the store at this address. */
  static async open(target: string): Promise<S3Gate> {
    const gate = new S3Gate(target);
    gate.server.listen(0, '127.0.0.1');
    await once(gate.server, 'listening');
    return gate;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  /** Undefined: everything goes through again. */
  refuse(refusal: S3Refusal | undefined): void {
    this.refusal = refusal === undefined ? undefined : { ...refusal, left: refusal.times ?? Infinity };
    this.refused.clear();
  }

  async close(): Promise<void> {
    const gone = once(this.server, 'close');
    this.server.close();
    this.server.closeAllConnections();
    await gone;
  }

  private handle(asked: IncomingMessage, answer: ServerResponse): void {
    const { method = '', url = '', headers } = asked;
    const { refusal } = this;
    if (
      refusal !== undefined &&
      refusal.left > 0 &&
      refusal.methods.includes(method) &&
      (refusal.having === undefined || headers[refusal.having] !== undefined)
    ) {
      refusal.left--;
      this.refused.set(method, (this.refused.get(method) ?? 0) + 1);
      asked.resume();
      asked.once('end', () => answerWith(answer, refusal));
      return;
    }
    const through = request(
      { host: this.target.hostname, port: this.target.port, method, path: url, headers },
      (found) => {
        answer.writeHead(found.statusCode ?? 502, found.headers);
        found.on('error', () => answer.destroy()).pipe(answer);
      },
    );
    through.on('error', () => answer.destroy());
    answer.once('close', () => through.destroy());
    asked.pipe(through);
  }
}

function answerWith(answer: ServerResponse, { status, code }: S3Refusal): void {
  answer.writeHead(status, { 'content-type': 'application/xml' });
  answer.end(`<?xml version="1.0"?><Error><Code>${code}</Code><Message>refused by the gate</Message></Error>`);
}

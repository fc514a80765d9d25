// A connection to a real server that sends many commands at once and hands out replies as the model makes them.

import { connect, type Socket } from 'node:net';
import { once } from 'node:events';
import { Failure, NO_LIST, Status, type Reply } from '../replies.ts';

export class RealServer {
  readonly #socket: Socket;
  #rest: Buffer = Buffer.alloc(0);
  readonly #waiting: { count: number; replies: Reply[]; done: (replies: Reply[]) => void }[] = [];

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.on('data', (bytes) => this.#take(bytes));
  }

  static async connect(port: number, host = '127.0.0.1'): Promise<RealServer> {
    const socket = connect(port, host);
    await once(socket, 'connect');
    return new RealServer(socket);
  }

  /** One reply for each command, in order. */
  ask(commands: readonly (readonly string[])[]): Promise<Reply[]> {
    const text = commands.map(
      (args) => `*${args.length}\r\n${args.map((arg) => `$${arg.length}\r\n${arg}\r\n`).join('')}`,
    );
    return new Promise((done) => {
      this.#waiting.push({ count: commands.length, replies: [], done });
      this.#socket.write(Buffer.from(text.join(''), 'latin1'));
    });
  }

  close(): void {
    this.#socket.destroy();
  }

  #take(bytes: Buffer): void {
    const all = this.#rest.length === 0 ? bytes : Buffer.concat([this.#rest, bytes]);
    let at = 0;
    for (let [first] = this.#waiting; first !== undefined; [first] = this.#waiting) {
      const found = replyAt(all, at);
      if (found === undefined) break;
      at = found.end;
      first.replies.push(found.reply);
      if (first.replies.length < first.count) continue;
      this.#waiting.shift();
      first.done(first.replies);
    }
    this.#rest = all.subarray(at);
  }
}

function replyAt(bytes: Buffer, from: number): { reply: Reply; end: number } | undefined {
  const lineEnd = bytes.indexOf('\r\n', from);
  if (lineEnd < 0) return undefined;
  const line = bytes.toString('latin1', from + 1, lineEnd);
  const end = lineEnd + 2;
  switch (String.fromCharCode(bytes[from]!)) {
    case '+':
      return { reply: new Status(line), end };
    case '-':
      return { reply: new Failure(line), end };
    case ':':
      return { reply: Number(line), end };
    case '$': {
      const length = Number(line);
      if (length < 0) return { reply: null, end };
      if (end + length + 2 > bytes.length) return undefined;
      return { reply: bytes.toString('latin1', end, end + length), end: end + length + 2 };
    }
    case '*': {
      if (line === '-1') return { reply: NO_LIST, end };
      const list: Reply[] = [];
      let at = end;
      for (let index = 0; index < Number(line); index++) {
        const found = replyAt(bytes, at);
        if (found === undefined) return undefined;
        list.push(found.reply);
        at = found.end;
      }
      return { reply: list, end: at };
    }
    default:
      throw new Error(`the real server answers what is not RESP2: ${line}`);
  }
}

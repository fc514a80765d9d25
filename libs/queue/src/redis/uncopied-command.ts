// A command whose large values go to the socket as they are. ioredis makes one buffer of a command, and another of all
// commands of a pipeline: at 700 results of 393 KB a second that was a sixth of the executor's main thread, with what
// it left to collect.
//
// Why: docs/decisions/queue.md#large-values-go-to-the-socket-as-they-are

import { Writable } from 'node:stream';
import { Command } from 'ioredis';

export class UncopiedCommand extends Command {
  constructor(name: string, values: readonly (string | Buffer | number)[]) {
    super(name, [...values], { replyEncoding: null }); // replies as Buffers
  }

  /**
   * Called when it is sent, and again when it is sent anew. The socket is corked then (connection.ts), so that all
   * parts leave in one write.
   */
  override toWritable(socket: object): string | Buffer {
    if (!(socket instanceof Writable)) return super.toWritable(socket);
    let text = `*${this.args.length + 1}\r\n$${Buffer.byteLength(this.name)}\r\n${this.name}\r\n`;
    for (const value of this.args) {
      if (Buffer.isBuffer(value)) {
        socket.write(`${text}$${value.length}\r\n`);
        socket.write(value);
        text = '\r\n';
      } else {
        text += `$${Buffer.byteLength(String(value))}\r\n${String(value)}\r\n`;
      }
    }
    return text;
  }
}

// The wire: RESP2. Requests are lists of strings; a line that begins otherwise is refused, since no client of the product
// sends such.

import { Failure, NoList, Status, type Reply } from './replies.ts';

const [CR, STAR, DOLLAR] = [13, 42, 36];

/** Takes bytes in any cut and hands out whole requests. */
export class RequestReader {
  #rest: Buffer = Buffer.alloc(0);

  /** Throws Error for what is no request. */
  read(bytes: Buffer): string[][] {
    const all = this.#rest.length === 0 ? bytes : Buffer.concat([this.#rest, bytes]);
    const requests: string[][] = [];
    let at = 0;
    while (at < all.length) {
      const found = requestAt(all, at);
      if (found === undefined) break;
      if (found.args.length > 0) requests.push(found.args);
      at = found.end;
    }
    this.#rest = Buffer.from(all.subarray(at));
    return requests;
  }
}

function requestAt(bytes: Buffer, from: number): { args: string[]; end: number } | undefined {
  if (bytes[from] !== STAR) throw new Error('Protocol error: the model takes lists of strings only');
  const count = numberAt(bytes, from + 1);
  if (count === undefined) return undefined;
  let at = count.end;
  const args: string[] = [];
  for (let index = 0; index < count.value; index++) {
    if (at >= bytes.length) return undefined;
    if (bytes[at] !== DOLLAR) throw new Error(`Protocol error: expected '$', got '${String.fromCharCode(bytes[at]!)}'`);
    const length = numberAt(bytes, at + 1);
    if (length === undefined || length.end + length.value + 2 > bytes.length) return undefined;
    args.push(bytes.toString('latin1', length.end, length.end + length.value));
    at = length.end + length.value + 2;
  }
  return { args, end: at };
}

function numberAt(bytes: Buffer, from: number): { value: number; end: number } | undefined {
  const end = bytes.indexOf(CR, from);
  if (end < 0 || end + 1 >= bytes.length) return undefined;
  const value = Number(bytes.toString('latin1', from, end));
  if (!Number.isInteger(value)) throw new Error('Protocol error: invalid multibulk length');
  return { value, end: end + 2 };
}

/** The bytes of a reply. */
export function encodeReply(reply: Reply): Buffer {
  return Buffer.from(textOf(reply), 'latin1');
}

function textOf(reply: Reply): string {
  if (typeof reply === 'string') return `$${reply.length}\r\n${reply}\r\n`;
  if (typeof reply === 'number') return `:${reply}\r\n`;
  if (reply === null) return '$-1\r\n';
  if (reply instanceof Status) return `+${reply.text}\r\n`;
  if (reply instanceof Failure) return `-${reply.text.replaceAll(/[\r\n]+/g, ' ')}\r\n`;
  if (reply instanceof NoList) return '*-1\r\n';
  return `*${reply.length}\r\n${reply.map(textOf).join('')}`;
}

// How large replies are read: each string of 8 KB or more straight into a pooled buffer. Node gives every
// piece of 64 KB that a socket reads memory of its own, and ioredis joins those of a string into another: twice the
// bytes, all of them garbage at once. At 800 results of 98 KB a second V8 collected the whole heap of their reader up
// to ten times a second (2-core EPYC, 2026-11). Here the socket reads into one buffer, and what is passed on is cut so
// that the decoder finds a large string whole in a piece.
//
// Why: docs/decisions/queue.md#large-replies-are-read-into-pooled-buffers

import { connect, type NetConnectOpts, type Socket } from 'node:net';
import { RESULT_HEADER_BYTES } from '@shoal/contract';
import { SMALLEST_POOLED_BYTES } from '@shoal/core/base';
import type { BufferPool } from '@shoal/core/base';
import { AbstractConnector, type RedisOptions } from 'ioredis';

/** So much can be read at once: two results of 64 × 384. */
const READ_BYTES = 262_144;
/** What a server may store in a string; a longer one is not believed. */
const LARGEST_BYTES = 536_870_912;
const LINE_END = 10;
/**
 * "$", "=" and "!": a line with a length, behind it so many bytes and a line's end. Everything else of RESP2 and RESP3
 * is lines alone.
 */
const WITH_LENGTH = new Set([36, 61, 33]);
/** A line that announces a string has a type and a length in so many bytes; of longer lines no more is kept. */
const HEAD_BYTES = 24;

/** Cuts what a server sends, for one socket from its first byte on. */
export class LargeReplyReader {
  private readonly pool: BufferPool;
  private readonly pass: (piece: Buffer) => void;
  /** The beginning of a line whose end has not come. */
  private head = '';
  /** Bytes that belong to a small string. */
  private skipped = 0;
  private large: Buffer | undefined;
  private filled = 0;

  /** `pass` gets every byte once, in order, in memory that nobody writes to again unless it goes back to the pool. */
  constructor(pool: BufferPool, pass: (piece: Buffer) => void) {
    this.pool = pool;
    this.pass = pass;
  }

  /** `bytes` may be written over as soon as this returns. */
  add(bytes: Buffer): void {
    let passed = 0;
    let at = 0;
    while (at < bytes.length) {
      if (this.large !== undefined) {
        at += this.fill(this.large, bytes.subarray(at));
        passed = at;
      } else if (this.skipped > 0) {
        const step = Math.min(this.skipped, bytes.length - at);
        this.skipped -= step;
        at += step;
      } else {
        at = this.readLine(bytes, at);
        if (this.large !== undefined) this.passCopy(bytes, passed, at);
      }
    }
    if (this.large === undefined) this.passCopy(bytes, passed, at);
  }

  private passCopy(bytes: Buffer, from: number, to: number): void {
    if (to > from) this.pass(Buffer.from(bytes.subarray(from, to)));
  }

  private fill(large: Buffer, bytes: Buffer): number {
    const taken = bytes.copy(large, this.filled);
    this.filled += taken;
    if (this.filled === large.length) {
      this.large = undefined;
      this.pass(large);
    }
    return taken;
  }

  /** Where it ends, or the end of what is there. */
  private readLine(bytes: Buffer, from: number): number {
    const end = bytes.indexOf(LINE_END, from);
    const to = end < 0 ? bytes.length : end + 1;
    if (this.head !== '' || WITH_LENGTH.has(bytes[from]!))
      this.head += bytes.toString('latin1', from, Math.min(to, from + HEAD_BYTES));
    if (end < 0) {
      if (this.head === '') this.head = ' '; // of another type: nothing in it is a length
      return to;
    }
    const length = WITH_LENGTH.has(this.head.charCodeAt(0)) ? Number(this.head.slice(1)) : Number.NaN;
    this.head = '';
    if (length >= SMALLEST_POOLED_BYTES && length <= LARGEST_BYTES) {
      this.large = Buffer.from(this.pool.take(length + 2 - RESULT_HEADER_BYTES).buffer, 0, length + 2);
      this.filled = 0;
    } else if (length >= 0) {
      this.skipped = length + 2;
    }
    return to;
  }
}

/** A plain connection whose replies are cut by LargeReplyReader. */
export function connectPooled(where: NetConnectOpts, pool: BufferPool): Socket {
  const pieces = new LargeReplyReader(pool, (piece) => socket.emit('data', piece));
  const socket = connect({
    ...where,
    onread: {
      buffer: Buffer.allocUnsafeSlow(READ_BYTES),
      callback: (count, buffer) => {
        pieces.add(Buffer.from(buffer.buffer, buffer.byteOffset, count));
        return true;
      },
    },
  });
  return socket;
}

/** A class, because ioredis wants to construct it. */
export function largeReplyConnector(pool: BufferPool): NonNullable<RedisOptions['Connector']> {
  return class extends LargeReplyConnector {
    constructor(options: unknown) {
      super(options as RedisOptions, pool);
    }
  };
}

/** Connects to one server without TLS, as ioredis' own connector does. */
class LargeReplyConnector extends AbstractConnector {
  readonly #where: NetConnectOpts;
  readonly #pool: BufferPool;

  constructor(
    { disconnectTimeout = 0, path, host = 'localhost', port = 6_379, family = 0 }: RedisOptions,
    pool: BufferPool,
  ) {
    super(disconnectTimeout);
    this.#where = path ? { path } : { host, port, family };
    this.#pool = pool;
  }

  async connect(): Promise<Socket> {
    this.connecting = true;
    await Promise.resolve(); // as ioredis does: whoever asked for it may still call it off
    if (!this.connecting) throw new Error('Connection is closed.');
    const stream = connectPooled(this.#where, this.#pool);
    stream.once('error', (error: Error) => (this.firstError = error));
    this.stream = stream;
    return stream;
  }
}

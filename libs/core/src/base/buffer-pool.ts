// Memory for results, used again: 800 results of 98 KB a second, each in memory of its own, made V8 collect its whole
// heap three times a second, for 13 ms each (2-core EPYC, 2026-11). A buffer is given back by the part that took it.
// One that never comes back is collected. Knows nothing of what lies in them.

import { RESULT_HEADER_BYTES, bufferForBody } from '@shoal/contract';

/** Below it, what is allocated anew costs nothing that was measured. */
export const SMALLEST_POOLED_BYTES = 8_192;
/** Above it, few fit what may be kept. */
const LARGEST_POOLED_BYTES = 4_194_304;
const MOST_IDLE_BYTES = 33_554_432;

export class BufferPool {
  private idle = new Map<number, ArrayBuffer[]>();
  private idleBytes = 0;
  /** Handed out and not come back. */
  private readonly leased = new WeakSet<ArrayBufferLike>();

  /**
   * Memory for the body of a result, with room for a header in front of it, and not set to 0. Sizes are rounded up by
   * at most an eighth, so that results of about the same size share.
   */
  take(bytes: number): Uint8Array<ArrayBuffer> {
    if (bytes < SMALLEST_POOLED_BYTES || bytes > LARGEST_POOLED_BYTES) return bufferForBody(bytes);
    const size = roundedUp(bytes);
    const idle = this.idle.get(size)?.pop();
    if (idle !== undefined) this.idleBytes -= size;
    const buffer = idle ?? bufferForBody(size).buffer;
    this.leased.add(buffer);
    return new Uint8Array(buffer, RESULT_HEADER_BYTES, bytes);
  }

  /**
   * Ends a lease: nobody may read or write the buffer any more. Other buffers than those of `take`, and one that is
   * back already, are left alone.
   */
  giveBack(buffer: ArrayBufferLike): void {
    if (!(buffer instanceof ArrayBuffer) || !this.leased.delete(buffer)) return;
    const size = buffer.byteLength - RESULT_HEADER_BYTES;
    if (this.idleBytes + size > MOST_IDLE_BYTES) {
      // sizes that nobody asks for any more would fill it for ever
      this.idle = new Map();
      this.idleBytes = 0;
    }
    const same = this.idle.get(size);
    if (same === undefined) this.idle.set(size, [buffer]);
    else same.push(buffer);
    this.idleBytes += size;
  }
}

function roundedUp(bytes: number): number {
  const step = 2 ** (Math.floor(Math.log2(bytes)) - 3);
  return step * Math.ceil(bytes / step);
}

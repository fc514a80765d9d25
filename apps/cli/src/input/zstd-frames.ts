// Where the frames of a Zstandard file begin and end, by their headers alone. Node's own stream stops behind the first
// frame without a word, and takes a file that is cut for one that has ended (22.23); several frames in a file are what
// parallel compressors and our own outputs write. https://www.rfc-editor.org/rfc/rfc8878

/** A file that ends in the middle of a frame, or has something else in it. */
export class FrameProblem extends Error {}

const MAGIC = 0xfd_2f_b5_28;
/** Frames of metadata, which hold nothing of the file: sixteen numbers that differ in their last digit. */
const SKIPPABLE = 0x18_4d_2a_5;
const RLE_BLOCK = 1;

/** The parts of each frame, as they come; frames without content are left out. Throws FrameProblem. */
export async function* framesOf(chunks: AsyncIterator<Buffer>): AsyncGenerator<AsyncGenerator<Buffer>> {
  const source = new Source(chunks);
  while (!(await source.isAtEnd())) {
    const magic = await source.take(4);
    const number = magic.readUInt32LE();
    if (number >>> 4 === SKIPPABLE) {
      for (let left = (await source.take(4)).readUInt32LE(); left > 0; left -= SKIPPED_BYTES)
        await source.take(Math.min(left, SKIPPED_BYTES));
    } else if (number === MAGIC) yield partsOf(magic, source);
    else throw new FrameProblem('something that is no frame stands behind one');
  }
}

const SKIPPED_BYTES = 64 * 1024;

async function* partsOf(magic: Buffer, source: Source): AsyncGenerator<Buffer> {
  const descriptor = await source.take(1);
  const flags = descriptor[0]!;
  const isSingle = (flags & 0x20) !== 0;
  const sizeBytes = [isSingle ? 1 : 0, 2, 4, 8][flags >> 6]!;
  const rest = await source.take((isSingle ? 0 : 1) + [0, 1, 2, 4][flags & 3]! + sizeBytes);
  yield Buffer.concat([magic, descriptor, rest]);
  for (let isLast = false; !isLast;) {
    const header = await source.take(3);
    const value = header.readUIntLE(0, 3);
    isLast = (value & 1) === 1;
    const bytes = ((value >> 1) & 3) === RLE_BLOCK ? 1 : value >> 3;
    yield Buffer.concat([header, await source.take(bytes)]);
  }
  if ((flags & 4) !== 0) yield source.take(4);
}

/** Bytes in pieces of the sizes that are asked for. */
class Source {
  readonly #chunks: AsyncIterator<Buffer>;
  #held: Buffer = Buffer.alloc(0);

  constructor(chunks: AsyncIterator<Buffer>) {
    this.#chunks = chunks;
  }

  async isAtEnd(): Promise<boolean> {
    return this.#held.length === 0 && !(await this.#more());
  }

  async take(bytes: number): Promise<Buffer> {
    while (this.#held.length < bytes)
      if (!(await this.#more())) throw new FrameProblem('the file ends in the middle of a frame');
    const taken = this.#held.subarray(0, bytes);
    this.#held = this.#held.subarray(bytes);
    return taken;
  }

  async #more(): Promise<boolean> {
    for (;;) {
      const { value, done } = await this.#chunks.next();
      if (done === true) return false;
      if (value.length === 0) continue;
      this.#held = this.#held.length === 0 ? value : Buffer.concat([this.#held, value]);
      return true;
    }
  }
}

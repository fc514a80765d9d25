// The vectors of passages, kept by content in one file of the cache folder, so that a second `shoal try` embeds only
// what has changed. A cache and nothing else: a file that is damaged or of another model is ignored and made anew.
//
//   "SHV1" | dims u32 | rows u32 | 4 zero | rows × 32 bytes sha256 | rows × dims f32       little-endian

import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';

const MAGIC = 0x3156_4853; // "SHV1"
const HEADER_BYTES = 16;
const KEY_BYTES = 32;
/** Vectors of passages that are gone are kept up to here (75 MB at 384 dims): `--all` and back costs nothing. */
const MOST_KEPT = 50_000;

export class VectorStore {
  readonly #path: string;
  readonly #dims: number;
  readonly #vectors: Map<string, Float32Array>;
  #hasChanged = false;

  private constructor(path: string, dims: number, vectors: Map<string, Float32Array>) {
    this.#path = path;
    this.#dims = dims;
    this.#vectors = vectors;
  }

  static async open(path: string, dims: number): Promise<VectorStore> {
    const bytes = await readFile(path).catch(() => undefined);
    return new VectorStore(path, dims, bytes === undefined ? new Map() : decode(bytes, dims));
  }

  get(key: string): Float32Array | undefined {
    return this.#vectors.get(key);
  }

  /** Keeps a copy. */
  set(key: string, vector: Float32Array): void {
    this.#vectors.set(key, vector.slice());
    this.#hasChanged = true;
  }

  /** Writes the file as a whole, or not at all; when it has grown too large, only what `used` names stays. */
  async save(used: ReadonlySet<string>): Promise<void> {
    if (!this.#hasChanged) return;
    const kept = [...this.#vectors].filter(([key]) => this.#vectors.size <= MOST_KEPT || used.has(key));
    await mkdir(dirname(this.#path), { recursive: true, mode: 0o700 });
    const temporary = `${this.#path}.${process.pid}.new`;
    try {
      await writeFile(temporary, encode(kept, this.#dims));
      await rename(temporary, this.#path);
    } finally {
      await rm(temporary, { force: true });
    }
    this.#hasChanged = false;
  }
}

function encode(vectors: readonly (readonly [string, Float32Array])[], dims: number): Buffer {
  const at = HEADER_BYTES + vectors.length * KEY_BYTES;
  const bytes = Buffer.alloc(at + vectors.length * dims * 4);
  bytes.writeUInt32LE(MAGIC, 0);
  bytes.writeUInt32LE(dims, 4);
  bytes.writeUInt32LE(vectors.length, 8);
  for (const [row, [key, vector]] of vectors.entries()) {
    bytes.write(key, HEADER_BYTES + row * KEY_BYTES, KEY_BYTES, 'hex');
    bytes.set(new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength), at + row * dims * 4);
  }
  return bytes;
}

function decode(bytes: Buffer, dims: number): Map<string, Float32Array> {
  const vectors = new Map<string, Float32Array>();
  if (bytes.length < HEADER_BYTES || bytes.readUInt32LE(0) !== MAGIC || bytes.readUInt32LE(4) !== dims) return vectors;
  const rows = bytes.readUInt32LE(8);
  const at = HEADER_BYTES + rows * KEY_BYTES;
  if (bytes.length !== at + rows * dims * 4) return vectors;
  const values = new Float32Array(Uint8Array.from(bytes.subarray(at)).buffer);
  for (let row = 0; row < rows; row++) {
    vectors.set(
      bytes.toString('hex', HEADER_BYTES + row * KEY_BYTES, HEADER_BYTES + (row + 1) * KEY_BYTES),
      values.subarray(row * dims, (row + 1) * dims),
    );
  }
  return vectors;
}

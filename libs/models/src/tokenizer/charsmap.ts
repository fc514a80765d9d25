// SentencePiece's table of replacements ("precompiled_charsmap"): a double-array trie over UTF-8 bytes and the texts that
// it points to. As the crate `spm_precompiled` reads it: the first, which is the shortest, hit wins; a whole grapheme
// cluster of under 6 bytes is looked up, and replaced by the hit whatever else it has; else every character alone. The
// layout is that of darts-clone (github.com/s-yata/darts-clone). Refuses tables that lead out of themselves.

import { clusterEnd, extendsCluster, standsAsCluster } from './grapheme-clusters.ts';

/** Bytes of a cluster that is looked up as a whole. */
const LONGEST_CLUSTER = 5;

export class Charsmap {
  readonly #trie: Uint32Array;
  readonly #texts: Buffer;
  /** By code point: the character is kept, or is replaced. */
  readonly #isKept = new Uint8Array(0x110000);
  readonly #replaced = new Map<number, string>();
  readonly #keepsPrintable: boolean;

  /** `problem` says what is wrong with the table, and throws. */
  constructor(base64: string, problem: (what: string) => never) {
    if (!/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(base64)) problem('is not base64');
    const blob = Buffer.from(base64, 'base64');
    const size = blob.length < 4 ? 0 : blob.readUInt32LE(0);
    if (blob.length < 4 || size % 4 !== 0 || size < 4 || size > blob.length - 4) problem(`says ${size} bytes of trie`);
    this.#trie = new Uint32Array(Uint8Array.from(blob.subarray(4, 4 + size)).buffer);
    this.#texts = blob.subarray(4 + size);
    if (!isUtf8(this.#texts)) problem('has replacements that are not UTF-8');
    this.#expectSound(problem);
    let keepsPrintable = true;
    for (let point = 0x20; point < 0x7f; point++) if (!this.keeps(point)) keepsPrintable = false;
    this.#keepsPrintable = keepsPrintable;
  }

  /** What becomes of this text. It must be well-formed. */
  normalize(text: string): string {
    if (this.#keepsPrintable && /^[\x20-\x7e]*$/.test(text)) return text;
    let made = '';
    let start = 0; // of what is kept and not copied yet
    for (let at = 0; at < text.length;) {
      const point = text.codePointAt(at)!;
      let end = at + (point > 0xffff ? 2 : 1);
      const isAlone = standsAsCluster(point) && !(end < text.length && mayGoOn(point, text.codePointAt(end)!));
      if (!isAlone) end = clusterEnd(text, at);
      if (isAlone && this.keeps(point)) {
        at = end;
        continue;
      }
      made += text.slice(start, at) + this.#cluster(text.slice(at, end));
      start = at = end;
    }
    return start === 0 ? text : made + text.slice(start);
  }

  /** Whether this character alone stays as it is. */
  keeps(point: number): boolean {
    if (this.#isKept[point] === 0) {
      const char = String.fromCodePoint(point);
      const found = this.#find(Buffer.from(char));
      if (found !== undefined) this.#replaced.set(point, found);
      this.#isKept[point] = found === undefined || found === char ? 1 : 2;
    }
    return this.#isKept[point] === 1;
  }

  #char(point: number): string {
    return this.keeps(point) ? String.fromCodePoint(point) : this.#replaced.get(point)!;
  }

  #cluster(cluster: string): string {
    if (cluster.length <= LONGEST_CLUSTER) {
      const bytes = Buffer.from(cluster);
      const found = bytes.length > LONGEST_CLUSTER ? undefined : this.#find(bytes);
      if (found !== undefined) return found;
    }
    let made = '';
    for (const char of cluster) made += this.#char(char.codePointAt(0)!);
    return made;
  }

  /** The replacement of the shortest beginning of these bytes that has one. */
  #find(bytes: Uint8Array): string | undefined {
    const trie = this.#trie;
    let node = offsetOf(trie[0]!);
    for (const byte of bytes) {
      if (byte === 0) return undefined;
      node ^= byte;
      const unit = trie[node];
      if (unit === undefined || labelOf(unit) !== byte) return undefined;
      node ^= offsetOf(unit);
      if (hasLeaf(unit)) return this.#textAt(trie[node]! & 0x7fffffff);
    }
    return undefined;
  }

  #textAt(start: number): string {
    const end = this.#texts.indexOf(0, start);
    return this.#texts.toString('utf8', start, end < 0 ? this.#texts.length : end);
  }

  /** Follows every way through the trie once. */
  #expectSound(problem: (what: string) => never): void {
    const trie = this.#trie;
    const seen = new Uint8Array(trie.length);
    const open = [offsetOf(trie[0]!)];
    for (let node = open.pop(); node !== undefined; node = open.pop()) {
      if (node >= trie.length) problem('leads out of its trie');
      if (seen[node] === 1) continue;
      seen[node] = 1;
      for (let byte = 1; byte < 256; byte++) {
        const unit = trie[node ^ byte];
        if (unit === undefined) problem('leads out of its trie');
        if (labelOf(unit) !== byte) continue;
        const next = (node ^ byte ^ offsetOf(unit)) >>> 0;
        open.push(next);
        if (!hasLeaf(unit)) continue;
        const start = trie[next] === undefined ? problem('leads out of its trie') : trie[next] & 0x7fffffff;
        if (start > this.#texts.length || (this.#texts[start] ?? 0) >> 6 === 2)
          problem('points beside its replacements');
      }
    }
  }
}

/** Whether a cluster of one character that stands for itself may hold the next one, too. */
function mayGoOn(point: number, next: number): boolean {
  return point === 0xd ? next === 0xa : extendsCluster(next);
}

function labelOf(unit: number): number {
  return (unit & 0x800000ff) >>> 0;
}

function hasLeaf(unit: number): boolean {
  return ((unit >>> 8) & 1) === 1;
}

function offsetOf(unit: number): number {
  return ((unit >>> 10) << ((unit & 0x200) >>> 6)) >>> 0;
}

function isUtf8(bytes: Uint8Array): boolean {
  try {
    new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
}

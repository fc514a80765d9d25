// A precompiled charsmap of a few replacements, laid out as SentencePiece's double array is: one block of 256 units a
// node of the trie, so that nothing has to be searched for.

const BLOCK = 256;

interface Node {
  readonly block: number;
  readonly next: Map<number, Node>;
  text: string | undefined;
}

/** Base64, as tokenizer.json has it. */
export function smallCharsmap(replacements: Readonly<Record<string, string>>): string {
  let blocks = 1; // the first one has the unit that leads to the root
  const node = (): Node => ({ block: blocks++, next: new Map(), text: undefined });
  const root = node();
  const nodes = [root];
  for (const [from, to] of Object.entries(replacements)) {
    let at = root;
    for (const byte of Buffer.from(from)) {
      let next = at.next.get(byte);
      if (next === undefined) {
        next = node();
        nodes.push(next);
        at.next.set(byte, next);
      }
      at = next;
    }
    at.text = to;
  }
  const units = new Uint32Array(blocks * BLOCK);
  units[0] = unitTo(0, root, 0);
  let texts = '';
  for (const { block, next, text } of nodes) {
    for (const [byte, child] of next) units[block * BLOCK + byte] = unitTo(block * BLOCK + byte, child, byte);
    if (text === undefined) continue;
    units[block * BLOCK] = 0x80000000 + Buffer.byteLength(texts);
    texts += `${text}\0`;
  }
  const size = Buffer.alloc(4);
  size.writeUInt32LE(units.byteLength);
  return Buffer.concat([size, Buffer.from(units.buffer), Buffer.from(texts)]).toString('base64');
}

function unitTo(place: number, { block, text }: Node, byte: number): number {
  return ((place ^ (block * BLOCK)) << 10) | (text === undefined ? 0 : 1 << 8) | byte;
}

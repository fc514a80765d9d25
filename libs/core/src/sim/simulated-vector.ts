// What a simulated device gives for a row where it serves the queue of a model: a unit vector that follows from the
// row's token ids alone, so that whoever sent a text can tell whether the vector is that text's. It says nothing about
// the text. Two rows that differ have different vectors, but for one pair in 2⁶⁴.

const FNV_OFFSET = 0x811c_9dc5;
const FNV_PRIME = 0x0100_0193;
const SECOND_PRIME = 0x85eb_ca6b;
const GOLDEN = 0x9e37_79b9;

/** `ids`: of the whole row, special tokens included. `dims` values of length 1. */
export function simulatedVector(ids: ArrayLike<number>, dims: number): Float32Array {
  let first = FNV_OFFSET;
  let second = GOLDEN;
  for (let i = 0; i < ids.length; i++) {
    first = Math.imul(first ^ ids[i]!, FNV_PRIME);
    second = Math.imul((second << 13) | (second >>> 19), 5) + Math.imul(ids[i]! + 1, SECOND_PRIME);
  }
  const vector = new Float32Array(dims);
  let squares = 0;
  for (let dim = 0; dim < dims; dim++) {
    first = (first + GOLDEN) | 0;
    const value = (mixed(first ^ mixed(second + dim)) >>> 0) / 2 ** 31 - 1;
    vector[dim] = value;
    squares += value * value;
  }
  const length = Math.sqrt(squares);
  for (let dim = 0; dim < dims; dim++) vector[dim]! /= length;
  return vector;
}

/** Each bit of the result depends on each of the value: the finalizer of MurmurHash3. */
function mixed(value: number): number {
  let bits = value ^ (value >>> 16);
  bits = Math.imul(bits, SECOND_PRIME);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2_ae35);
  return bits ^ (bits >>> 16);
}

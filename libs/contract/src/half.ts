// IEEE 754 binary16: 1 sign, 5 exponent and 10 fraction bits. Whole arrays by their bits, because a result may hold
// 100,000 values.

const ONE_WORD = new Float32Array(1);
const ITS_BITS = new Int32Array(ONE_WORD.buffer); // signed: V8 keeps those in registers as they are
/** The least normal half, as the bits of a float. */
const LEAST_NORMAL = 0x3880_0000;
/** From here on the nearest half is infinity. */
const OVERFLOWS = 0x477f_f000;
/** Between the exponents' biases, 127 and 15. */
const BIAS = (127 - 15) << 23;

/** Each value to a half, rounded to nearest, ties to even; `halves` are as many. */
export type ToHalves = (values: Float32Array, halves: Uint16Array) => void;

/** As `ToHalves` says; into an array of its own where none is given. */
export function toHalves(values: Float32Array, halves: Uint16Array = new Uint16Array(values.length)): Uint16Array {
  const words = new Int32Array(values.buffer, values.byteOffset, values.length);
  for (let i = 0; i < words.length; i++) halves[i] = halfOf(words[i]!);
  return halves;
}

function valueOf(half: number): number {
  const sign = half >> 15 === 0 ? 1 : -1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
}

let table: Float32Array | undefined;

/** The value of each half. */
export function fromHalves(halves: Uint16Array): Float32Array {
  table ??= Float32Array.from({ length: 0x1_0000 }, (_, half) => valueOf(half));
  const values = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) values[i] = table[halves[i]!]!;
  return values;
}

/** `word`: the bits of a float. */
function halfOf(word: number): number {
  const sign = (word >>> 16) & 0x8000;
  const magnitude = word & 0x7fff_ffff;
  if (magnitude >= LEAST_NORMAL && magnitude < OVERFLOWS)
    return sign | ((magnitude - BIAS + 0xfff + ((magnitude >>> 13) & 1)) >>> 13);
  if (magnitude >= OVERFLOWS) return sign | (magnitude > 0x7f80_0000 ? 0x7e00 : 0x7c00);
  ITS_BITS[0] = magnitude;
  return sign | roundEven(ONE_WORD[0]! * 2 ** 24); // steps of 2⁻²⁴
}

function roundEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  return rest > 0.5 || (rest === 0.5 && (floor & 1) === 1) ? floor + 1 : floor;
}

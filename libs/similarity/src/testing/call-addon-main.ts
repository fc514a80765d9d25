// For tests: a process that calls every function of the addon of similarity with sound arguments of which some were
// changed at random, and ends with 0 when each call was computed or thrown. A crash of native code ends it otherwise.
// Arguments: the library, a seed, how many calls.

import { createRequire } from 'node:module';
import type { NativeAddon } from '../engines/native-addon.ts';

const [library = '', seed = '1', calls = '100'] = process.argv.slice(2);
const addon = createRequire(import.meta.url)(library) as NativeAddon;

/** Park and Miller: the same calls for the same seed everywhere. */
let state = Number(seed);
function random(below: number): number {
  state = (state * 48_271) % 2_147_483_647;
  return state % below;
}

const floats = (length: number): Float32Array => Float32Array.from({ length }, (_, at) => (at % 7) - 3);

function rowsOf(dtype: number): { readonly described: unknown[]; readonly rows: number; readonly dims: number } {
  const [rows, dims] = [random(20), 1 + random(40)];
  const stride = dims * [4, 2, 1][dtype]!;
  const described = [new Uint8Array(rows * stride), rows, dims, stride, dtype, floats(rows), 10];
  return { described, rows, dims };
}

/** Sound arguments of each function. */
const SOUND: Readonly<Record<string, () => unknown[]>> = {
  allWithin: () => [floats(random(30)), random(5)],
  lengths: () => {
    const { described, rows } = rowsOf(random(3));
    return [0, random(3), ...described, new Float64Array(rows)];
  },
  topK: () => {
    const { described, dims } = rowsOf(random(3));
    const [queries, k] = [random(4), 1 + random(6)];
    const found = new Uint32Array(queries * (1 + k));
    const scores = new Float64Array(queries * k);
    return [
      0,
      random(3),
      ...described,
      floats(queries * dims),
      queries,
      random(3),
      k,
      found,
      scores,
      new Uint8Array(1),
    ];
  },
  matrix: () => {
    const { described, dims, rows } = rowsOf(random(3));
    const queries = random(4);
    const scores = new Float32Array(queries * rows);
    return [0, random(3), ...described, floats(queries * dims), queries, random(3), scores, new Uint8Array(1)];
  },
  rescore: () => {
    const { described, dims, rows } = rowsOf(random(3));
    const each = rows === 0 ? 0 : random(4);
    const queries = random(4);
    const begin = Uint32Array.from({ length: queries + 1 }, (_, at) => at * each);
    const candidates = Uint32Array.from({ length: queries * each }, () => random(rows));
    const scores = new Float64Array(queries * each);
    return [
      0,
      random(3),
      ...described,
      floats(queries * dims),
      queries,
      random(3),
      begin,
      candidates,
      scores,
      new Uint8Array(1),
    ];
  },
  spread: () => {
    const [nodes, each, columns] = [1 + random(20), random(4), 1 + random(3)];
    const begin = Uint32Array.from({ length: nodes + 1 }, (_, at) => at * each);
    const source = Uint32Array.from({ length: nodes * each }, () => random(nodes));
    const work = 3 * (nodes + nodes * each);
    const [activation, scratch] = [floats(nodes * columns), floats(2 * nodes * columns)];
    const weight = floats(nodes * each);
    return [
      0,
      random(3),
      nodes,
      begin,
      source,
      weight,
      columns,
      0,
      work,
      0.5,
      0.1,
      activation,
      scratch,
      new Uint8Array(1),
    ];
  },
  mapFile: () => ['/nowhere/at/all'],
  isCut: () => [new Uint8Array(random(9))],
};

const bytes = new Uint8Array(65);
const ODD: readonly (() => unknown)[] = [
  ...[undefined, null, true, 'x', '', {}, [], () => 1, Symbol('x'), 7n].map((value) => () => value),
  ...[Number.NaN, Infinity, -Infinity, -1, 0, 1, 1.5, 3, 255, 1e9].map((value) => () => value),
  ...[2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1, 2 ** 32, 2 ** 53, 2 ** 63, 1e300, -(2 ** 31)].map((value) => () => value),
  () => new Uint8Array(0),
  () => new Float32Array(1),
  () => new Float64Array(random(9)),
  () => new Uint32Array(random(9)).fill(2 ** 32 - 1),
  () => new Int16Array(3),
  () => new DataView(new ArrayBuffer(8)),
  () => new ArrayBuffer(8),
  () => bytes.subarray(1), // not aligned to anything
];

for (let call = 0; call < Number(calls); call++) {
  const names = Object.keys(SOUND);
  const name = names[random(names.length)]!;
  const given = SOUND[name]!();
  for (let change = random(3); change > 0; change--) given[random(given.length)] = ODD[random(ODD.length)]!();
  if (random(20) === 0) given.length = random(given.length);
  try {
    await Reflect.apply(Reflect.get(addon, name) as (...args: unknown[]) => unknown, addon, given);
  } catch (error) {
    if (!(error instanceof Error)) throw error;
  }
}
process.stdout.write('done');

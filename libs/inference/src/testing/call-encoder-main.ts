// For tests: a process that calls every function of the encoder's addon, before an encoder is opened, while it is open
// and after it was closed, with sound arguments of which some were changed at random. It ends with 0 when each call was
// computed, refused or thrown; a crash of native code ends it otherwise, and a promise that nobody settles leaves "done"
// unsaid. Arguments: the addon, an encoder library, a seed, how many encoders.

import { createRequire } from 'node:module';

type Call = (...args: unknown[]) => unknown;

const [file = '', library = '', seed = '1', encoders = '10'] = process.argv.slice(2);
const addon = createRequire(import.meta.url)(file) as Readonly<Record<string, Call>>;

/** Park and Miller: the same calls for the same seed everywhere. */
let state = Number(seed);
function random(below: number): number {
  state = (state * 48_271) % 2_147_483_647;
  return state % below;
}

const [HIDDEN, LAYERS, HEADS, WIDE, VOCABULARY, POSITIONS] = [32, 1, 1, 64, 10, 16];
const SIZES = [HIDDEN, LAYERS, HEADS, WIDE, VOCABULARY, POSITIONS, 1e-12, 0, 1, 0, 0, 2, 0];
const OF_EMBEDDINGS = [VOCABULARY * HIDDEN, POSITIONS * HIDDEN, HIDDEN, HIDDEN, HIDDEN];
const OF_ATTENTION = Array.from({ length: 4 }, () => [HIDDEN * HIDDEN, HIDDEN]).flat();
const OF_THE_REST = [HIDDEN, HIDDEN, WIDE * HIDDEN, WIDE, HIDDEN * WIDE, HIDDEN, HIDDEN, HIDDEN];
const WEIGHTS = [...OF_EMBEDDINGS, ...OF_ATTENTION, ...OF_THE_REST].map((length) =>
  new Float32Array(length).fill(0.01),
);

const bytes = new Uint8Array(65);
const ODD: readonly (() => unknown)[] = [
  ...[undefined, null, true, 'x', {}, [], [new Float32Array(1)], () => 1, Symbol('x'), 7n].map((value) => () => value),
  ...[Number.NaN, Infinity, -1, 0, 1, 1.5, 17, 2 ** 20, 2 ** 31 - 1, 2 ** 31, 2 ** 53, 1e300].map((v) => () => v),
  () => new Uint8Array(0),
  () => new Float32Array(1),
  () => new Float64Array(13).fill(random(40)),
  () =>
    Float64Array.from(SIZES, (size) => (random(4) === 0 ? [-1, 0, 1, 33, 2 ** 31 - 1, Number.NaN][random(6)]! : size)),
  () => new Int32Array(random(40)).fill([-1, 0, 9, 10, 2 ** 31 - 1][random(5)]!),
  () => new Uint16Array(3),
  () => new DataView(new ArrayBuffer(8)),
  () => bytes.subarray(1), // not aligned to anything
  () => WEIGHTS.slice(random(22)),
  () => WEIGHTS.with(random(WEIGHTS.length), new Float32Array(random(40))),
];

const sizes = (): Float64Array => Float64Array.from(SIZES);

/** Sound arguments of each function behind the encoder that it gets. */
const SOUND: Readonly<Record<string, (encoder: unknown) => unknown[]>> = {
  open: (encoder) => [encoder, sizes(), [...WEIGHTS], random(3)],
  run: (encoder) => {
    const [rows, width] = [1 + random(4), 1 + random(POSITIONS)];
    const ids = Int32Array.from({ length: rows * width }, () => random(VOCABULARY));
    const lengths = Int32Array.from({ length: rows }, () => 1 + random(width));
    return [encoder, ids, lengths, new Float32Array(rows * HIDDEN), rows, width, random(2) === 0];
  },
  shrink: (encoder) => [encoder],
  bytes: (encoder) => [encoder, sizes(), random(100), random(10)],
  runningMs: (encoder) => [encoder],
  halves: () => [new Float32Array(random(70)).fill(1.5), new Uint16Array(70)],
  checksum: () => [new Uint8Array(random(9))],
  devices: () => [library],
  close: (encoder) => [encoder],
};

async function call(name: string, encoder: unknown, changes: number): Promise<void> {
  const given = SOUND[name]!(encoder);
  for (let change = 0; change < changes; change++) given[random(given.length)] = ODD[random(ODD.length)]!();
  if (random(20) === 0) given.length = random(given.length);
  try {
    await addon[name]!(...given);
  } catch (error) {
    if (!(error instanceof Error)) throw error;
  }
}

for (let left = Number(encoders); left > 0; left--) {
  const encoder = addon['encoder']!(library);
  const names = Object.keys(SOUND).filter((name) => name !== 'close' || random(10) === 0);
  const asked: Promise<void>[] = [];
  for (let calls = 0; calls < 4; calls++) asked.push(call(names[random(names.length)]!, encoder, 1 + random(2)));
  if (random(5) > 0) asked.push(call('open', encoder, 0));
  for (let calls = 0; calls < 30; calls++) asked.push(call(names[random(names.length)]!, encoder, random(3)));
  asked.push(call('close', encoder, 0));
  for (let calls = 0; calls < 4; calls++) asked.push(call(names[random(names.length)]!, encoder, random(2)));
  await Promise.all(asked);
}
process.stdout.write('done');

// The bare engine: what the provider, or the native encoder, gives when nothing else is in the way. The ragged corpus,
// sorted and cut by budgets from 8 k to 256 k padded tokens, through the product's own backend (buffers in shared
// memory, one batch queued behind each that runs); then single shapes. Kinds of graphs, one session and two. Vectors
// are checked against the first kind before the clock.
//
//   engine.ts [--device gpu:0] [--only fused-fp16,native] [--small]

import type { InferenceBackend } from '@shoal/core';
import { leastCosine } from '../similarity/cosine.ts';
import {
  MAX_TOKENS,
  isSmall,
  median,
  openCorpus,
  openSide,
  partArguments,
  round,
  row,
  runBatches,
  sortedBatches,
  type Side,
} from './kit.ts';

const values = partArguments(import.meta.url, { only: { type: 'string' } });
const { model, rows, tokens } = await openCorpus();
const BUDGETS = isSmall ? [2048] : [8192, 16_384, 32_768, 65_536, 131_072, 262_144];
const SHAPES = isSmall
  ? ([
      [1, 16],
      [4, 32],
    ] as const)
  : ([
      [1, 16],
      [32, 128],
      [256, 128],
      [1024, 128],
      [4096, 16],
      [128, 512],
      [256, 512],
    ] as const);
const REPEATS = isSmall ? 1 : 3;
/** kind, sessions, budgets */
const SIDES: readonly (readonly [Side, number, readonly number[]])[] = isSmall
  ? [
      ['fused-fp16', 1, BUDGETS],
      ['fused-fp16', 2, BUDGETS],
      ['native', 1, BUDGETS],
      ['native', 2, BUDGETS],
    ]
  : [
      ['fused-fp16', 1, BUDGETS],
      ['fused-fp16', 2, BUDGETS],
      ['cuda-fp32', 1, [65_536]],
      ['cuda-bf16', 1, [65_536]],
      ['plain-fp16', 1, [65_536]],
      ['native', 1, BUDGETS],
      ['native', 2, BUDGETS],
      ['native-erf', 1, [65_536]],
    ];
let reference: Float32Array | undefined;

for (const [kind, sessions, budgets] of SIDES) {
  if (values.only !== undefined && !String(values.only).split(',').includes(kind)) continue;
  try {
    await measure(kind, sessions, budgets);
  } catch (error) {
    row({ part: 'engine', kind, sessions, failed: error instanceof Error ? error.message : String(error) });
  }
}

async function measure(kind: Side, sessions: number, budgets: readonly number[]): Promise<void> {
  const openedMs = performance.now();
  const backend = await openSide(model, kind, {
    sessions,
    slotRows: 32_768,
    slotTokens: Math.max(...BUDGETS, MAX_TOKENS * 256),
  });
  const openMs = round(performance.now() - openedMs);
  for (const budget of budgets) {
    const batches = sortedBatches(rows, budget);
    const vectors = await runBatches(backend, sessions, rows, batches); // warms up, too
    reference ??= vectors;
    const cosine = leastCosine(vectors, reference, model.dims);
    if (!(cosine > 0.99)) throw new Error(`vectors of ${kind} are not those of the first kind: least cosine ${cosine}`);
    const seconds: number[] = [];
    for (let at = 0; at < REPEATS; at++) {
      const startedMs = performance.now();
      await runBatches(backend, sessions, rows, batches);
      seconds.push((performance.now() - startedMs) / 1000);
    }
    const padded = batches.reduce((sum, batch) => sum + batch.rows.length * batch.width, 0);
    row({
      part: 'engine',
      kind,
      sessions,
      openMs,
      budget,
      runs: batches.length,
      textsPerSecond: round(rows.length / median(seconds)),
      raw: seconds.map((s) => round(rows.length / s)),
      millionTokensPerSecond: round(tokens / median(seconds) / 1e6, 2),
      paddingEfficiency: round(tokens / padded, 3),
      leastCosineToFirst: round(cosine, 7),
    });
  }
  if (sessions === 1) for (const [count, width] of SHAPES) await measureShape(backend, kind, count, width);
  await backend.stop();
}

async function measureShape(backend: InferenceBackend, kind: Side, count: number, width: number): Promise<void> {
  const slot = backend.lend()!;
  for (let at = 0; at < count; at++) {
    slot.lengths[at] = width;
    for (let token = 0; token < width; token++)
      slot.ids[at * width + token] = 1000 + (((at * width + token) * 7919) % 29_000);
  }
  const times: number[] = [];
  for (let at = 0; at < (isSmall ? 2 : 20); at++) {
    const result = await backend.run(slot, { rows: count, width });
    if (!result.ok) throw new Error(result.outOfVram.message);
    if (at >= 3 || isSmall) times.push(result.runMs);
  }
  backend.giveBack(slot);
  row({
    part: 'engine',
    kind,
    shape: `${count}x${width}`,
    runMs: round(median(times), 3),
    leastMs: round(Math.min(...times), 3),
    textsPerSecond: round((count * 1000) / median(times)),
  });
}

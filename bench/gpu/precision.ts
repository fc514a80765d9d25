// How far each precision is from fp32 on real weights, and whether a text's vector depends on its neighbours. fp32 is
// the CPU's; on CUDA fp32 is computed in full, and as tf32 where the environment lets the libraries do so
// (NVIDIA_TF32_OVERRIDE=1).
//
//   precision.ts [--device gpu:0] [--small]

import { availableParallelism } from 'node:os';
import { OrtBackend } from '@shoal/inference';
import type { InferenceBackend } from '@shoal/core';
import { openGraph } from '@shoal/models';
import { leastCosine } from '../similarity/cosine.ts';
import {
  cacheDir,
  isSmall,
  openCorpus,
  openSide,
  partArguments,
  round,
  row,
  sortedBatches,
  widthOf,
  type Side,
} from './kit.ts';

partArguments(import.meta.url, {});
const { model, rows } = await openCorpus(isSmall ? 24 : 1024, 7);
const isTf32 = process.env['NVIDIA_TF32_OVERRIDE'] === '1';
const SLOTS = { slotRows: 8192, slotTokens: 65_536 };
const KINDS: readonly Side[] = isTf32
  ? ['cuda-fp32']
  : isSmall
    ? ['cuda-fp32', 'fused-fp16', 'native']
    : ['native', 'native-erf', 'cuda-fp32', 'cuda-bf16', 'fused-fp16', 'plain-fp16'];
const ALONE = isSmall ? 4 : 256;

const cpu = await OrtBackend.open({
  ...SLOTS,
  graphPath: await openGraph(model, { cacheDir, kind: 'fused-fp32' }),
  dims: model.dims,
  threads: availableParallelism(),
});
const reference = await embed(cpu, 8192);
await cpu.stop();
for (const kind of KINDS) {
  try {
    const backend = await openSide(model, kind, SLOTS);
    const batched = await embed(backend, 65_536);
    const alone = await embedAlone(backend, ALONE);
    row({
      part: 'precision',
      kind: isTf32 ? 'cuda-tf32' : kind,
      texts: rows.length,
      leastCosineToFp32: round(leastCosine(batched, reference, model.dims), 8),
      meanCosineToFp32: round(meanCosine(batched, reference, model.dims), 9),
      aloneTexts: ALONE,
      leastCosineAloneToBatched: round(leastCosine(alone, batched.subarray(0, alone.length), model.dims), 9),
      bitEqualAlone: countEqual(alone, batched, model.dims),
    });
    await backend.stop();
  } catch (error) {
    row({ part: 'precision', kind, failed: error instanceof Error ? error.message : String(error) });
  }
}

async function embed(backend: InferenceBackend, budget: number): Promise<Float32Array> {
  const vectors = new Float32Array(rows.length * model.dims);
  for (const batch of sortedBatches(rows, budget)) {
    const found = await run(
      backend,
      batch.rows.map((index) => rows[index]!),
      batch.width,
    );
    for (const [at, index] of batch.rows.entries())
      vectors.set(found.subarray(at * model.dims, (at + 1) * model.dims), index * model.dims);
  }
  return vectors;
}

async function embedAlone(backend: InferenceBackend, count: number): Promise<Float32Array> {
  const vectors = new Float32Array(count * model.dims);
  for (let index = 0; index < count; index++)
    vectors.set(await run(backend, [rows[index]!], widthOf(rows[index]!.length)), index * model.dims);
  return vectors;
}

async function run(
  backend: InferenceBackend,
  batch: readonly ArrayLike<number>[],
  width: number,
): Promise<Float32Array> {
  const slot = backend.lend()!;
  slot.ids.fill(0, 0, batch.length * width);
  for (const [at, ids] of batch.entries()) {
    slot.ids.set(ids, at * width);
    slot.lengths[at] = ids.length;
  }
  const result = await backend.run(slot, { rows: batch.length, width });
  const vectors = slot.embeddings.slice(0, batch.length * model.dims);
  backend.giveBack(slot);
  if (!result.ok) throw new Error(result.outOfVram.message);
  return vectors;
}

function meanCosine(a: Float32Array, b: Float32Array, dims: number): number {
  let sum = 0;
  for (let at = 0; at < a.length; at += dims)
    sum += leastCosine(a.subarray(at, at + dims), b.subarray(at, at + dims), dims);
  return sum / (a.length / dims);
}

function countEqual(alone: Float32Array, batched: Float32Array, dims: number): number {
  let equal = 0;
  for (let at = 0; at < alone.length; at += dims)
    if (alone.subarray(at, at + dims).every((value, k) => value === batched[at + k])) equal++;
  return equal;
}

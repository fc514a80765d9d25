// Similarity on a GPU through the product's own engines: answers compared with the CPU's first; then both engines over
// sizes around the threshold that the product measures, where the side that it chooses has to be the faster one at half
// of it and at twice, and how many times faster the GPU is beyond. Times are from the call to its promise, copies and
// everything included.
//
//   similarity.ts [--device gpu:0] [--small] [--seconds 80] [--answers 10] [--kinds topk,cosine,rescore,spread]
//   [--threads N]
//
// --answers: seconds of comparing them. --threads: of the CPU; unset: one for each core.
//
// Needs the CUDA library beside the native code (sh native/similarity/build.sh cuda), or SHOAL_CUDA_LIBRARY. With
// --small on a machine without a GPU its stand-in is measured, which says nothing.

import { availableParallelism } from 'node:os';
import { isShoalError } from '@shoal/contract';
import { lowerQuartile } from '@shoal/core/base';
import { Thresholds } from '@shoal/core/similarity';
import {
  CudaEngine,
  cpuEngine,
  kernelsOn,
  matrixOf,
  measureThresholds,
  openCuda,
  rowsOf,
  type Engine,
  type Matrix,
  type RowBlock,
} from '@shoal/similarity';
import { standInLibrary } from '@shoal/similarity/testing';
import { encodeRows } from '../../libs/similarity/src/collections/encode-rows.ts';
import { graphFromEdges, type Graph } from '../../libs/similarity/src/graphs/graph.ts';
import { strideOf } from '../../libs/similarity/src/collections/collection-file.ts';
import { METRICS, ROW_TYPES, type RowType } from '../../libs/similarity/src/engines/vectors.ts';
import { randomFrom } from '../rig/ragged-corpus.ts';
import { device, isSmall, median, partArguments, round, row } from './kit.ts';

const DIMS = 384;
const K = 10;
const MOST_ROWS = isSmall ? 4_096 : 1_000_000;
/** So many times the threshold the ratio is taken. */
const MULTIPLES = [1, 2, 4, 8, 16, 32, 64, 256] as const;
/** One run of the CPU is to take no longer. */
const MOST_CPU_MS = isSmall ? 100 : 300;
const REPEATS = isSmall ? 3 : 15;
/** The library records what is asked for again, and threads that slept wake up: those turns say nothing. */
const UNCOUNTED_TURNS = 4;
/** Turns of both sides end after so long. */
const TURNS_MS = 300;
const graphs = new Map<number, Graph>();
const asked = partArguments(import.meta.url, {
  seconds: { type: 'string', default: '80' },
  answers: { type: 'string', default: isSmall ? '4' : '10' },
  kinds: { type: 'string', default: 'topk,cosine,rescore,spread' },
  threads: { type: 'string', default: String(availableParallelism()) },
});
/** What has not begun by then is left out, and said so. */
const LAST_START_MS = performance.now() + 1_000 * Number(asked.seconds);
const kinds = String(asked.kinds).split(',');

const found = openCuda(isSmall && device === 'cpu' ? standInLibrary() : process.env['SHOAL_CUDA_LIBRARY']);
if (!found.ok) throw new Error(found.reason);
const cpu = cpuEngine({ threads: Number(asked.threads) });
const gpu = new CudaEngine({
  cuda: found.cuda,
  device: 0,
  residentBytes: Math.floor(found.cuda.devices[0]!.freeBytes / 2),
  workBytes: isSmall ? 1 << 24 : 1 << 31,
});
row({
  part: 'similarity: machine',
  gpu: found.cuda.devices[0]!.name,
  library: found.cuda.path,
  cpu: cpu.isa,
  threads: cpu.threads,
});

await compareAnswers();
const rows = { f32: randomRows('f32', MOST_ROWS), f16: randomRows('f16', MOST_ROWS) };
const searches: Search[] = [
  ...(['f32', 'f16'] as const).flatMap((dtype) =>
    [1, 8, 64, 1_000].map((count): Search => ({
      kind: `topk/${dtype}`,
      queries: count,
      most: MOST_ROWS,
      at: (size) => topK(count, slice(rows[dtype], size)),
    })),
  ),
  ...[1, 8, 64].map((count): Search => ({
    kind: 'cosine/f32',
    queries: count,
    most: Math.floor(Math.min(MOST_ROWS, 2 ** 24 / count)),
    at: (size) => matrix(count, slice(rows.f32, size)),
  })),
  ...[1, 8, 64].map((count): Search => ({
    kind: 'rescore/f32',
    queries: count,
    most: Math.floor(MOST_ROWS / 8),
    at: (size) => rescore(count, rows.f32, size),
  })),
  ...[1, 16].map((lanes): Search => ({
    kind: 'spread',
    queries: lanes,
    most: isSmall ? 1_024 : 1 << 20,
    at: (size) => spread(lanes, size),
  })),
].filter(({ kind }) => kinds.includes(kind.split('/')[0]!));
const thresholds = await measured();
const sizes = searches.map((search) => sizeAt(search));
await aroundThresholds();
for (const [i, search] of searches.entries()) await beyond(search, sizes[i]);
await streamed();

// ---- what is run ----------------------------------------------------------------------------------------------------

interface Work {
  /** Values that each query is compared with, as thresholds count them. */
  readonly values: number;
  readonly what: RowBlock | Graph;
  readonly run: (engine: Engine) => Promise<unknown>;
  /** Off the clock. */
  readonly prepare?: () => unknown;
}

function topK(count: number, what: RowBlock): Work {
  const queries = randomQueries(count);
  return {
    values: what.rows * DIMS,
    what,
    run: (engine) => engine.topK(queries, what, 'cosine', Math.min(K, what.rows)),
  };
}

function matrix(count: number, what: RowBlock): Work {
  const queries = randomQueries(count);
  return { values: what.rows * DIMS, what, run: (engine) => engine.matrix(queries, what, 'cosine') };
}

function rescore(count: number, what: RowBlock, size: number): Work {
  const queries = randomQueries(count);
  const begin = Uint32Array.from({ length: count + 1 }, (_, query) => query * size);
  const candidates = Uint32Array.from({ length: count * size }, (_, i) => (Math.imul(i, 0x9e3779b1) >>> 0) % what.rows);
  return { values: size * DIMS, what, run: (engine) => engine.rescore(queries, what, 'cosine', begin, candidates) };
}

function spread(lanes: number, nodes: number): Work {
  const edges = nodes * 20;
  const graph =
    graphs.get(nodes) ??
    graphFromEdges(
      {
        from: Uint32Array.from({ length: edges }, (_, i) => (Math.imul(i, 0x9e3779b1) >>> 0) % nodes),
        to: Uint32Array.from({ length: edges }, (_, i) => i % nodes),
      },
      nodes,
    );
  graphs.set(nodes, graph);
  const seeds = new Float32Array(nodes * lanes);
  return {
    values: 3 * (nodes + edges),
    what: graph,
    prepare: () => seeds.fill(1),
    run: (engine) => engine.spread(graph, lanes, seeds, { steps: 3, decay: 0.05, threshold: 0, k: 1 }),
  };
}

// ---- thresholds -----------------------------------------------------------------------------------------------------

interface Search {
  readonly kind: string;
  readonly queries: number;
  readonly most: number;
  /** The work of a size: rows, candidates of each query, or nodes. */
  readonly at: (size: number) => Work;
}

interface Samples {
  readonly cpu: number[];
  readonly gpu: number[];
}

async function measured(): Promise<Thresholds> {
  const begunMs = performance.now();
  const warmUp = await measureThresholds({ cpu, gpu, mostRows: isSmall ? 1_024 : 65_536 });
  row({
    part: 'similarity: warm-up',
    seconds: round((performance.now() - begunMs) / 1000, 2),
    thresholds: Object.fromEntries(
      warmUp.thresholds.map(({ kind, queries, work }) => [
        `${kind}, ${queries}`,
        work === undefined ? null : Math.round(work),
      ]),
    ),
    passingQueries: warmUp.passingQueries,
  });
  return new Thresholds(warmUp);
}

/** The smallest size that the product gives to the GPU; undefined where it gives none of them. */
function sizeAt({ kind, queries, most, at }: Search): number | undefined {
  const perSize = at(512).values / 512;
  const isGpu = (size: number): boolean => thresholds.sideOf(kind, queries, size * perSize) === 'gpu';
  if (!isGpu(most)) return undefined;
  let [low, high] = [0, most];
  while (high - low > 1) {
    const middle = Math.round((low + high) / 2);
    if (isGpu(middle)) high = middle;
    else low = middle;
  }
  return high;
}

/** At half of each threshold the CPU has to be the faster one, and at twice the GPU. */
async function aroundThresholds(): Promise<void> {
  const byKind: Record<string, object> = {};
  let [kindsLooked, held] = [0, 0];
  for (const [i, search] of searches.entries()) {
    const size = sizes[i];
    if (size === undefined || size < 2 || 2 * size > search.most) continue; // one side has all sizes
    const half = await quiet(search.at(Math.round(size / 2)));
    const twice = await quiet(search.at(2 * size));
    const holds = half.cpuMs <= half.gpuMs && twice.gpuMs <= twice.cpuMs;
    kindsLooked++;
    if (holds) held++;
    byKind[`${search.kind}, ${search.queries}`] = { size, half, twice, holds };
  }
  row({ part: 'similarity: thresholds', kinds: kindsLooked, held, byKind });
}

/** While nobody else wanted the machine: the lower quartile of both sides. */
async function quiet(work: Work): Promise<{ readonly cpuMs: number; readonly gpuMs: number }> {
  const ms = await interleaved(work, 3 * REPEATS);
  return { cpuMs: round(lowerQuartile(ms.cpu), 4), gpuMs: round(lowerQuartile(ms.gpu), 4) };
}

async function beyond({ kind, queries, most, at }: Search, threshold: number | undefined): Promise<void> {
  if (performance.now() > LAST_START_MS)
    return row({ part: 'similarity: beyond', kind, queries, skipped: 'no time was left' });
  const ratios: Record<string, number> = {};
  for (const multiple of threshold === undefined ? [] : MULTIPLES) {
    const size = Math.round(threshold! * multiple);
    if (size > most) break;
    const { cpuMs, gpuMs } = await both(at(size));
    ratios[`×${multiple}`] = round(cpuMs / gpuMs, 2);
    if (cpuMs > MOST_CPU_MS) break;
  }
  row({
    part: 'similarity: beyond',
    kind,
    queries,
    threshold: threshold ?? null,
    ratios,
    ...(await largestOf(at, most)),
  });
}

/** At the largest size that the CPU does in time: the GPU's advantage far above the threshold. */
async function largestOf(at: (size: number) => Work, most: number): Promise<object> {
  const probe = Math.min(most, 2_000);
  const probed = await both(at(probe), 1);
  const size = Math.min(most, Math.max(probe, Math.floor((probe * MOST_CPU_MS) / Math.max(probed.cpuMs, 0.01))));
  const { cpuMs, gpuMs } = await both(at(size), 3);
  return { largest: size, cpuMs: round(cpuMs, 3), gpuMs: round(gpuMs, 3), timesFaster: round(cpuMs / gpuMs, 2) };
}

async function both(work: Work, repeats = REPEATS): Promise<{ readonly cpuMs: number; readonly gpuMs: number }> {
  const ms = await interleaved(work, repeats);
  return { cpuMs: median(ms.cpu), gpuMs: median(ms.gpu) };
}

/** Milliseconds of both in turns, rows on the device already. */
async function interleaved({ what, run, prepare = () => undefined }: Work, repeats: number): Promise<Samples> {
  gpu.keep(what);
  const ms: Samples = { cpu: [], gpu: [] };
  const startedMs = performance.now();
  for (let turn = -UNCOUNTED_TURNS; turn < repeats; turn++) {
    const isLate = performance.now() - startedMs > TURNS_MS;
    if (isLate && turn > 0) break;
    if (isLate) turn = 0;
    for (const [name, engine] of [
      ['gpu', gpu],
      ['cpu', cpu],
    ] as const) {
      prepare();
      const begunMs = performance.now();
      await run(engine);
      const tookMs = performance.now() - begunMs;
      if (turn >= 0) ms[name].push(tookMs);
    }
  }
  gpu.letGo(what);
  return ms;
}

// ---- answers --------------------------------------------------------------------------------------------------------

/**
 * Rows and their order are those of the CPU: staying on the device, passing by, and with little memory for the work.
 */
async function compareAnswers(): Promise<void> {
  const random = randomFrom(11);
  const pick = <Value>(of: readonly Value[]): Value => of[Math.floor(random() * of.length)]!;
  const tight = new CudaEngine({
    cuda: found.ok ? found.cuda : undefined!,
    device: 0,
    residentBytes: 1 << 28,
    workBytes: 1 << 22,
  });
  const exact = kernelsOn(cpu);
  let [cases, refused] = [0, 0];
  const wrong: string[] = [];
  const endMs = performance.now() + 1_000 * Number(asked.answers);
  while (performance.now() < endMs && wrong.length < 5) {
    const [dims, count, dtype, metric] = [
      pick([1, 7, 31, 33, 384, 768, 1_024]),
      pick([1, 7, 31, 33, 257, 4_097, 20_000]),
      pick(ROW_TYPES),
      pick(METRICS),
    ];
    const queries = matrixOf(
      Float32Array.from({ length: pick([1, 3, 8, 33, 130]) * dims }, () => 2 * random() - 1),
      dims,
    );
    const values = Float32Array.from({ length: count * dims }, () => 2 * random() - 1);
    for (let copies = 0; copies < count / 16; copies++) values.copyWithin(Math.floor(random() * count) * dims, 0, dims);
    const encoded = encodeRows(matrixOf(values, dims), dtype);
    const block: RowBlock = {
      dtype,
      rows: count,
      dims,
      strideBytes: strideOf(dtype, dims),
      data: encoded.data,
      ...(dtype === 'i8' ? { scales: encoded.scales } : {}),
    };
    const k = pick([1, 10, 100, count]);
    const wanted = await exact.topK(queries, block, { k, metric });
    const matrixWanted = count * queries.rows <= 1 << 20 ? await exact.cosine(queries, block, { metric }) : undefined;
    for (const [name, engine, keeps] of [
      ['kept', gpu, true],
      ['passing by', gpu, false],
      ['little memory', tight, true],
    ] as const) {
      if (keeps) engine.keep(block);
      const label = `${dtype} ${metric} ${queries.rows} × ${count} × ${dims}, k ${k}, ${name}`;
      const got = await kernelsOn(engine)
        .topK(queries, block, { k, metric })
        .catch((error: unknown) => {
          if (engine !== tight || !isShoalError(error, 'OUT_OF_VRAM')) throw error;
          return undefined; // 4 MiB for its work are too little; the product takes smaller tiles then
        });
      if (got === undefined) refused++;
      else if (got.ids.join() !== wanted.ids.join()) wrong.push(`${label}: other rows`);
      else if (
        got.scores.some(
          (score, i) => Math.abs(score - wanted.scores[i]!) > 1e-6 * Math.max(1, Math.abs(wanted.scores[i]!)),
        )
      )
        wrong.push(`${label}: other scores`);
      const scores =
        matrixWanted === undefined || got === undefined
          ? undefined
          : await kernelsOn(engine).cosine(queries, block, { metric });
      if (
        scores?.some(
          (score, i) => Math.abs(score - matrixWanted![i]!) > 2e-5 * Math.max(1, Math.abs(matrixWanted![i]!)),
        ) === true
      )
        wrong.push(`${label}: another matrix`);
      engine.letGo(block);
    }
    cases++;
  }
  tight.close();
  row({ part: 'similarity: answers', cases, refused, wrong: wrong.length, first: wrong[0] });
  if (wrong.length > 0) throw new Error(wrong.join('; '));
}

/** A collection that may not stay: how much of the link its way takes. */
async function streamed(): Promise<void> {
  const what = slice(rows.f16, MOST_ROWS);
  const queries = randomQueries(64);
  await gpu.topK(queries, what, 'cosine', K);
  const ms: number[] = [];
  for (let turn = 0; turn < 3; turn++) {
    const begunMs = performance.now();
    await gpu.topK(queries, what, 'cosine', K);
    ms.push(performance.now() - begunMs);
  }
  const { deviceUs, copyUs, kernelUs, copiedBytes } = gpu.lastTimes;
  row({
    part: 'similarity: streamed',
    rows: MOST_ROWS,
    queries: 64,
    dtype: 'f16',
    ms: round(median(ms), 2),
    deviceMs: round(deviceUs / 1e3, 2),
    gigabytesPerSecond: round((what.rows * what.strideBytes) / median(ms) / 1e6, 2),
    copyShare: round(copyUs / deviceUs, 3),
    kernelShare: round(kernelUs / deviceUs, 3),
    overlap: round(Math.max(0, copyUs + kernelUs - deviceUs) / Math.min(copyUs, kernelUs), 3),
    copiedBytes,
  });
}

// ---- data -----------------------------------------------------------------------------------------------------------

function randomQueries(count: number): Matrix {
  const random = randomFrom(3);
  return matrixOf(
    Float32Array.from({ length: count * DIMS }, () => 2 * random() - 1),
    DIMS,
  );
}

/** The same numbers in both types, near enough: halves between 0.25 and 2 with both signs. */
function randomRows(dtype: Exclude<RowType, 'i8'>, count: number): RowBlock {
  let state = 7;
  const next = (): number => (state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0);
  if (dtype === 'f32') {
    const values = new Float32Array(count * DIMS);
    for (let i = 0; i < values.length; i++) values[i] = next() / 2 ** 31 - 1;
    return rowsOf(matrixOf(values, DIMS));
  }
  const halves = new Uint16Array(count * DIMS);
  for (let i = 0; i < halves.length; i++) halves[i] = 0x3400 + ((next() >>> 16) & 0x8bff);
  return { dtype, rows: count, dims: DIMS, strideBytes: DIMS * 2, data: new Uint8Array(halves.buffer) };
}

function slice(block: RowBlock, count: number): RowBlock {
  return { ...block, rows: count, data: block.data.subarray(0, count * block.strideBytes) };
}

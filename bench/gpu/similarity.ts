// Similarity on a GPU through the product's own engines: answers compared with the CPU's first; then both engines over
// sizes from far below the break-even to far above it: where the warm-up predicted it, where it is, where predictions
// put it once calls of sizes around it went through the product's choice of a side and corrected them (beside where it
// is right after that), and how many times faster the GPU is beyond. Times are from the call to its promise, copies and
// everything included. Where it is is found for all kinds in turns, several times, because what else a machine does
// comes and goes.
//
//   similarity.ts [--device gpu:0] [--small] [--seconds 80] [--answers 10] [--kinds topk,cosine,rescore,spread]
//   [--rounds 1] [--threads N]
//
// --answers: seconds of comparing them. --rounds: so often are warm-up and the search for where it is repeated, to
//   see what each of them differs by. --threads: of the CPU; unset: one for each core.
//
// Needs the CUDA library beside the native code (sh native/similarity/build.sh cuda), or SHOAL_CUDA_LIBRARY. With
// --small on a machine without a GPU its stand-in is measured, which says nothing.

import { availableParallelism } from 'node:os';
import { isShoalError } from '@shoal/contract';
import { RunTimes, lowerQuartile, risingZero } from '@shoal/core';
import {
  CudaEngine,
  HybridEngine,
  cpuEngine,
  kernelsOn,
  matrixOf,
  measureEngines,
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
/** So many times the break-even the ratio is taken. */
const MULTIPLES = [1, 2, 4, 8, 16, 32, 64, 256] as const;
/** One run of the CPU is to take no longer. */
const MOST_CPU_MS = isSmall ? 100 : 300;
const REPEATS = isSmall ? 3 : 15;
/** The library records what is asked for again, and threads that slept wake up: those turns say nothing. */
const UNCOUNTED_TURNS = 4;
/** Turns of both sides end after so long. */
const TURNS_MS = 300;
/** The sizes that decide where both are as fast, by what was found first; so many times, with so many turns each. */
const CLOSE_FACTORS = [0.72, 0.79, 0.87, 0.95, 1.05, 1.15, 1.26, 1.39] as const;
const CLOSE_PASSES = isSmall ? 2 : 8;
const CLOSE_REPEATS = isSmall ? 3 : 15;
/** Calls that correct predictions, of sizes around the predicted break-even. */
const TRAFFIC_CALLS = isSmall ? 20 : 400;
const TRAFFIC_MULTIPLES = [1 / 8, 1 / 4, 1 / 2, 0.7, 1, 1.4, 2, 4, 8] as const;
const MOST_TRAFFIC_MS = 1_500;
const graphs = new Map<number, Graph>();
const asked = partArguments(import.meta.url, {
  seconds: { type: 'string', default: '80' },
  answers: { type: 'string', default: isSmall ? '4' : '10' },
  kinds: { type: 'string', default: 'topk,cosine,rescore,spread' },
  rounds: { type: 'string', default: '1' },
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
let times = await warmedUp();
let crossings = await measuredCrossings(times);
for (let turn = 1; turn < Number(asked.rounds); turn++) {
  times = await warmedUp();
  crossings = await measuredCrossings(times);
}
const hybrid = new HybridEngine({ cpu, gpu, times });
for (const [i, search] of searches.entries()) await beyond(search, crossings[i]);
await streamed();

// ---- what is run ----------------------------------------------------------------------------------------------------

interface Work {
  /** Values that each query is compared with, as predictions count them. */
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

// ---- break-even -----------------------------------------------------------------------------------------------------

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

async function warmedUp(): Promise<RunTimes> {
  const begunMs = performance.now();
  const measuredTimes = new RunTimes(await measureEngines({ cpu, gpu, mostRows: isSmall ? 1_024 : 65_536 }));
  row({
    part: 'similarity: warm-up',
    seconds: round((performance.now() - begunMs) / 1000, 2),
    breakEvens: Object.fromEntries(
      measuredTimes
        .breakEvens()
        .map(({ kind, queries, work }) => [`${kind}, ${queries}`, work === undefined ? null : Math.round(work)]),
    ),
  });
  return measuredTimes;
}

/** Where the product says that it is, as a size of the search; undefined where one side always wins. */
function predictedBy(measuredTimes: RunTimes, { kind, queries, at }: Search): number | undefined {
  const work = measuredTimes.breakEvens().find((one) => one.kind === kind && one.queries === queries)?.work;
  return work === undefined || work === 0 ? undefined : work / (at(512).values / 512);
}

/**
 * Of every search: looked for around the prediction, then closely, all of them in turns. Undefined: one side always
 * wins.
 */
async function measuredCrossings(measuredTimes: RunTimes): Promise<(number | undefined)[]> {
  const begunMs = performance.now();
  const near: (number | undefined)[] = [];
  for (const search of searches) near.push(await roughCrossing(search, predictedBy(measuredTimes, search) ?? 1_000));
  const close = searches.map(() => new Map<number, Samples[]>());
  for (let pass = 0; pass < CLOSE_PASSES; pass++) {
    for (const [i, search] of searches.entries()) {
      if (near[i] !== undefined) near[i] = await lookedAround(search, near[i], close[i]!);
    }
  }
  const measured = close.map((visits) => crossingOf(visits));
  row({
    part: 'similarity: break-even',
    seconds: round((performance.now() - begunMs) / 1000, 2),
    found: Object.fromEntries(
      searches.map((search, i) => {
        const predicted = predictedBy(measuredTimes, search);
        const quiet = crossingOf(close[i]!, quietOf);
        return [
          `${search.kind}, ${search.queries}`,
          {
            predicted: wholeOf(predicted),
            measured: wholeOf(measured[i]),
            error: errorOf(predicted, measured[i]),
            quiet: wholeOf(quiet),
            quietError: errorOf(predicted, quiet),
            ms: atCrossing(close[i]!),
          },
        ];
      }),
    ),
  });
  return measured;
}

/** One pass over sizes around it, into `visits`; where to look next. */
async function lookedAround(search: Search, near: number, visits: Map<number, Samples[]>): Promise<number> {
  const sizes = sizesAround(search, near, CLOSE_FACTORS);
  for (const size of sizes)
    visits.set(size, [...(visits.get(size) ?? []), await inTurns(search.at(size), CLOSE_REPEATS)]);
  const zero = closeCrossing(visits, medianOf);
  return Number.isFinite(zero) ? near : zero < 0 ? sizes[0]! : sizes.at(-1)!; // it lies beyond
}

type OfVisits = (visits: readonly (readonly number[])[]) => number;

function medianOf(visits: readonly (readonly number[])[]): number {
  return median(visits.flat());
}

/**
 * While nobody else wanted the machine, which is what the warm-up looks for: the lower quartile of what each visit
 * says.
 */
function quietOf(visits: readonly (readonly number[])[]): number {
  return lowerQuartile(visits.map((turns) => median(turns)));
}

function crossingOf(visits: ReadonlyMap<number, readonly Samples[]>, of: OfVisits = medianOf): number | undefined {
  const zero = closeCrossing(visits, of);
  return Number.isFinite(zero) ? zero : undefined;
}

/** Infinity: the CPU is faster at every size looked at, or there is none; -Infinity: the GPU is. */
function closeCrossing(visits: ReadonlyMap<number, readonly Samples[]>, of: OfVisits): number {
  const bySize = [...visits].sort(([a], [b]) => a - b);
  const zero = risingZero(
    bySize.map(([size, all]) => [
      Math.log(size),
      Math.log(of(all.map((one) => one.cpu)) / of(all.map((one) => one.gpu))),
    ]),
  );
  return Number.isFinite(zero) ? Math.exp(zero) : zero;
}

/** What a call takes about there, of either side. */
function atCrossing(visits: ReadonlyMap<number, readonly Samples[]>): number | null {
  const middle = [...visits.values()][visits.size >> 1];
  return middle === undefined ? null : round(median(middle.flatMap((one) => [...one.cpu, ...one.gpu])), 4);
}

async function beyond(search: Search, before: number | undefined): Promise<void> {
  const { kind, queries, most, at } = search;
  if (performance.now() > LAST_START_MS)
    return row({ part: 'similarity: beyond', kind, queries, skipped: 'no time was left' });
  const predicted = predictedBy(times, search);
  const calls = predicted === undefined ? undefined : await traffic(at, most, predicted);
  const corrected = predictedBy(times, search);
  const measured = before === undefined ? undefined : ((await measuredNow(search, before)) ?? before);
  const ratios: Record<string, number> = {};
  if (measured !== undefined) {
    for (const multiple of MULTIPLES) {
      const size = Math.round(measured * multiple);
      if (size > most) break;
      const { cpuMs, gpuMs } = await both(at(size));
      ratios[`×${multiple}`] = round(cpuMs / gpuMs, 2);
      if (cpuMs > MOST_CPU_MS) break;
    }
  }
  row({
    part: 'similarity: beyond',
    kind,
    queries,
    calls,
    corrected: wholeOf(corrected),
    correctedError: errorOf(corrected, measured),
    measured: wholeOf(measured),
    measuredBefore: wholeOf(before),
    ratios,
    ...(await largestOf(at, most)),
  });
}

/** Of one search, at once: what corrected predictions are compared with, because a machine does not stay as it was. */
async function measuredNow(search: Search, near: number): Promise<number | undefined> {
  const visits = new Map<number, Samples[]>();
  for (let pass = 0, at = near; pass < CLOSE_PASSES / 2; pass++) at = await lookedAround(search, at, visits);
  return crossingOf(visits);
}

function errorOf(size: number | undefined, measured: number | undefined): number | null {
  return size === undefined || measured === undefined ? null : round(size / measured - 1, 3);
}

function wholeOf(size: number | undefined): number | null {
  return size === undefined ? null : Math.round(size);
}

/** Calls as they may come, one at a time: the product takes a side for each, and learns how long it took. */
async function traffic(
  at: (size: number) => Work,
  most: number,
  around: number,
): Promise<{ readonly cpu: number; readonly gpu: number }> {
  const random = randomFrom(5);
  const works = TRAFFIC_MULTIPLES.map((multiple) => at(Math.round(Math.min(most, Math.max(1, around * multiple)))));
  for (const { what, run, prepare } of works) {
    gpu.keep(what);
    prepare?.();
    await run(gpu); // it lies on the device from now on
  }
  const before = hybrid.calls;
  const startedMs = performance.now();
  for (let call = 0; call < TRAFFIC_CALLS && performance.now() - startedMs < MOST_TRAFFIC_MS; call++) {
    const { run, prepare } = works[Math.floor(random() * works.length)]!;
    prepare?.();
    await run(hybrid);
  }
  for (const { what } of works) gpu.letGo(what);
  return { cpu: hybrid.calls.cpu - before.cpu, gpu: hybrid.calls.gpu - before.gpu };
}

/** At the largest size that the CPU does in time: the GPU's advantage far above the break-even. */
async function largestOf(at: (size: number) => Work, most: number): Promise<object> {
  const probe = Math.min(most, 2_000);
  const probed = await both(at(probe), 1);
  const size = Math.min(most, Math.max(probe, Math.floor((probe * MOST_CPU_MS) / Math.max(probed.cpuMs, 0.01))));
  const { cpuMs, gpuMs } = await both(at(size), 3);
  return { largest: size, cpuMs: round(cpuMs, 3), gpuMs: round(gpuMs, 3), timesFaster: round(cpuMs / gpuMs, 2) };
}

/** Where CPU ÷ GPU passes 1, about: looked for in sizes far apart. Undefined: one side always wins. */
async function roughCrossing(search: Search, guess: number): Promise<number | undefined> {
  const { at, most } = search;
  let center = Math.min(most, Math.max(2, guess));
  for (let attempt = 0; attempt < 8; attempt++) {
    const points: [number, number][] = [];
    for (const size of sizesAround(search, center, [0.5, 0.7, 1, 1.4, 2])) {
      const { cpuMs, gpuMs } = await both(at(size));
      points.push([Math.log(size), Math.log(cpuMs / gpuMs)]);
    }
    if (points.every(([, ratio]) => ratio > 0)) {
      if (center <= 2) return undefined;
      center = Math.max(2, center / 3);
    } else if (points.every(([, ratio]) => ratio < 0)) {
      if (center >= most) return undefined;
      center = Math.min(most, center * 3);
    } else {
      return Math.min(Math.exp(points.at(-1)![0]), Math.max(Math.exp(points[0]![0]), Math.exp(risingZero(points))));
    }
  }
  return undefined;
}

function sizesAround({ most }: Search, center: number, factors: readonly number[]): number[] {
  return [...new Set(factors.map((factor) => Math.max(1, Math.round(center * factor))))].filter((size) => size <= most);
}

async function both(work: Work, repeats = REPEATS): Promise<{ readonly cpuMs: number; readonly gpuMs: number }> {
  const ms = await inTurns(work, repeats);
  return { cpuMs: median(ms.cpu), gpuMs: median(ms.gpu) };
}

/** Milliseconds of both in turns, rows on the device already. */
async function inTurns({ what, run, prepare = () => undefined }: Work, repeats: number): Promise<Samples> {
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

// Exact top-k on the CPU: each instruction set against the peak of this machine's multiply-adds, measured right before
// and after each run (by the clock, which is what the bar is about, and by CPU time, which others on the machine
// disturb less), and beside peers in the same run: usearch's exact search, NumPy (BLAS and argpartition), plain code.
// The answer is compared with fp64 before the clock starts. Then whole matrices, and single queries over small
// collections.
//
//   python3 -m venv VENV && VENV/bin/pip install numpy
//   node --conditions=@shoal/source bench/similarity/similarity.ts --python VENV/bin/python [--rows 100000]
//       [--queries 1000] [--dims 384] [--k 10] [--rounds 5] [--record]
//
// One line of JSON. Without a Python that has numpy that peer is left out, and the line says so. --record appends rows
// to bench/results/similarity.jsonl; bars are for 1,000 × 100,000 × 384: 0.85 of the peak, 5 times usearch, 1.1 times
// NumPy.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { median, seededRandom } from '@shoal/core/base';
import {
  hitsOf,
  matrixOf,
  openKernels,
  rowsOf,
  type Isa,
  type Kernels,
  type Matrix,
  type TopK,
} from '@shoal/similarity';
import { readArguments } from '../rig/arguments.ts';
import { record } from '../rig/record.ts';
import { npyHeader, npyRows } from '@shoal/worker/files/npy';
import { nativeAddon } from '../../libs/similarity/src/engines/native-addon.ts';

const args = readArguments(import.meta.url, {
  rows: { type: 'string', default: '100000' },
  queries: { type: 'string', default: '1000' },
  dims: { type: 'string', default: '384' },
  k: { type: 'string', default: '10' },
  rounds: { type: 'string', default: '5' },
  python: { type: 'string', default: 'python3' },
  record: { type: 'boolean', default: false },
});
const [rowCount, queryCount, dims, k, rounds] = [args.rows, args.queries, args.dims, args.k, args.rounds].map(
  Number,
) as [number, number, number, number, number];
const MATRIX_TURNS = 25;
const addon = nativeAddon();
const isas = [...(addon?.isas() ?? []), 'plain'] as Isa[];
const loadBefore = loadavg()[0]!;
const [rows, queries] = [normalMatrix(rowCount, 1), normalMatrix(queryCount, 2)];
const block = rowsOf(rows);
const flops = 2 * rowCount * queryCount * dims;
const answer = await checkedAnswer();
const topKs: Measured[] = [];
for (const isa of isas.filter((one) => one !== 'plain'))
  for (const threads of [1, 2]) topKs.push(await measureTopK(isa, threads));
const usearch = await measureUsearch();
const numpy = measureNumpy();
const best = (threads: number): number =>
  topKs.find((one) => one.isa === isas[0] && one.threads === threads)?.seconds ?? NaN;
const report = {
  bench: 'similarity',
  cpu: cpus()[0]?.model,
  cores: cpus().length,
  node: process.versions.node,
  load: [loadBefore, loadavg()[0]!].map((load) => Number(load.toFixed(2))),
  shape: `${queryCount} × ${rowCount} × ${dims}, top ${k}`,
  topK: topKs.map(({ isa, threads, seconds, rate, share, shares, cpuShare, cpuShares }) => ({
    isa,
    threads,
    ms: round(seconds * 1e3),
    gflops: round(rate),
    shareOfPeak: share,
    shares,
    shareOfPeakByCpuTime: cpuShare,
    cpuShares,
  })),
  usearch: usearch.map(({ threads, seconds }) => ({
    threads,
    ms: round(seconds * 1e3),
    ratio: round(seconds / best(threads)),
  })),
  numpy:
    'absent' in numpy
      ? numpy
      : {
          version: numpy.version,
          sides: numpy.sides.map(({ threads, seconds, chunk }) => ({
            threads,
            chunk,
            ms: round(seconds * 1e3),
            ratio: round(seconds / best(threads)),
          })),
        },
  matrix: await measureMatrix(),
  single: await measureSingles(),
};
process.stdout.write(`${JSON.stringify(report)}\n`);
keepAll();

/** The rows of this run for bench/results, for who asked to record them. */
function keepAll(): void {
  const isJudged = rowCount === 100_000 && queryCount === 1_000 && dims === 384 && k === 10;
  const [count, total] = [queryCount, rowCount].map((one) => one.toLocaleString('en-US'));
  const keep = (what: string, figures: Readonly<Record<string, number>>, figure?: string, least = 0): void => {
    const bar = isJudged && figure !== undefined ? { bar: { figure, at_least: least } } : {};
    record({ bench: 'similarity', case: what, figures, ...bar });
  };
  const shape = `${count} × ${total} × ${dims}, top ${k}`;
  for (const { isa, threads, ms, gflops, shareOfPeak, shareOfPeakByCpuTime } of report.topK) {
    const figures = {
      share_of_peak: shareOfPeak,
      share_of_peak_by_cpu_time: shareOfPeakByCpuTime,
      time_ms: ms,
      gflop_per_s: gflops,
    };
    keep(`${shape}, ${isa}, ${threadsOf(threads)}`, figures, 'share_of_peak', 0.85);
  }
  for (const { threads, ratio } of report.usearch) {
    keep(`${shape}, usearch exact, ${threadsOf(threads)}`, { ratio_to_ours: ratio }, 'ratio_to_ours', 5);
  }
  for (const { threads, ratio } of 'absent' in report.numpy ? [] : report.numpy.sides) {
    keep(`${shape}, NumPy and argpartition, ${threadsOf(threads)}`, { ratio_to_ours: ratio }, 'ratio_to_ours', 1.1);
  }
  if (rowCount < 10_000 || dims !== 384) return; // what follows would be called what it is not
  const others = report.matrix.slice(1).map(({ isa, bestIsTimes }) => [`${isa}_ratio_to_ours`, bestIsTimes]);
  const products = Object.fromEntries([...others, ['gflop_per_s', report.matrix[0]!.gflops]]) as Record<string, number>;
  keep(`whole matrix, ${isas[0]}, 1 thread`, products);
  for (const isa of new Set(report.single.map((one) => one.isa))) {
    const figures = report.single.filter((one) => one.isa === isa).map((one) => [`rows_${one.rows}_us`, one.medianUs]);
    keep(`one query, ${isa}`, Object.fromEntries(figures) as Record<string, number>);
  }
}

function threadsOf(threads: number): string {
  return `${threads} thread${threads === 1 ? '' : 's'}`;
}

function round(value: number): number {
  return Number(value.toFixed(3));
}

/** Near enough to normal, the same every time. */
function normalMatrix(count: number, seed: number): Matrix {
  const random = seededRandom(seed);
  return matrixOf(
    Float32Array.from({ length: count * dims }, () => random() + random() + random() + random() - 2),
    dims,
  );
}

function someQueries(count: number): Matrix {
  return matrixOf(queries.values.subarray(0, Math.min(count, queryCount) * dims), dims);
}

/**
 * Every instruction set gives the rows of fp64, for the first queries in plain code and for all against the first one.
 */
async function checkedAnswer(): Promise<TopK> {
  const few = someQueries(4);
  const wanted = await openKernels({ isa: 'plain' }).topK(few, block, { k, metric: 'dot' });
  let first: TopK | undefined;
  for (const isa of isas.filter((one) => one !== 'plain')) {
    const found = await openKernels({ isa }).topK(queries, block, { k, metric: 'dot' });
    first ??= found;
    for (let query = 0; query < few.rows; query++)
      if (`${hitsOf(found, query).ids}` !== `${hitsOf(wanted, query).ids}`)
        throw new Error(`${isa} gives other rows than fp64 for query ${query}`);
    if (found.ids.some((id, i) => id !== first!.ids[i])) throw new Error(`${isa} gives other rows than ${isas[0]}`);
  }
  if (first === undefined) throw new Error('there is no native code to measure: npm run build, with a C++ compiler');
  return first;
}

async function timed(work: () => unknown): Promise<number> {
  const begun = performance.now();
  await work();
  return (performance.now() - begun) / 1e3;
}

/** GFLOP/s by the clock, and for each second of CPU time. */
interface Rates {
  readonly clock: number;
  readonly cpu: number;
}

async function peak(isa: Isa, threads: number): Promise<Rates> {
  const out = new Float64Array(1);
  const begunCpu = cpuSeconds();
  const seconds = await timed(() => addon!.peak(isas.indexOf(isa), threads, out));
  return { clock: out[0]!, cpu: (out[0]! * seconds) / (cpuSeconds() - begunCpu) };
}

/** Of this process, all threads. */
function cpuSeconds(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

interface Measured {
  readonly isa: Isa;
  readonly threads: number;
  readonly seconds: number;
  /** GFLOP/s. */
  readonly rate: number;
  readonly share: number;
  readonly shares: readonly number[];
  readonly cpuShare: number;
  readonly cpuShares: readonly number[];
}

async function measureTopK(isa: Isa, threads: number): Promise<Measured> {
  const kernels = openKernels({ isa, threads });
  const search = (): Promise<TopK> => kernels.topK(queries, block, { k, metric: 'dot' });
  await search();
  const [times, shares, cpuShares]: [number[], number[], number[]] = [[], [], []];
  for (let turn = 0; turn < rounds; turn++) {
    const before = await peak(isa, threads);
    const begunCpu = cpuSeconds();
    const seconds = await timed(search);
    const cpu = cpuSeconds() - begunCpu;
    const after = await peak(isa, threads);
    times.push(seconds);
    shares.push(round((2 * flops) / 1e9 / seconds / (before.clock + after.clock)));
    cpuShares.push(round((2 * flops) / 1e9 / cpu / (before.cpu + after.cpu)));
  }
  const time = median(times);
  return {
    isa,
    threads,
    seconds: time,
    rate: flops / time / 1e9,
    share: median(shares),
    shares,
    cpuShare: median(cpuShares),
    cpuShares,
  };
}

async function measureUsearch(): Promise<readonly { threads: number; seconds: number }[]> {
  const { exactSearch, MetricKind } = await import('usearch');
  const measured = [];
  for (const threads of [1, 2])
    measured.push({
      threads,
      seconds: await timed(() => exactSearch(rows.values, queries.values, dims, k, MetricKind.IP, threads)),
    });
  return measured;
}

type NumpySide = { readonly threads: number; readonly chunk: number; readonly seconds: number };

function measureNumpy():
  | { readonly absent: string }
  | { readonly version: string; readonly sides: readonly NumpySide[] } {
  if (spawnSync(args.python, ['-c', 'import numpy']).status !== 0) return { absent: `${args.python} has no numpy` };
  const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-'));
  try {
    for (const [name, matrix] of [
      ['rows', rows],
      ['queries', queries],
    ] as const)
      writeFileSync(join(folder, `${name}.npy`), Buffer.concat([npyHeader(matrix.rows, dims), npyRows(matrix.values)]));
    const script = fileURLToPath(new URL('../peers/numpy_topk.py', import.meta.url));
    let version = '';
    const sides = [1, 2].map((threads) => {
      const environment = {
        ...process.env,
        OPENBLAS_NUM_THREADS: String(threads),
        OMP_NUM_THREADS: String(threads),
        MKL_NUM_THREADS: String(threads),
      };
      const { stdout, stderr, status } = spawnSync(
        args.python,
        [script, join(folder, 'rows.npy'), join(folder, 'queries.npy'), args.k, args.rounds],
        { encoding: 'utf8', env: environment, maxBuffer: 1 << 28 },
      );
      if (status !== 0) throw new Error(stderr);
      const reply = JSON.parse(stdout) as { version: string; chunk: number; seconds: number[]; found: number[][] };
      checkPeer(reply.found);
      version = reply.version;
      return { threads, chunk: reply.chunk, seconds: median(reply.seconds) };
    });
    return { version, sides };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** fp32 of another library may order near-ties otherwise, once in a hundred queries at most. */
function checkPeer(found: number[][]): void {
  const missing = found.filter((list, query) =>
    list.some((row) => !hitsOf(answer, query).ids.includes(BigInt(row))),
  ).length;
  if (missing > found.length / 100) throw new Error(`NumPy finds other rows for ${missing} queries`);
}

/** Whole matrices, 1,000 × 2,000: what becomes of a product where every score is kept. Instruction sets in turns. */
async function measureMatrix() {
  const some = matrixOf(rows.values.subarray(0, Math.min(2_000, rowCount) * dims), dims);
  const sides = isas.map((isa) => ({
    isa,
    kernels: openKernels({ isa, threads: 1 }),
    wide: someQueries(isa === 'plain' ? 50 : 1_000),
    seconds: [] as number[],
  })); // plain code is timed on fewer, and counted by the product
  for (let turn = 0; turn <= MATRIX_TURNS; turn++) {
    for (const { kernels, wide, seconds } of sides) {
      const taken = await timed(() => kernels.cosine(wide, some, { metric: 'cosine' }));
      if (turn > 0) seconds.push(taken);
    }
  }
  const measured = sides.map(({ isa, wide, seconds }) => ({
    isa,
    gflops: round((2 * wide.rows * some.rows * dims) / median(seconds) / 1e9),
  }));
  return measured.map((one) => ({ ...one, bestIsTimes: round(measured[0]!.gflops / one.gflops) }));
}

/** Microseconds from the call to its promise, one query at a time. */
async function measureSingles() {
  const measured = [];
  for (const count of [1_000, 10_000]) {
    const part = rowsOf(matrixOf(rows.values.subarray(0, Math.min(count, rowCount) * dims), dims));
    for (const isa of [isas[0]!, 'plain'] as const) {
      const kernels: Kernels = openKernels({ isa });
      const times = [];
      for (let turn = 0; turn < (isa === 'plain' ? 10 : 300); turn++) {
        const query = matrixOf(
          queries.values.subarray((turn % queryCount) * dims, ((turn % queryCount) + 1) * dims),
          dims,
        );
        times.push((await timed(() => kernels.topK(query, part, { k, metric: 'cosine' }))) * 1e6);
      }
      measured.push({
        rows: count,
        isa,
        medianUs: Math.round(median(times)),
        p99Us: Math.round(times.sort((a, b) => a - b)[Math.floor(times.length * 0.99)]!),
      });
    }
  }
  return measured;
}

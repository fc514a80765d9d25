import { expect, test, describe } from 'vitest';
import type { CudaEngine } from './cuda-engine.ts';
import { encodeRows } from '../collections/encode-rows.ts';
import { strideOf } from '../collections/collection-file.ts';
import { graphFromEdges, type Graph } from '../graphs/graph.ts';
import { hitsOf, type TopK } from './best-rows.ts';
import { ISAS, type Engine, type Isa } from './engine.ts';
import { kernelsOn, openKernels, type Kernels } from './kernels.ts';
import { nativeAddon, nativeProblem, type NativeAddon } from './native-addon.ts';
import { nativeEngine } from './native-engine.ts';
import { openStandIn, standInEngine } from '../testing/stand-in.ts';
import {
  idOfRow,
  matrixOf,
  METRICS,
  ROW_TYPES,
  rowReader,
  rowsOf,
  type Matrix,
  type Metric,
  type RowBlock,
  type RowType,
} from './vectors.ts';

// Every engine of this machine against sums in fp64, on random cases of awkward sizes: SHOAL_TEST_CASES=50000
// SHOAL_TEST_SEED=7 for more, or for the same again; the full form is 10,000 cases. The seed is in the name of the
// tests.
const CASES = Number(process.env['SHOAL_TEST_CASES'] ?? 1_000);
const SEED = Number(process.env['SHOAL_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31));
type Open = (threads: number) => Kernels;
const standIn = openStandIn();
/** What passes by and what stays on the device are other calls of the CUDA library: both are tried. */
const opens: readonly Open[] = [
  ...ISAS.filter((isa) => isa === 'plain' || nativeAddon()?.isas().includes(isa) === true).map(
    (isa: Isa): Open =>
      (threads) =>
        openKernels({ isa, threads }),
  ),
  ...(standIn === undefined
    ? []
    : [
        () => kernelsOn(standInEngine(standIn)),
        () => kernelsOn(keeping(standInEngine(standIn))),
        () => kernelsOn(standInEngine(standIn, { workBytes: 1 << 16 })),
      ]),
];
const engines = opens.map((open) => open(2));
if (nativeAddon() === undefined) console.warn(`only the plain kernels are tested: ${nativeProblem()}`);

/** Everything it is given stays on the device, until the ledger is full. */
function keeping(engine: CudaEngine): Engine {
  const kept = <What extends RowBlock | Graph>(what: What): What => {
    engine.keep(what);
    return what;
  };
  return {
    isa: engine.isa,
    threads: 1,
    topK: (queries, rows, ...rest) => engine.topK(queries, kept(rows), ...rest),
    matrix: (queries, rows, ...rest) => engine.matrix(queries, kept(rows), ...rest),
    rescore: (queries, rows, ...rest) => engine.rescore(queries, kept(rows), ...rest),
    spread: (graph, ...rest) => engine.spread(kept(graph), ...rest),
  };
}

/** Mulberry32: small, seeded, the same everywhere. */
class Random {
  #state: number;
  constructor(seed: number) {
    this.#state = seed;
  }
  unit(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let t = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }
  below(n: number): number {
    return Math.floor(this.unit() * n);
  }
  pick<T>(of: readonly T[]): T {
    return of[this.below(of.length)]!;
  }
  /** Near enough to normal. */
  normal(): number {
    return this.unit() + this.unit() + this.unit() + this.unit() - 2;
  }
}

interface Case {
  readonly queries: Matrix;
  readonly rows: RowBlock;
  /** Each row as it is stored, times its scale. */
  readonly values: readonly Float64Array[];
  readonly metric: Metric;
  readonly k: number;
  readonly tileRows: number;
  readonly what: string;
}

/**
 * So many products of the reference in plain code are 50 µs: 10,000 cases in seconds. One case in a hundred is larger.
 */
const PRODUCTS = 25_000;

function randomCase(seed: number): Case {
  const random = new Random(seed);
  const dims = random.pick([1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 100, 128, 129, 384, 511, 513, 1_025, 4_096]);
  const most = random.below(100) === 0 ? 40 * PRODUCTS : PRODUCTS;
  const count = random.pick(
    [1, 2, 7, 31, 32, 33, 65, 100, 257, 1_000, 4_097].filter((n) => n * dims <= most || n === 1),
  );
  const queryCount = random.pick(
    [1, 2, 3, 4, 5, 7, 12, 13, 25, 31, 33].filter((n) => n * count * dims <= most || n === 1),
  );
  const [dtype, metric] = [random.pick<RowType>(ROW_TYPES), random.pick<Metric>(METRICS)];
  const rows = {
    ...block(random, count, dims, dtype),
    ...(random.below(3) === 0
      ? { ids: BigUint64Array.from({ length: count }, (_, row) => 2n ** 40n + BigInt(3 * row)) }
      : {}),
  };
  const read = rowReader(rows);
  const values = Array.from({ length: count }, (_, row) => Float64Array.from(read(row)));
  const queries = matrixOf(queryValues(random, queryCount, dims, values), dims);
  const k = random.pick([1, 10, 17, count, count + 5]);
  return {
    queries,
    rows,
    values,
    metric,
    k,
    tileRows: 1 + random.below(count + 3),
    what: `seed ${seed}: ${dtype} ${metric}, ${queryCount} × ${count} × ${dims}, k ${k}`,
  };
}

/** Mostly normal; zeros, tiny and denormal values, copies of other rows; NaN and infinities where the type has them. */
function block(random: Random, count: number, dims: number, dtype: RowType): RowBlock {
  const values = new Float32Array(count * dims);
  for (let row = 0; row < count; row++) {
    const kind = random.below(12);
    const at = row * dims;
    if (kind === 0 && row > 0) values.copyWithin(at, random.below(row) * dims, random.below(row) * dims);
    if (kind === 0 && row > 0) values.set(values.slice((row - 1) * dims, row * dims), at);
    else
      for (let d = 0; d < dims; d++)
        values[at + d] =
          kind === 1 ? 0 : random.normal() * (kind === 2 ? 1e-15 : kind === 3 && d % 2 === 1 ? 1e-40 : 1);
  }
  const matrix = matrixOf(values, dims);
  if (dtype !== 'f32' || random.below(2) === 0) {
    const { data, scales, lengths } = encodeRows(matrix, dtype);
    return {
      dtype,
      data,
      rows: count,
      dims,
      strideBytes: strideOf(dtype, dims),
      lengths,
      ...(dtype === 'i8' ? { scales } : {}),
    };
  }
  if (random.below(3) === 0) values[random.below(values.length)] = random.pick([NaN, Infinity, -Infinity]);
  return rowsOf(matrix);
}

function queryValues(random: Random, count: number, dims: number, rows: readonly Float64Array[]): Float32Array {
  const values = Float32Array.from({ length: count * dims }, () => random.normal());
  if (random.below(8) === 0) values.fill(0, 0, dims);
  if (random.below(3) === 0)
    values.set(
      Float32Array.from(random.pick(rows), (value) => (Number.isFinite(value) ? value : 1)),
      (count - 1) * dims,
    ); // a row asks for itself
  return values;
}

interface Scored {
  readonly row: number;
  readonly score: number;
  /** What an error is relative to. */
  readonly size: number;
}

function reference({ queries, values, metric, rows }: Case, query: number, row: number): Scored {
  const [q, r] = [queries.values.subarray(query * queries.dims, (query + 1) * queries.dims), values[row]!];
  let [dot, far, qq, rr] = [0, 0, 0, 0];
  for (let d = 0; d < r.length; d++) {
    const [a, b] = [q[d]!, r[d]!];
    dot += a * b;
    far += (a - b) * (a - b);
    qq += a * a;
    rr += b * b;
  }
  const lengths = Math.sqrt(qq) * Math.sqrt(rr);
  if (metric === 'dot') return { row, score: dot, size: Math.max(1, lengths) };
  // An int8 value times its scale is rounded once before the difference is taken; that error does not shrink with the
  // distance.
  if (metric === 'l2') return { row, score: far, size: 10 * far + (rows.dtype === 'i8' ? Math.sqrt(far * rr) : 0) };
  if (qq < 1e-60 || rr < 1e-60) return { row, score: 0 * dot, size: 1 };
  return { row, score: dot / lengths, size: 1 };
}

function inOrder(scored: readonly Scored[], metric: Metric): Scored[] {
  const sign = metric === 'l2' ? -1 : 1;
  return scored
    .filter(({ score }) => !Number.isNaN(score))
    .sort((a, b) => (a.score === b.score ? a.row - b.row : sign * (b.score - a.score)));
}

function isNear(found: number, { score, size }: Scored): boolean {
  return (
    (Number.isNaN(found) && Number.isNaN(score)) || found === score || Math.abs(found - score) <= 1e-6 * size + 1e-30
  );
}

/** A problem in words, or undefined: an `expect` for each of some million values would take minutes. */
function topKProblem(c: Case, query: number, order: readonly Scored[], found: TopK): string | undefined {
  const { ids, scores } = hitsOf(found, query);
  const wanted = Math.min(c.k, order.length);
  if (ids.length !== wanted) return `query ${query}: ${ids.length} found, ${wanted} are there`;
  for (let i = 0; i < wanted; i++) {
    const best = order[i]!;
    if (ids[i] === idOfRow(c.rows, best.row)) {
      if (!isNear(scores[i]!, best))
        return `query ${query}, place ${i}: the score is ${scores[i]}, in fp64 ${best.score}`;
      continue;
    }
    // Another row only where sums in another order may differ: far below the 4 units in the last place of fp32 that are
    // allowed.
    const other = order.find(({ row }) => idOfRow(c.rows, row) === ids[i]);
    if (other === undefined || !(Math.abs(other.score - best.score) <= 1e-13 * Math.max(best.size, other.size)))
      return `query ${query}, place ${i}: row ${ids[i]} (${other?.score}), and ${best.row} (${best.score}) is better`;
  }
  return undefined;
}

function isSame(a: TopK, b: TopK): boolean {
  return (
    Buffer.compare(bytes(a.ids), bytes(b.ids)) === 0 &&
    Buffer.compare(bytes(a.scores), bytes(b.scores)) === 0 &&
    Buffer.compare(bytes(a.found), bytes(b.found)) === 0
  );
}

function bytes(values: BigUint64Array | Float32Array | Uint32Array): Buffer {
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength);
}

async function problemOf(
  kernels: Kernels,
  c: Case,
  orders: readonly (readonly Scored[])[],
  all: readonly (readonly Scored[])[],
  random: Random,
): Promise<string | undefined> {
  const { queries, rows, metric, k, tileRows } = c;
  const found = await kernels.topK(queries, rows, { k, metric });
  const tiled = await kernels.topK(queries, rows, { k, metric, tileRows });
  if (!isSame(found, tiled)) return `tiles of ${tileRows} rows give another answer`;
  for (const [query, order] of orders.entries()) {
    const problem = topKProblem(c, query, order, found);
    if (problem !== undefined) return problem;
  }
  const scores = await kernels.cosine(queries, rows, { metric });
  for (const [query, row] of all.entries()) {
    const wrong = row.find((scored) => !isNear(scores[query * rows.rows + scored.row]!, scored));
    if (wrong !== undefined)
      return (
        `matrix, query ${query}, row ${wrong.row}: ${scores[query * rows.rows + wrong.row]}, in fp64 ` +
        `${wrong.score}`
      );
  }
  const candidates = orders.map(() => Array.from({ length: random.below(6) }, () => random.below(rows.rows)));
  const rescored = await kernels.rescore(
    queries,
    rows,
    candidates.map((list) => BigUint64Array.from(list, (row) => idOfRow(rows, row))),
    { k, metric },
  );
  for (const [query, list] of candidates.entries()) {
    const problem = topKProblem(
      c,
      query,
      orders[query]!.filter(({ row }) => list.includes(row)),
      rescored,
    );
    if (problem !== undefined) return `rescore, ${problem}`;
  }
  return undefined;
}

describe(`${engines.map(({ isa }) => isa).join(', ')}: ${CASES} cases from seed ${SEED}`, () => {
  test('top-k, every score and re-scoring are those of fp64, tiled or not', async () => {
    const problems: string[] = [];
    for (let i = 0; i < CASES && problems.length < 5; i++) {
      const c = randomCase(SEED + i);
      const all = Array.from({ length: c.queries.rows }, (_, query) =>
        c.values.map((_row, row) => reference(c, query, row)),
      );
      const orders = all.map((scored) => inOrder(scored, c.metric));
      for (const kernels of engines) {
        const problem = await problemOf(kernels, c, orders, all, new Random(SEED + i));
        if (problem !== undefined) problems.push(`${kernels.isa}, ${c.what}: ${problem}`);
      }
    }
    expect(problems).toEqual([]);
  }, 600_000);

  test('an answer is the same bits from run to run, whatever the threads', async () => {
    for (let i = 0; i < 100; i++) {
      const { queries, rows, metric, k, what } = randomCase(SEED + i);
      for (const [at, { isa }] of engines.entries()) {
        const answers = await Promise.all(
          [1, 2, 3, 2].map(async (threads) => {
            const kernels = opens[at]!(threads);
            return {
              best: await kernels.topK(queries, rows, { k, metric }),
              scores: await kernels.cosine(queries, rows, { metric }),
            };
          }),
        );
        const same = answers.every(
          ({ best, scores }) =>
            isSame(best, answers[0]!.best) && Buffer.compare(bytes(scores), bytes(answers[0]!.scores)) === 0,
        );
        expect(`${isa}, ${what}: ${same}`).toBe(`${isa}, ${what}: true`);
      }
    }
  });

  test('activation spreads as in fp64, through cycles and loops', async () => {
    const problems: string[] = [];
    for (let i = 0; i < 500 && problems.length < 5; i++) {
      const random = new Random(SEED + i);
      const nodes = random.pick([1, 2, 7, 33, 200]);
      const edges = random.below(6 * nodes);
      const [from, to] = [0, 1].map(() => Uint32Array.from({ length: edges }, () => random.below(nodes)));
      const weight = Float32Array.from({ length: edges }, () => random.unit());
      const lanes = random.pick([1, 3, 5, 16, 17, 35]);
      const seeds = Array.from({ length: lanes }, () => ({
        nodes: Uint32Array.of(random.below(nodes)),
        values: Float32Array.of(1),
      }));
      const options = { steps: random.below(6), decay: 0.8, threshold: 0.05, k: nodes };
      const wanted = seeds.map((seed) =>
        spreadInDoubles({ from: from!, to: to!, weight }, nodes, seed.nodes[0]!, options),
      );
      for (const kernels of engines) {
        const found = await kernels.spread(graphFromEdges({ from: from!, to: to!, weight }, nodes), seeds, options);
        const wrong = wanted.findIndex((totals, lane) => {
          const { ids, scores } = hitsOf(found, lane);
          const got = new Float64Array(nodes);
          ids.forEach((id, at) => (got[Number(id)] = scores[at]!));
          return (
            scores.some((score, at) => at > 0 && score > scores[at - 1]!) ||
            totals.some((total, node) => Math.abs(total - got[node]!) > 1e-5 * Math.max(1, total))
          );
        });
        if (wrong !== -1)
          problems.push(`${kernels.isa}, seed ${SEED + i}: lane ${wrong} of ${lanes}, ${nodes} nodes, ${edges} edges`);
      }
    }
    expect(problems).toEqual([]);
  });
});

/** The addon, and how much work each of its calls that spread was asked for. */
function counting(addon: NativeAddon): { readonly addon: NativeAddon; readonly calls: number[] } {
  const calls: number[] = [];
  const spread: NativeAddon['spread'] = (...asked) => {
    calls.push(asked[8] - asked[7]);
    return addon.spread(...asked);
  };
  return { addon: { ...addon, spread }, calls };
}

const native = nativeAddon();
const ring = graphFromEdges({ from: Uint32Array.of(0, 1, 2, 2), to: Uint32Array.of(1, 2, 0, 1) });
const lanesAt = (count: number) =>
  Array.from({ length: count }, (_, lane) => ({
    nodes: Uint32Array.of(lane % 3),
    values: Float32Array.of(1 / (lane + 1)),
  }));

test.skipIf(native === undefined)(
  'however long it spreads, a call of the native code has no more work than one may have, and its parts are ' +
    'told and change no bit',
  async () => {
    const options = { steps: 64, decay: 0.9, threshold: 0.01, k: 3 };
    const work = 64 * (3 + 4);
    for (const isa of native!.isas() as Isa[]) {
      const whole = await openKernels({ isa }).spread(ring, lanesAt(20), options);
      for (const most of [1, 5, 7, 100]) {
        const { addon, calls } = counting(native!);
        let parts = 1;
        const found = await kernelsOn(nativeEngine(addon, isa, 2, most)).spread(ring, lanesAt(20), {
          ...options,
          onPart: () => parts++,
        });
        expect(Math.max(...calls)).toBeLessThanOrEqual(most);
        expect([calls.length, parts, calls.reduce((sum, asked) => sum + asked, 0)]).toEqual([
          2 * Math.ceil(work / most),
          calls.length,
          2 * work,
        ]);
        expect(found).toEqual(whole);
      }
    }
  },
);

test(
  'plain code tells of a part whenever it lets the event loop go on, and every engine when it begins with other ' +
    'seeds',
  async () => {
    let parts = 0;
    const onPart = (): void => void parts++;
    for (const kernels of engines) {
      parts = 0;
      await kernels.spread(ring, lanesAt(35), { steps: 1, decay: 1, threshold: 0, k: 1, onPart });
      expect([kernels.isa, parts]).toEqual([kernels.isa, 2]);
    }
    parts = 0;
    await openKernels({ isa: 'plain' }).spread(ring, lanesAt(16), {
      steps: 10_000,
      decay: 1,
      threshold: 0,
      k: 1,
      onPart,
    });
    expect(parts).toBe(1); // 1,120,000 products
  },
);

function spreadInDoubles(
  { from, to, weight }: { from: Uint32Array; to: Uint32Array; weight: Float32Array },
  nodes: number,
  seed: number,
  { steps, decay, threshold }: { steps: number; decay: number; threshold: number },
): Float64Array {
  const totals = new Float64Array(nodes);
  totals[seed] = 1;
  let last = totals.slice();
  for (let step = 0; step < steps; step++) {
    const next = new Float64Array(nodes);
    // Values a rounding away from the threshold may fire on one side only: the reference asks in fp32 as well.
    for (let edge = 0; edge < from.length; edge++)
      if (Math.fround(last[from[edge]!]!) >= Math.fround(threshold))
        next[to[edge]!]! += decay * weight[edge]! * last[from[edge]!]!;
    for (let node = 0; node < nodes; node++) totals[node]! += next[node]!;
    last = next;
  }
  return totals;
}

const codeOf = (work: Promise<unknown>) =>
  work.then(
    () => 'no error',
    (error: { code?: string }) => error.code,
  );

test('a number of threads that cannot be is refused before anything is computed', () => {
  for (const isa of [undefined, ...ISAS])
    for (const threads of [0, -1, 0.5, NaN, Infinity, 1025]) {
      expect(() => openKernels({ ...(isa && { isa }), threads })).toThrow(
        expect.objectContaining({
          code: 'CONFIG_INVALID',
          message: expect.stringContaining(`asked for ${threads} threads: they take 1 to 1024`),
        }),
      );
    }
});

describe.each(engines.map((kernels, at) => ({ name: `${kernels.isa} (${at})`, kernels })))('$name', ({ kernels }) => {
  const rows = rowsOf(matrixOf(Float32Array.of(1, 0, 0, 1, 0, 0, 1, 0), 2));
  const query = matrixOf(Float32Array.of(1, 0), 2);

  test('ties go to the lower id; a row of length 0 scores 0', async () => {
    expect(hitsOf(await kernels.topK(query, rows, { k: 9, metric: 'cosine' }), 0)).toEqual({
      ids: BigUint64Array.of(0n, 3n, 1n, 2n),
      scores: Float32Array.of(1, 1, 0, 0),
    });
    expect(hitsOf(await kernels.topK(query, rows, { k: 2, metric: 'l2' }), 0)).toEqual({
      ids: BigUint64Array.of(0n, 3n),
      scores: Float32Array.of(0, 0),
    });
  });

  test('what cannot be searched is refused by its code', async () => {
    expect(await codeOf(kernels.topK(query, rows, { k: 0, metric: 'dot' }))).toBe('SEARCH_INVALID');
    expect(await codeOf(kernels.topK(query, rows, { k: 1.5, metric: 'dot' }))).toBe('SEARCH_INVALID');
    expect(await codeOf(kernels.topK(query, rows, { k: 1, metric: 'manhattan' as 'dot' }))).toBe('SEARCH_INVALID');
    expect(await codeOf(kernels.topK(matrixOf(Float32Array.of(1, 2, 3), 3), rows, { k: 1, metric: 'dot' }))).toBe(
      'DIMENSIONS_MISMATCH',
    );
    for (const bad of [NaN, Infinity, -Infinity, 1e17]) {
      expect(await codeOf(kernels.topK(matrixOf(Float32Array.of(0, bad), 2), rows, { k: 1, metric: 'dot' }))).toBe(
        'VECTOR_INVALID',
      );
      await expect(
        kernels.topK(matrixOf(new Float32Array(1_000).fill(bad, 777, 778), 2), rows, { k: 1, metric: 'dot' }),
      ).rejects.toThrow(`query 388 holds ${Math.fround(bad)} at dimension 1`);
    }
    expect(await codeOf(kernels.topK(query, rowsOf(matrixOf(new Float32Array(), 2)), { k: 1, metric: 'dot' }))).toBe(
      'COLLECTION_EMPTY',
    );
    expect(await codeOf(kernels.rescore(query, rows, [BigUint64Array.of(4n)], { k: 1, metric: 'dot' }))).toBe(
      'SEARCH_INVALID',
    );
    const graph = graphFromEdges({ from: Uint32Array.of(0), to: Uint32Array.of(1) });
    expect(
      await codeOf(
        kernels.spread(graph, [{ nodes: Uint32Array.of(2), values: Float32Array.of(1) }], {
          steps: 1,
          decay: 1,
          threshold: 0,
          k: 1,
        }),
      ),
    ).toBe('GRAPH_INVALID');
    expect(() => graphFromEdges({ from: Uint32Array.of(0), to: Uint32Array.of(5) }, 3)).toThrow(
      'edge 0 goes from 0 to 5, and there are 3 nodes',
    );
    expect(() =>
      graphFromEdges({ from: Uint32Array.of(0), to: Uint32Array.of(1), weight: Float32Array.of(NaN) }),
    ).toThrow('has the weight NaN');
  });

  test('a search ends early when it is aborted, and the event loop goes on meanwhile', async () => {
    const random = new Random(1);
    const many = matrixOf(
      Float32Array.from({ length: 20_000 * 128 }, () => random.normal()),
      128,
    );
    const abort = new AbortController();
    let turns = 0;
    const ticking = setInterval(() => {
      if (++turns === 2) abort.abort(new Error('enough'));
    }, 1);
    await expect(
      kernels.topK({ ...many, rows: 4_000, values: many.values.subarray(0, 4_000 * 128) }, rowsOf(many), {
        k: 10,
        metric: 'dot',
        signal: abort.signal,
      }),
    ).rejects.toThrow('enough');
    clearInterval(ticking);
  });
});

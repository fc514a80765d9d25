// What a worker asks an engine before its first job: one small computation of every kind, whose answers plain code
// gives as well. A driver, a card, a build or an instruction set that computes something else never answers.

import { ShoalError } from '@shoal/contract';
import { strideOf } from '../collections/collection-file.ts';
import { encodeRows } from '../collections/encode-rows.ts';
import { graphFromEdges, type Graph } from '../graphs/graph.ts';
import type { BestRows, Engine } from './engine.ts';
import { plainEngine } from './plain-engine.ts';
import { matrixOf, METRICS, ROW_TYPES, type Matrix, type RowBlock, type RowType } from './vectors.ts';

/** Odd sizes: whole vectors of lanes and what is left over are both computed. */
const [QUERIES, ROWS, DIMS, BEST] = [5, 333, 133, 10];
const [NODES, LANES] = [200, 3];
/** Scores are near 1 or below; distances up to 100. Engines differ by some 1e-7 of that where fp32 is summed. */
const MOST_OFF = 1e-4;

/**
 * Throws CANARY_FAILED where `engine` gives other rows than plain code, or scores that differ by more than 1e-4, in
 * top-k, every score, re-scoring (each metric, rows of each type) or spreading. Some 10 ms; plain code is its own proof.
 */
export async function proveEngine(engine: Engine): Promise<void> {
  if (engine.isa === 'plain') return;
  const plain = plainEngine();
  const queries = numbers(QUERIES, DIMS, 1);
  for (const dtype of ROW_TYPES) {
    const rows = rowsAs(numbers(ROWS, DIMS, 2), dtype);
    for (const metric of METRICS) {
      const where = `${metric} with rows of ${dtype}`;
      const best = await engine.topK(queries, rows, metric, BEST);
      const expected = await plain.topK(queries, rows, metric, BEST);
      if (!isSame(best, expected)) throw otherAnswer(engine, `the ${BEST} best rows by ${where}`);
      if (!isNear(best.scores, expected.scores)) throw otherAnswer(engine, `their scores by ${where}`);
      const all = await engine.matrix(queries, rows, metric);
      if (!isNear(all, await plain.matrix(queries, rows, metric))) throw otherAnswer(engine, `every score by ${where}`);
      const begin = Uint32Array.from({ length: QUERIES + 1 }, (_, query) => query * BEST);
      const again = await engine.rescore(queries, rows, metric, begin, expected.rows);
      if (!isNear(again, expected.scores)) throw otherAnswer(engine, `scores of candidates by ${where}`);
    }
  }
  if (!isNear(await spread(engine), await spread(plain))) throw otherAnswer(engine, 'activation that spreads');
}

function spread(engine: Engine): Promise<Float32Array> {
  return engine.spread(ring(), LANES, seeds(), { steps: 4, decay: 0.7, threshold: 0.01, k: BEST });
}

/** Between −1 and 1, the same ones everywhere: whole numbers of a linear congruential generator (Numerical Recipes). */
function numbers(rows: number, dims: number, seed: number): Matrix {
  let state = seed;
  const next = (): number => (state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0);
  return matrixOf(
    Float32Array.from({ length: rows * dims }, () => next() / 2 ** 31 - 1),
    dims,
  );
}

function rowsAs(matrix: Matrix, dtype: RowType): RowBlock {
  const { data, scales, lengths } = encodeRows(matrix, dtype);
  const { rows, dims } = matrix;
  return { dtype, data, rows, dims, strideBytes: strideOf(dtype, dims), lengths, ...(dtype === 'i8' && { scales }) };
}

/** Each node leads to the next and to one far away. */
function ring(): Graph {
  const from = Uint32Array.from({ length: 2 * NODES }, (_, edge) => edge % NODES);
  const to = Uint32Array.from(from, (node, edge) => (edge < NODES ? node + 1 : 7 * node + 3) % NODES);
  return graphFromEdges({ from, to, weight: Float32Array.from(from, (node) => 0.2 + (node % 5) / 10) }, NODES);
}

/** nodes × lanes */
function seeds(): Float32Array {
  const activation = new Float32Array(NODES * LANES);
  for (let lane = 0; lane < LANES; lane++) activation[(10 + 50 * lane) * LANES + lane] = 1;
  return activation;
}

function isSame(a: BestRows, b: BestRows): boolean {
  return [a.found, a.rows].every((values, which) => {
    const others = [b.found, b.rows][which]!;
    return values.length === others.length && values.every((value, at) => value === others[at]);
  });
}

function isNear(found: ArrayLike<number>, expected: ArrayLike<number>): boolean {
  if (found.length !== expected.length) return false;
  for (let at = 0; at < found.length; at++) if (!(Math.abs(found[at]! - expected[at]!) <= MOST_OFF)) return false;
  return true;
}

function otherAnswer({ isa }: Engine, what: string): ShoalError {
  return new ShoalError(
    'CANARY_FAILED',
    `${isa} gives another answer for ${what} than plain code, where every engine gives the same: the build, the ` +
      'driver or the device does not compute what it should, and nothing is compared on it. "npm run build" makes ' +
      'the native code anew; --kernels plain computes without it, --device cpu without the GPU',
    { engine: isa, what },
  );
}

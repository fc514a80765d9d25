// What is refused before anything is computed, by code and with what was found.

import { ShoalError } from '@shoal/contract';
import type { Graph } from '../graphs/graph.ts';
import type { SpreadOptions } from './engine.ts';
import { nativeAddon } from './native-addon.ts';
import { checkDims, checkValues, METRICS, rowOfId, type Matrix, type Metric, type RowBlock } from './vectors.ts';

/** Nodes of one start, with their activation; each lane spreads by itself. */
export interface Seeds {
  readonly nodes: Uint32Array;
  readonly values: Float32Array;
}

export function checkMetric(metric: Metric): void {
  if (!METRICS.includes(metric))
    throw new ShoalError('SEARCH_INVALID', `"${String(metric)}" is no metric: there are ${METRICS.join(', ')}`, {
      metric,
    });
}

function checkK(k: number): void {
  if (!Number.isInteger(k) || k < 1) throw new ShoalError('SEARCH_INVALID', `k is ${k}: ask for 1 or more`, { k });
}

export function checkSearch(queries: Matrix, rows: RowBlock, k: number, metric: Metric): void {
  checkK(k);
  checkMetric(metric);
  checkDims(queries, rows);
  if (queries.rows === 0) throw new ShoalError('SEARCH_INVALID', 'there is no query', {});
  if (rows.rows === 0) throw new ShoalError('COLLECTION_EMPTY', 'there are no rows to search', {});
  checkValues(queries, 'query');
}

function checkTerms({ steps, decay, threshold, k }: SpreadOptions): void {
  checkK(k);
  if (!Number.isInteger(steps) || steps < 0 || steps > 10_000)
    throw new ShoalError('SEARCH_INVALID', `steps is ${steps}: ask for 0 to 10,000`, { steps });
  if (!(decay >= 0 && decay <= 1))
    throw new ShoalError('SEARCH_INVALID', `decay is ${decay}: it must be 0 to 1`, { decay });
  if (!(threshold >= 0 && threshold < Infinity))
    throw new ShoalError('SEARCH_INVALID', `threshold is ${threshold}: it must be 0 or more`, { threshold });
}

export function checkSpread(graph: Graph, seeds: readonly Seeds[], options: SpreadOptions): void {
  checkTerms(options);
  if (seeds.length === 0) throw new ShoalError('SEARCH_INVALID', 'there are no seeds', {});
  for (const [lane, { nodes, values }] of seeds.entries()) {
    if (nodes.length === 0 || nodes.length !== values.length)
      throw new ShoalError('SEARCH_INVALID', `seeds ${lane}: ${nodes.length} nodes and ${values.length} values`, {
        lane,
      });
    const strange = nodes.find((node) => node >= graph.nodes);
    if (strange !== undefined)
      throw new ShoalError(
        'GRAPH_INVALID',
        `seeds ${lane}: there is no node ${strange}; the graph has ${graph.nodes}`,
        { lane, node: strange },
      );
    const bad = values.findIndex((value) => !(value >= 0 && value <= MAX_ACTIVATION));
    if (bad !== -1)
      throw new ShoalError(
        'VECTOR_INVALID',
        `seeds ${lane}: the activation of node ${nodes[bad]} is ${values[bad]}; it must be 0 to ${MAX_ACTIVATION}`,
        { lane },
      );
  }
}

const MAX_ACTIVATION = 1e16;

export function rowsOfIds(rows: RowBlock, ids: BigUint64Array, query: number): Uint32Array {
  const found = Uint32Array.from(ids, (id) => {
    const row = rowOfId(rows, id);
    if (row === undefined)
      throw new ShoalError('SEARCH_INVALID', `candidates of query ${query}: there is no row ${id} among ${rows.rows}`, {
        query,
        id: String(id),
      });
    return row;
  });
  return found.length === new Set(found).size ? found : new Uint32Array(new Set(found));
}

/** A mapped file that somebody cut reads as zeros: then there is no answer. */
export function refuseCut({ data }: RowBlock): void {
  if (nativeAddon()?.isCut(data) === true)
    throw new ShoalError(
      'COLLECTION_CORRUPT',
      'the file of the collection was cut while it was searched: build it again',
      {},
    );
}

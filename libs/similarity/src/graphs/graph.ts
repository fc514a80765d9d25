// Graphs to spread activation over: weighted edges between numbered nodes, kept by incoming edges, so that each node's
// sum is made in one order whatever the threads. Cycles and loops are fine; an index out of range is refused. See
// graph-file.ts.

import { ShoalError } from '@shoal/contract';

/** Node n has the incoming edges `begin[n] … begin[n + 1] − 1`: from `source`, of `weight`, sources rising. */
export interface Graph {
  readonly nodes: number;
  readonly begin: Uint32Array;
  readonly source: Uint32Array;
  readonly weight: Float32Array;
  /** What people call the nodes; absent: their numbers. */
  readonly names?: readonly string[];
}

export interface Edges {
  readonly from: Uint32Array;
  readonly to: Uint32Array;
  /** Absent: 1 each. Two edges between the same nodes add up. */
  readonly weight?: Float32Array;
}

/** Weights beyond would leave fp32 after some steps. */
const MAX_WEIGHT = 1e6;

/**
 * A graph of `nodes` nodes (unset: as many as edges speak of), or GRAPH_INVALID naming the first edge that is wrong.
 */
export function graphFromEdges({ from, to, weight }: Edges, nodes?: number, names?: readonly string[]): Graph {
  if (from.length !== to.length || (weight !== undefined && weight.length !== from.length)) {
    throw new ShoalError(
      'GRAPH_INVALID',
      `the edges have ${from.length} sources, ${to.length} targets and ${weight?.length ?? from.length} weights`,
      {},
    );
  }
  const count = nodes ?? mostOf(from, to) + 1;
  if (!Number.isInteger(count) || count < 1 || count >= 2 ** 32)
    throw new ShoalError('GRAPH_INVALID', `a graph of ${count} nodes cannot be: 1 to 2^32 − 1`, { nodes: count });
  const begin = new Uint32Array(count + 1);
  for (let edge = 0; edge < from.length; edge++) {
    checkEdge(edge, from[edge]!, to[edge]!, weight?.[edge] ?? 1, count);
    begin[to[edge]! + 1]!++;
  }
  for (let node = 0; node < count; node++) begin[node + 1]! += begin[node]!;
  return { nodes: count, begin, ...sortedIncoming(from, to, weight, begin), ...(names === undefined ? {} : { names }) };
}

function checkEdge(edge: number, from: number, to: number, weight: number, nodes: number): void {
  if (from >= nodes || to >= nodes)
    throw new ShoalError(
      'GRAPH_INVALID',
      `edge ${edge} goes from ${from} to ${to}, and there are ${nodes} nodes, 0 to ${nodes - 1}`,
      { edge, nodes },
    );
  if (!(weight >= 0 && weight <= MAX_WEIGHT))
    throw new ShoalError(
      'GRAPH_INVALID',
      `edge ${edge} (${from} → ${to}) has the weight ${weight}: it must be 0 to ${MAX_WEIGHT}`,
      { edge },
    );
}

/** A stable counting sort by source, then by target: linear, whatever order the edges come in. */
function sortedIncoming(
  from: Uint32Array,
  to: Uint32Array,
  weight: Float32Array | undefined,
  begin: Uint32Array,
): Pick<Graph, 'source' | 'weight'> {
  const outgoing = new Uint32Array(begin.length);
  for (const node of from) outgoing[node + 1]!++;
  for (let node = 1; node < outgoing.length; node++) outgoing[node]! += outgoing[node - 1]!;
  const bySource = new Uint32Array(from.length);
  for (let edge = 0; edge < from.length; edge++) bySource[outgoing[from[edge]!]!++] = edge;
  const next = begin.slice();
  const source = new Uint32Array(from.length);
  const weights = new Float32Array(from.length);
  for (const edge of bySource) {
    const at = next[to[edge]!]!++;
    source[at] = from[edge]!;
    weights[at] = weight?.[edge] ?? 1;
  }
  return { source, weight: weights };
}

/** GRAPH_INVALID when arrays that came from somewhere else are not a graph. */
export function checkGraph({ nodes, begin, source, weight }: Graph): void {
  const fail = (found: string): never => {
    throw new ShoalError('GRAPH_INVALID', `this is no graph by incoming edges: ${found}`, { nodes });
  };
  if (!Number.isInteger(nodes) || nodes < 1 || begin.length !== nodes + 1)
    fail(`${nodes} nodes and ${begin.length} beginnings`);
  if (begin[0] !== 0 || begin[nodes] !== source.length || weight.length !== source.length)
    fail(`${source.length} sources, ${weight.length} weights, and beginnings from ${begin[0]} to ${begin[nodes]}`);
  for (let node = 0; node < nodes; node++)
    if (begin[node]! > begin[node + 1]!) fail(`the edges of node ${node} end before they begin`);
  for (let edge = 0; edge < source.length; edge++) {
    if (source[edge]! >= nodes) fail(`edge ${edge} comes from node ${source[edge]}, and there are ${nodes}`);
    if (!(weight[edge]! >= 0 && weight[edge]! <= MAX_WEIGHT))
      fail(`edge ${edge} has the weight ${weight[edge]}; it must be 0 to ${MAX_WEIGHT}`);
  }
}

function mostOf(...lists: readonly Uint32Array[]): number {
  let most = -1;
  for (const list of lists) for (const node of list) if (node > most) most = node;
  return most;
}

// The CPU as core's SimilarityDevice: collections and graphs read from their folder into memory of this process, computed on
// by whatever `Kernels` are there. Translates shapes, and running out of memory into a value; chooses nothing.

import { activationOf, isShoalError, nodeOf, type Fitted, type GraphSource, type HeldGraph, type HeldRows, type Ranking, type RowSource, type SeedSet, type SimilarityDevice } from '@shoal/core';
import { graphInfo, hitsOf, openCollectionRows, openGraph, rowOfId, rowsOf, sliceRows, type Graph, type Kernels, type RowBlock, type Seeds, type TopK } from '@shoal/similarity';

export interface KernelDeviceOptions {
  readonly kernels: Kernels;
  /** Where collections and graphs are. */
  readonly folder: string;
}

export function kernelDevice({ kernels, folder }: KernelDeviceOptions): SimilarityDevice {
  return {
    device: `cpu:${kernels.isa}`,
    openCollection: (name) => rowSource(kernels, folder, name),
    openGraph: (name) => graphSource(kernels, folder, name),
    rowsOf: (matrix) => heldRows(kernels, rowsOf(matrix), 0),
  };
}

async function rowSource(kernels: Kernels, folder: string, nameAndVersion: string): Promise<RowSource> {
  const { name, rows, dims, rowBytes, read, isCurrent, close } = await openCollectionRows(folder, nameAndVersion);
  return { name, rows, dims, rowBytes, isCurrent, close, load: (first, count) => fitted(async () => heldRows(kernels, await read(first, count), count * rowBytes)) };
}

function heldRows(kernels: Kernels, block: RowBlock, bytes: number): HeldRows {
  return {
    rows: block.rows,
    bytes,
    free: () => undefined, // memory of this process: forgotten is freed
    slice: (first, count) => heldRows(kernels, withIds(sliceRows(block, first, first + count), first), 0),
    has: (id) => rowOfId(block, id) !== undefined,
    topK: (queries, options) => fitted(async () => rankingsOf(await kernels.topK(queries, block, options))),
    rescore: (queries, candidates, options) => fitted(async () => rankingsOf(await kernels.rescore(queries, block, candidates, options))),
    scores: (queries, options) => fitted(() => kernels.cosine(queries, block, options)),
  };
}

/** Row numbers begin at 0 in every block; a part says which rows it has. */
function withIds(part: RowBlock, first: number): RowBlock {
  if (part.ids !== undefined || first === 0) return part;
  return { ...part, ids: BigUint64Array.from({ length: part.rows }, (_, row) => BigInt(first + row)) };
}

/** Lanes of activation that a run has side by side, each with two more arrays of its size (libs/similarity, kernels.ts). */
const LANE_BYTES = 16 * 3 * 4;

async function graphSource(kernels: Kernels, folder: string, name: string): Promise<GraphSource> {
  const { nodes, edges, createdMs } = await graphInfo(folder, name);
  const bytes = 4 * (nodes + 1) + 8 * edges + LANE_BYTES * nodes;
  return {
    name, nodes, bytes,
    load: () => fitted(async () => heldGraph(kernels, await openGraph(folder, name), bytes)),
    isCurrent: async () => (await graphInfo(folder, name)).createdMs === createdMs,
    close: async () => undefined, // nothing is open between reads
  };
}

function heldGraph(kernels: Kernels, graph: Graph, bytes: number): HeldGraph {
  return {
    bytes,
    free: () => undefined,
    spread: (seeds, terms) => fitted(async () => rankingsOf(await kernels.spread(graph, seeds.map(lane), terms))),
  };
}

function lane(seeds: SeedSet): Seeds {
  return { nodes: Uint32Array.from(seeds, nodeOf), values: Float32Array.from(seeds, activationOf) };
}

function rankingsOf(topK: TopK): Ranking[] {
  return Array.from({ length: topK.queries }, (_, query) => hitsOf(topK, query));
}

async function fitted<Value>(work: () => Promise<Value>): Promise<Fitted<Value>> {
  try {
    return { fits: true, value: await work() };
  } catch (error) {
    if (!isOutOfMemory(error)) throw error;
    return { fits: false, message: error.message };
  }
}

/** V8 says so by a RangeError without a code, kernels by ours. */
function isOutOfMemory(error: unknown): error is Error {
  return isShoalError(error, 'OUT_OF_VRAM') || (error instanceof RangeError && /allocation failed|invalid (typed )?array(buffer)? length/i.test(error.message));
}

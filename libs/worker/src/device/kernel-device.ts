// Kernels as core's SimilarityDevice: collections and graphs read from their folder into memory of this process,
// computed on by whatever `Kernels` are there. What is held as a whole may stay on a GPU as well, which has a ledger of
// its own (CudaEngine). Translates shapes, and running out of memory into a value; chooses nothing.

import { activationOf, isShoalError, nodeOf, type Ranking, type SeedSet } from '@shoal/contract';
import type {
  DeviceUse,
  Fitted,
  GraphSource,
  HeldGraph,
  HeldRows,
  RowSource,
  SimilarityDevice,
} from '@shoal/core/similarity';
import {
  collectionInfo,
  graphInfo,
  hitsOf,
  openCollectionRows,
  openGraph,
  rowOfId,
  rowsOf,
  sliceRows,
  type CudaEngine,
  type Graph,
  type HybridEngine,
  type Kernels,
  type RowBlock,
  type Seeds,
  type TopK,
} from '@shoal/similarity';

export interface KernelDeviceOptions {
  readonly kernels: Kernels;
  /** The folder of collections and graphs. */
  readonly folder: string;
  /** Set where `kernels` compute on a GPU when they may. */
  readonly gpu?: { readonly device: string; readonly engine: CudaEngine; readonly hybrid: HybridEngine } | undefined;
}

export function kernelDevice({ kernels, folder, gpu }: KernelDeviceOptions): SimilarityDevice {
  return {
    device: gpu?.device ?? `cpu:${kernels.isa}`,
    newest: async (name) => `${name}@${(await collectionInfo(folder, name)).version}`,
    openCollection: (name) => rowSource(kernels, folder, name, gpu?.engine),
    openGraph: (name) => graphSource(kernels, folder, name, gpu?.engine),
    rowsOf: (matrix) => heldRows(kernels, rowsOf(matrix), 0, forget),
    ...(gpu === undefined ? {} : { hasOwnMemory: true, takeUse: () => useOf(gpu.device, gpu.hybrid) }),
  };
}

function useOf(device: string, hybrid: HybridEngine): DeviceUse {
  const { cpu, gpu, fellBack } = hybrid.takeUsage();
  const used = [...(gpu > 0 ? [device] : []), ...(cpu > 0 ? [`cpu:${hybrid.cpu.isa}`] : [])];
  return { device: used.join('+') || device, fellBack };
}

/** Memory of this process: forgotten is freed. */
function forget(): void {}

async function rowSource(
  kernels: Kernels,
  folder: string,
  nameAndVersion: string,
  gpu: CudaEngine | undefined,
): Promise<RowSource> {
  const { name, model, rows, dims, rowBytes, read, names, isCurrent, close } = await openCollectionRows(
    folder,
    nameAndVersion,
  );
  const load = async (first: number, count: number): Promise<HeldRows> => {
    const block = await read(first, count);
    if (count === rows) gpu?.keep(block); // what passes by does not stay
    return heldRows(kernels, block, count * rowBytes, () => gpu?.letGo(block));
  };
  return {
    name,
    ...(model === undefined ? {} : { model }),
    rows,
    dims,
    rowBytes,
    isCurrent,
    close,
    load: (first, count) => fitted(() => load(first, count)),
    ...(names === undefined ? {} : { names }),
  };
}

function heldRows(kernels: Kernels, block: RowBlock, bytes: number, free: () => void): HeldRows {
  return {
    rows: block.rows,
    bytes,
    free,
    slice: (first, count) => heldRows(kernels, withIds(sliceRows(block, first, first + count), first), 0, forget),
    has: (id) => rowOfId(block, id) !== undefined,
    topK: (queries, options) => fitted(async () => rankingsOf(await kernels.topK(queries, block, options))),
    rescore: (queries, candidates, options) =>
      fitted(async () => rankingsOf(await kernels.rescore(queries, block, candidates, options))),
    scores: (queries, options) => fitted(() => kernels.cosine(queries, block, options)),
  };
}

/** Row numbers begin at 0 in every block; a part says which rows it has. */
function withIds(part: RowBlock, first: number): RowBlock {
  if (part.ids !== undefined || first === 0) return part;
  return { ...part, ids: BigUint64Array.from({ length: part.rows }, (_, row) => BigInt(first + row)) };
}

/**
 * Lanes of activation that a run has side by side, each with two more arrays of its size (libs/similarity, kernels.ts).
 */
const LANE_BYTES = 16 * 3 * 4;

async function graphSource(
  kernels: Kernels,
  folder: string,
  name: string,
  gpu: CudaEngine | undefined,
): Promise<GraphSource> {
  const { nodes, edges, createdMs } = await graphInfo(folder, name);
  const bytes = 4 * (nodes + 1) + 8 * edges + LANE_BYTES * nodes;
  return {
    name,
    nodes,
    bytes,
    load: () => fitted(async () => heldGraph(kernels, await openGraph(folder, name), bytes, gpu)),
    isCurrent: async () => (await graphInfo(folder, name)).createdMs === createdMs,
    close: async () => undefined, // nothing is open between reads
  };
}

function heldGraph(kernels: Kernels, graph: Graph, bytes: number, gpu: CudaEngine | undefined): HeldGraph {
  gpu?.keep(graph);
  return {
    bytes,
    free: () => gpu?.letGo(graph),
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
  return (
    isShoalError(error, 'OUT_OF_VRAM') ||
    (error instanceof RangeError && /allocation failed|invalid (typed )?array(buffer)? length/i.test(error.message))
  );
}

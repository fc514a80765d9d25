// One search of a collection, with vectors as queries, computed in this process. What the queue's job kinds do with the
// same collection on a worker gives the same rows.

import { ShoalError } from '@shoal/contract';
import type { Settings } from '@shoal/core';
import {
  checkRecall,
  buildCandidates,
  collectionsFolder,
  hitsOf,
  openCandidates,
  openCollection,
  openKernels,
  searchCandidates,
  type Candidates,
  type Collection,
  type Kernels,
  type Matrix,
  type Metric,
  type Recall,
} from '@shoal/similarity';

export interface CollectionSearch {
  readonly collection: Collection;
  readonly queries: Matrix;
  readonly k: number;
  readonly metric: Metric;
  /** Candidates instead of every row; from an index that was built. */
  readonly isApproximate: boolean;
  readonly signal: AbortSignal;
}

export interface FoundRow {
  readonly id: string;
  /** What the row is called; absent when it has no name. */
  readonly name?: string;
  readonly score: number;
}

export interface SearchAnswer {
  /** Best first, for each query. */
  readonly found: readonly (readonly FoundRow[])[];
  readonly isa: string;
  readonly ms: number;
  readonly recall?: Recall;
}

export async function searchCollection(settings: Settings, search: CollectionSearch): Promise<SearchAnswer> {
  const { collection, queries, k, metric, isApproximate, signal } = search;
  const kernels = kernelsOf(settings);
  const candidates = isApproximate ? await candidatesFor(settings, collection, metric) : undefined;
  const begunMs = performance.now();
  const options = { k, metric, signal };
  const best =
    candidates === undefined
      ? await kernels.topK(queries, collection.block, options)
      : await searchCandidates(kernels, collection, candidates, queries, options);
  const ms = performance.now() - begunMs;
  const found = Array.from({ length: queries.rows }, (_, query) => {
    const { ids, scores } = hitsOf(best, query);
    return Array.from(ids, (id, at) => ({ id: String(id), ...nameOf(collection, id), score: scores[at]! }));
  });
  return {
    found,
    isa: kernels.isa,
    ms,
    ...(candidates?.measured === undefined ? {} : { recall: candidates.measured }),
  };
}

async function candidatesFor(settings: Settings, collection: Collection, metric: Metric): Promise<Candidates> {
  const found = await openCandidates(collectionsFolder(settings), collection, metric);
  if (found !== undefined) return found;
  throw new ShoalError(
    'COLLECTION_UNKNOWN',
    `${collection.name}@${collection.version} has no index of candidates for ${metric}: shoal index check ` +
      `${collection.name} --ann --metric ${metric} builds one and measures it`,
    {},
  );
}

/** The index of candidates, built when there is none, and its recall on rows of the collection. */
export async function measureCandidates(
  settings: Settings,
  collection: Collection,
  {
    metric,
    signal,
    onRows,
  }: { readonly metric: Metric; readonly signal: AbortSignal; readonly onRows: (rows: number) => void },
): Promise<Recall> {
  const folder = collectionsFolder(settings);
  const candidates =
    (await openCandidates(folder, collection, metric)) ??
    (await buildCandidates(folder, collection, { metric, signal, onRows }));
  return checkRecall(folder, kernelsOf(settings), collection, candidates, { signal });
}

export function kernelsOf({ kernels, threads }: Settings): Kernels {
  return openKernels({ ...(kernels === 'auto' ? {} : { isa: kernels }), ...(threads === 0 ? {} : { threads }) });
}

export function openNamed(settings: Settings, name: string): Promise<Collection> {
  return openCollection(collectionsFolder(settings), name);
}

export function recallText({ recall, k, sample }: Recall): string {
  return `recall@${k} ${recall.toFixed(4)} on ${sample} rows of the collection`;
}

function nameOf({ names }: Collection, id: bigint): { readonly name?: string } {
  // Collections of this command have row numbers as ids.
  const name = names?.(Number(id)) ?? '';
  return name === '' ? {} : { name };
}

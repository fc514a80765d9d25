// Candidates from an HNSW graph (Malkov and Yashunin 2016) beside a version of a collection, by the package usearch,
// whose only importer this is: an index of our own would be months. It finds likely rows without looking at all of
// them; exact scores and the order are ours (`rescore`), and how many it misses is measured on the user's own rows
// (`checkRecall`). Without the package nothing else changes: searches are exact. Calls block for some milliseconds at a
// time.

import { readFile, writeFile } from 'node:fs/promises';
import { setImmediate as turn } from 'node:timers/promises';
import { ShoalError } from '@shoal/contract';
import { placeAtomically, sha256File } from '@shoal/fetch';
import { besideVersion, type CollectionInfo } from './collections.ts';
import { hitsOf, type TopK } from '../engines/best-rows.ts';
import type { Kernels, SearchOptions } from '../engines/kernels.ts';
import type { Collection } from './open-collection.ts';
import { idOfRow, matrixOf, rowReader, type Matrix, type Metric } from '../engines/vectors.ts';

type Usearch = typeof import('usearch');
type Index = InstanceType<Usearch['Index']>;

export interface Recall {
  readonly k: number;
  /** Rows of the collection that were searched for, each without itself. */
  readonly sample: number;
  /** Share of the exact k nearest that were found, 0 to 1. */
  readonly recall: number;
}

export interface Candidates {
  readonly metric: Metric;
  /** As it was measured when the index was built. */
  readonly measured: Recall | undefined;
  /** Ids of likely rows for each query, `count` at most. */
  find(queries: Matrix, count: number): readonly BigUint64Array[];
}

export interface BuildOptions {
  readonly metric?: Metric;
  readonly signal?: AbortSignal;
  readonly onRows?: (rows: number) => void;
}

/** What lies beside the index: without it, or when it does not fit, the index is not used. */
interface Facts {
  readonly v: 1;
  readonly rows: number;
  readonly metric: Metric;
  readonly sha256: string;
  readonly measured?: Recall;
}

/**
 * Edges of a node, and rows looked at while adding and searching; what they give is measured on the collection itself.
 */
const CONNECTIVITY = 16;
const EXPANSION = { add: 128, search: 128 };
const ROWS_PER_TURN = 64;

/** Builds the index of this version and keeps it beside it. SETUP_FAILED where usearch is not there. */
export async function buildCandidates(
  folder: string,
  collection: Collection,
  { metric = 'cosine', signal, onRows }: BuildOptions = {},
): Promise<Candidates> {
  const usearch = await loadUsearch();
  const index = newIndex(usearch, collection.dims, metric);
  const read = rowReader(collection.block);
  for (let first = 0; first < collection.rows; first += ROWS_PER_TURN) {
    signal?.throwIfAborted();
    const last = Math.min(collection.rows, first + ROWS_PER_TURN);
    const values = new Float32Array((last - first) * collection.dims);
    for (let row = first; row < last; row++) values.set(read(row), (row - first) * collection.dims);
    index.add(
      BigUint64Array.from({ length: last - first }, (_, i) => BigInt(first + i)),
      values,
      1,
    );
    onRows?.(last);
    await turn();
  }
  collection.checkIntact();
  const path = indexPath(folder, collection, metric);
  await placeAtomically(path, async (temporary) => index.save(temporary));
  await writeFacts(path, { v: 1, rows: collection.rows, metric, sha256: await sha256File(path) });
  return candidatesOf(collection, index, metric, undefined);
}

/** The index of this version, or undefined when there is none that fits it. */
export async function openCandidates(
  folder: string,
  collection: Collection,
  metric: Metric = 'cosine',
): Promise<Candidates | undefined> {
  const path = indexPath(folder, collection, metric);
  const facts = await readFacts(path);
  if (facts === undefined || facts.rows !== collection.rows || facts.metric !== metric) return undefined;
  // usearch would read a damaged one without looking
  if ((await sha256File(path).catch(() => '')) !== facts.sha256) return undefined;
  const index = newIndex(await loadUsearch(), collection.dims, metric);
  index.load(path);
  return candidatesOf(collection, index, metric, facts.measured);
}

/** Candidates, exactly scored: the best k of them. */
export async function searchCandidates(
  kernels: Kernels,
  collection: Collection,
  candidates: Candidates,
  queries: Matrix,
  options: SearchOptions,
): Promise<TopK> {
  const found = candidates.find(queries, Math.min(collection.rows, Math.max(4 * options.k, 64)));
  return kernels.rescore(queries, collection.block, found, options);
}

/** Recall@k of `candidates` on `sample` rows of the collection, spread over it; kept beside the index. */
export async function checkRecall(
  folder: string,
  kernels: Kernels,
  collection: Collection,
  candidates: Candidates,
  {
    k = 10,
    sample = 200,
    signal,
  }: { readonly k?: number; readonly sample?: number; readonly signal?: AbortSignal } = {},
): Promise<Recall> {
  const { rows, dims, block } = collection;
  const count = Math.min(sample, rows);
  const kept = Math.min(k, rows - 1);
  if (kept < 1) return { k, sample: 0, recall: 1 };
  const read = rowReader(block);
  const picked = Array.from({ length: count }, (_, i) => Math.floor((i * rows) / count));
  const values = new Float32Array(count * dims);
  picked.forEach((row, i) => values.set(read(row), i * dims));
  const queries = matrixOf(values, dims);
  const options = { k: kept + 1, metric: candidates.metric, ...(signal === undefined ? {} : { signal }) };
  const [exact, found] = [
    await kernels.topK(queries, block, options),
    await searchCandidates(kernels, collection, candidates, queries, options),
  ];
  let hits = 0;
  for (const [query, row] of picked.entries()) {
    // By score: of equal rows any will do.
    const others = (from: TopK): number[] =>
      [...hitsOf(from, query).ids]
        .flatMap((id, at) => (id === idOfRow(block, row) ? [] : [hitsOf(from, query).scores[at]!]))
        .slice(0, kept);
    const [wanted, got] = [others(exact), others(found)];
    const worst = wanted.at(-1)!;
    hits += got.filter((score) => (candidates.metric === 'l2' ? score <= worst : score >= worst)).length;
  }
  const recall: Recall = { k: kept, sample: count, recall: hits / (count * kept) };
  const path = indexPath(folder, collection, candidates.metric);
  const facts = await readFacts(path);
  if (facts !== undefined) await writeFacts(path, { ...facts, measured: recall });
  return recall;
}

/** Whether usearch can be used here. */
export async function canFindCandidates(): Promise<boolean> {
  return loadUsearch().then(
    () => true,
    () => false,
  );
}

async function loadUsearch(): Promise<Usearch> {
  try {
    return await import('usearch');
  } catch (error) {
    throw new ShoalError(
      'SETUP_FAILED',
      'approximate search needs the package usearch, whose library does not load here ' +
        `(${error instanceof Error ? error.message.split('\n')[0] : String(error)}): leave out --ann to search ` +
        'exactly, or install it (npm install usearch)',
      {},
      error,
    );
  }
}

function newIndex({ Index, MetricKind, ScalarKind }: Usearch, dimensions: number, metric: Metric): Index {
  const kind = { cosine: MetricKind.Cos, dot: MetricKind.IP, l2: MetricKind.L2sq }[metric];
  return new Index({
    dimensions,
    metric: kind,
    quantization: ScalarKind.F32,
    connectivity: CONNECTIVITY,
    expansion_add: EXPANSION.add,
    expansion_search: EXPANSION.search,
    multi: false,
  });
}

function candidatesOf(
  { block, rows, dims }: Collection,
  index: Index,
  metric: Metric,
  measured: Recall | undefined,
): Candidates {
  return {
    metric,
    measured,
    find(queries, count) {
      return Array.from({ length: queries.rows }, (_, query) => {
        const { keys } = index.search(queries.values.subarray(query * dims, (query + 1) * dims), count, 1);
        return BigUint64Array.from(
          [...keys].filter((row) => row < BigInt(rows)),
          (row) => idOfRow(block, Number(row)),
        );
      });
    },
  };
}

function indexPath(
  folder: string,
  { name, version }: Pick<CollectionInfo, 'name' | 'version'>,
  metric: Metric,
): string {
  return besideVersion(folder, name, version, `${metric}.hnsw`);
}

async function readFacts(path: string): Promise<Facts | undefined> {
  try {
    const facts: unknown = JSON.parse(await readFile(`${path}.json`, 'utf8'));
    return typeof facts === 'object' && facts !== null && Reflect.get(facts, 'v') === 1 ? (facts as Facts) : undefined;
  } catch {
    return undefined;
  }
}

function writeFacts(path: string, facts: Facts): Promise<void> {
  return placeAtomically(`${path}.json`, (temporary) => writeFile(temporary, JSON.stringify(facts)));
}

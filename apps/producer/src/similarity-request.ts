// POST /v1/similarity/{topk,rescore,cosine,spread}: their bodies, checked field by field like those of embeddings, and
// with the limits that keep one answer in one piece of JSON. Whether collections, candidates and nodes exist only a
// worker knows.

import { endianness } from 'node:os';
import { MAX_DIMS, MAX_VALUE, invariant, type Seed, type SeedSet, type SimilarityMetric } from '@shoal/contract';
import type { Queries } from '@shoal/client';
import { checkedBody, list, missing, oneOf, shown, wholeNumber, wrongType } from './body-fields.ts';
import { checkModel, checkText, type ServedModel } from './embeddings-request.ts';
import { invalid } from './problem.ts';

export interface TopKRequest {
  readonly collection: string;
  readonly queries: Queries;
  readonly k: number;
  readonly metric: SimilarityMetric;
  readonly names: boolean;
}

export interface RescoreRequest extends TopKRequest {
  readonly candidates: readonly BigUint64Array[];
}

export interface CosineRequest {
  readonly queries: Queries;
  readonly others: { readonly collection: string } | Queries;
  readonly metric: SimilarityMetric;
}

export interface SpreadRequest {
  readonly graph: string;
  readonly seeds: readonly SeedSet[];
  readonly options: {
    readonly k: number;
    readonly steps?: number;
    readonly decay?: number;
    readonly threshold?: number;
  };
}

/** The largest float32 within ±MAX_VALUE, which as float32 is above itself. */
export const MOST_COMPARED = 9_999_999_198_822_400;
export const MAX_QUERIES = 1_024;
/** Hits of one answer, all queries together: some 40 MB of JSON. */
export const MAX_HITS = 1_000_000;
/** Whole rows of scores come back, so a collection of a million rows gives as much as a million hits for each. */
export const MAX_COSINE_QUERIES = 64;
/** As many as the job format lets a spread go (libs/core, similarity-schema.ts). */
export const MAX_STEPS = 64;
export const GRAPH_NAME = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/;
export const COLLECTION_NAME = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(@[1-9][0-9]{0,8})?$/;
const QUERIES = 'a text, an array of texts, or an array of vectors';

/** `model`: the one that texts among the queries are for, where the request names one. */
export function parseTopK(body: unknown, model: ServedModel): TopKRequest {
  const fields = checkedBody(body, ['collection', 'queries', 'k', 'metric', 'names', 'model']);
  checkNamed(fields.model, model);
  return rankingRequest(fields);
}

export function parseRescore(body: unknown, model: ServedModel): RescoreRequest {
  const fields = checkedBody(body, ['collection', 'queries', 'candidates', 'k', 'metric', 'names', 'model']);
  checkNamed(fields.model, model);
  const request = rankingRequest(fields);
  const lists = list('candidates', fields.candidates, 'an array of row ids for each query', MAX_QUERIES);
  if (lists.length !== rowsOf(request.queries))
    throw invalid(
      'invalid_value',
      'candidates',
      `there are ${rowsOf(request.queries)} queries and ${lists.length} lists of candidates; each query has one`,
    );
  return { ...request, candidates: lists.map((ids, i) => candidatesOf(ids, `candidates[${i}]`)) };
}

export function parseCosine(body: unknown, model: ServedModel): CosineRequest {
  const fields = checkedBody(body, ['queries', 'collection', 'against', 'metric', 'model']);
  checkNamed(fields.model, model);
  if ((fields.collection === undefined) === (fields.against === undefined))
    throw invalid(
      'invalid_value',
      'against',
      'queries are compared either with a "collection" or with "against", which is more texts or vectors; give ' +
        'one of the two',
    );
  const queries = queriesOf('queries', fields.queries, MAX_COSINE_QUERIES);
  const others =
    fields.collection === undefined
      ? queriesOf('against', fields.against, MAX_QUERIES)
      : { collection: collectionOf(fields.collection) };
  return { queries, others, metric: metricOf(fields.metric) };
}

export function parseSpread(body: unknown): SpreadRequest {
  const {
    graph,
    seeds: given,
    k,
    steps,
    decay,
    threshold,
  } = checkedBody(body, ['graph', 'seeds', 'k', 'steps', 'decay', 'threshold']);
  const seeds = list('seeds', given, 'an array of sets of seeds', MAX_QUERIES).map((set, i) =>
    list(`seeds[${i}]`, set, 'an array of nodes').map((seed, j) =>
      isRowId(seed) ? seed : seedOf(seed, `seeds[${i}][${j}]`),
    ),
  );
  return {
    graph: named('graph', graph, GRAPH_NAME, 'the name of a graph'),
    seeds,
    options: {
      k: kOf(k, seeds.length),
      ...(steps === undefined ? {} : { steps: wholeNumber('steps', steps, { from: 1, to: MAX_STEPS }) }),
      ...(decay === undefined
        ? {}
        : { decay: between('decay', decay, (value) => value > 0 && value <= 1, 'above 0 and at most 1') }),
      ...(threshold === undefined
        ? {}
        : { threshold: between('threshold', threshold, (value) => value >= 0, '0 or more') }),
    },
  };
}

function checkNamed(asked: unknown, model: ServedModel): void {
  if (asked !== undefined) checkModel(asked, model);
}

/** How many questions a request asks. */
export function rowsOf(queries: Queries): number {
  return 'dims' in queries ? queries.values.length / queries.dims : queries.length;
}

// ---- fields -------------------------------------------------------------------------------------------------------

function rankingRequest(fields: {
  readonly [Name in 'collection' | 'queries' | 'k' | 'metric' | 'names']?: unknown;
}): TopKRequest {
  const queries = queriesOf('queries', fields.queries, MAX_QUERIES);
  return {
    collection: collectionOf(fields.collection),
    queries,
    k: kOf(fields.k, rowsOf(queries)),
    metric: metricOf(fields.metric),
    names: namesOf(fields.names),
  };
}

function namesOf(asked: unknown): boolean {
  if (asked === undefined) return false;
  if (typeof asked !== 'boolean') throw wrongType('names', 'true or false', asked);
  return asked;
}

function collectionOf(asked: unknown): string {
  return named(
    'collection',
    asked,
    COLLECTION_NAME,
    'a collection and its version, such as docs@3, or its name alone for the newest one',
  );
}

function named(name: string, asked: unknown, pattern: RegExp, wanted: string): string {
  if (asked === undefined) throw missing(name, wanted);
  if (typeof asked !== 'string') throw wrongType(name, wanted, asked);
  if (!pattern.test(asked)) throw invalid('invalid_value', name, `"${name}" must be ${wanted}, found ${shown(asked)}`);
  return asked;
}

function metricOf(asked: unknown): SimilarityMetric {
  return oneOf('metric', asked, ['cosine', 'dot', 'l2']);
}

function kOf(asked: unknown, rows: number): number {
  if (asked === undefined) throw missing('k', 'how many are wanted for each');
  return wholeNumber('k', asked, { from: 1, to: Math.floor(MAX_HITS / rows) });
}

function queriesOf(name: string, asked: unknown, most: number): Queries {
  if (typeof asked === 'string') return [checkText(asked, name)];
  const items = list(name, asked, QUERIES, most);
  if (typeof items[0] === 'number')
    throw wrongType(name, `${QUERIES}: one vector is [[${items.slice(0, 2).map(shown).join(', ')}, …]]`, asked);
  if (!Array.isArray(items[0])) return items.map((text, i) => checkText(text, `${name}[${i}]`));
  const dims = list(`${name}[0]`, items[0], 'a vector', MAX_DIMS).length;
  const values = new Float32Array(items.length * dims);
  items.forEach((vector, row) => putVector(vector, `${name}[${row}]`, values.subarray(row * dims, (row + 1) * dims)));
  return { values, dims };
}

function putVector(asked: unknown, param: string, values: Float32Array): void {
  const vector = list(param, asked, 'a vector like the first');
  if (vector.length !== values.length)
    throw invalid(
      'dimensions_mismatch',
      param,
      `"${param}" has ${vector.length} dimensions, the first has ${values.length}`,
    );
  for (let i = 0; i < values.length; i++) {
    const value = vector[i];
    if (typeof value !== 'number') throw wrongType(`${param}[${i}]`, 'a number', value);
    if (Math.abs(value) > MOST_COMPARED)
      throw invalid(
        'vector_invalid',
        `${param}[${i}]`,
        `"${param}[${i}]" is ${value}; only numbers between ±${MOST_COMPARED} can be compared`,
      );
    values[i] = value;
  }
}

function candidatesOf(asked: unknown, param: string): BigUint64Array {
  const ids = list(param, asked, 'an array of row ids');
  const found = new BigUint64Array(ids.length);
  // by their halves: a million BigInts take a second
  invariant(endianness() === 'LE', 'this machine keeps its numbers little-endian');
  const halves = new Uint32Array(found.buffer);
  for (let i = 0; i < ids.length; i++) {
    const id = ids[i];
    const checked = isRowId(id) ? id : rowId(id, `${param}[${i}]`);
    halves[2 * i] = checked % 2 ** 32;
    halves[2 * i + 1] = checked / 2 ** 32;
  }
  return found;
}

function seedOf(asked: unknown, param: string): Seed {
  if (!Array.isArray(asked)) return rowId(asked, param);
  const [node, activation, ...more]: unknown[] = asked;
  if (more.length > 0 || asked.length !== 2) throw wrongType(param, 'a node, or [node, activation]', asked);
  return [
    rowId(node, `${param}[0]`),
    between(
      `${param}[1]`,
      activation,
      (value) => value > 0 && value <= MAX_VALUE,
      `above 0 and at most ${MAX_VALUE.toExponential(0)}`,
    ),
  ];
}

function isRowId(asked: unknown): asked is number {
  return Number.isSafeInteger(asked) && (asked as number) >= 0;
}

function rowId(asked: unknown, param: string): number {
  return wholeNumber(param, asked, { from: 0, to: Number.MAX_SAFE_INTEGER });
}

function between(name: string, asked: unknown, fits: (value: number) => boolean, wanted: string): number {
  if (typeof asked !== 'number') throw wrongType(name, 'a number', asked);
  if (!fits(asked)) throw invalid('invalid_value', name, `"${name}" must be ${wanted}, found ${asked}`);
  return asked;
}

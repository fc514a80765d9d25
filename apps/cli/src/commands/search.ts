// `shoal search`, `similarity` and `spread`: questions to what is kept. Texts are embedded through the queue by the
// model that embedded the collection; vectors and graphs are compared in this process.

import { ShoalError, isSameModel, sidePrompt } from '@shoal/contract';
import type { Settings } from '@shoal/core';
import { expectEmbedder, type StoredModel } from '@shoal/models';
import { rename, rm, stat, writeFile } from 'node:fs/promises';
import { extname } from 'node:path';
import {
  graphInfo,
  hitsOf,
  matrixOf,
  openGraph,
  readVectors,
  saveGraph,
  vectorFileCure,
  vectorFormat,
  type Graph,
  type Matrix,
  type Metric,
  type Seeds,
} from '@shoal/similarity';
import { untilAborted } from '../input/until-aborted.ts';
import { readEdgeList, type EdgeListOptions } from '../input/edge-list.ts';
import { npyHeader, npyRows } from '@shoal/worker/files/npy';
import { writeFailure } from '@shoal/worker/files/write-failure';
import { checkTarget, type FileTarget } from '../output/target.ts';
import { collectionSettings } from '../search/collection-settings.ts';
import { kernelsOf, openNamed, recallText, searchCollection, type FoundRow } from '../search/search-collection.ts';
import { isObjectAddress } from '../input/object-address.ts';
import { isParquet, isVectorFile, vectorsIn } from '../search/vector-input.ts';
import { withSteps } from '../progress.ts';
import { fetchModel } from '../processes/fetch-model.ts';
import { hasColor, print, say, type Terminal } from '../terminal.ts';
import { refuseMissingPrompt } from '../embed/flags.ts';

export interface SearchFlags {
  /** A setting, which is here as well to tell what was asked for in this call from what is set for all. */
  readonly model?: string;
  /** Name of the model's prompt before the query, or "none"; default: its "query", if it has one. */
  readonly prompt?: string;
  readonly k: number;
  readonly metric: Metric;
  readonly ann?: boolean;
  /** Milliseconds. */
  readonly waitLimit?: number;
  readonly json?: boolean;
  readonly quiet?: boolean;
}

export async function search(
  terminal: Terminal,
  name: string,
  words: readonly string[],
  flags: SearchFlags,
): Promise<void> {
  const settings = await collectionSettings(terminal, flags);
  const text = words.join(' ').trim();
  if (text === '')
    throw new ShoalError(
      'USAGE',
      'nothing to look for: give a query, for example: shoal search docs "how are stalled jobs recovered"',
    );
  const collection = await openNamed(settings, name);
  const rows = { name: collection.name, dims: collection.dims, model: collection.about.model };
  const queries = await embedded(terminal, settings, [text], {
    side: 'query',
    prompt: flags.prompt,
    rows,
    asked: flags.model,
    isQuiet: flags.quiet === true,
    waitLimitMs: flags.waitLimit,
  });
  const answer = await withSteps(terminal, flags.quiet !== true, (begin) => {
    begin(`searching ${collection.rows.toLocaleString('en')} rows of ${collection.name}@${collection.version}`);
    return searchCollection(settings, {
      collection,
      queries,
      k: flags.k,
      metric: flags.metric,
      isApproximate: flags.ann === true,
      signal: terminal.signal,
    });
  });
  const found = answer.found[0]!;
  if (flags.json === true)
    return printJson(terminal, {
      query: text,
      collection: `${collection.name}@${collection.version}`,
      metric: flags.metric,
      ...(answer.recall === undefined ? {} : { recall: answer.recall }),
      found,
    });
  if (flags.quiet !== true) {
    const how =
      flags.ann === true
        ? `candidates${answer.recall === undefined ? '' : ` (${recallText(answer.recall)})`}, re-scored exactly`
        : `all ${collection.rows.toLocaleString('en')} rows`;
    say(terminal, `${collection.name}@${collection.version}: ${how}, ${answer.isa}, ${answer.ms.toFixed(1)} ms`);
  }
  await print(terminal, found.map((row, at) => lineOf(row, at, hasColor(terminal))).join(''));
}

function lineOf({ id, name, score }: FoundRow, at: number, isColored: boolean): string {
  const shown = name ?? `row ${id}`;
  return `${at + 1}. ${isColored ? `\u001B[1m${shown}\u001B[22m` : shown}  (${score.toFixed(4)})\n`;
}

export interface SimilarityFlags {
  readonly metric: Metric;
  /** A setting, see SearchFlags. */
  readonly model?: string;
  /** Of an Arrow or Parquet file: the column of the vectors. */
  readonly column?: string;
  readonly output?: string;
  /** Milliseconds. */
  readonly waitLimit?: number;
  readonly json?: boolean;
  readonly quiet?: boolean;
}

/** Each side is a file of vectors, told by its extension, or a text. */
export async function similarity(terminal: Terminal, a: string, b: string, flags: SimilarityFlags): Promise<void> {
  await withSteps(terminal, flags.quiet !== true, (begin) => compare(terminal, [a, b], flags, begin));
}

async function compare(
  terminal: Terminal,
  sides: readonly [string, string],
  flags: SimilarityFlags,
  begin: (step: string) => void,
): Promise<void> {
  const settings = await collectionSettings(terminal, flags);
  const output = flags.output === undefined ? undefined : await checkMatrixTarget(flags.output);
  begin(`reading ${sides.filter(isVectorFile).join(' and ')}`);
  const given = await allOrNone(terminal.signal, sides, async (side, signal) =>
    isVectorFile(side) ? readMatrix({ signal, stderr: terminal.stderr }, side, flags) : textOrRefusal(side),
  );
  const isQuiet = flags.quiet === true;
  const texts = given.filter((side) => typeof side === 'string');
  const files = given.filter((side) => typeof side !== 'string');
  if (files.length === 2) compareModels(terminal, files as [VectorFile, VectorFile], isQuiet);
  if (texts.length > 0) begin('embedding what is text');
  const vectors =
    texts.length === 0
      ? undefined
      : await embedded(terminal, settings, texts, {
          isQuiet,
          asked: flags.model,
          waitLimitMs: flags.waitLimit,
          ...(files[0] && { rows: files[0] }),
        });
  let next = 0;
  const [left, right] = given.map((side) =>
    typeof side === 'string'
      ? matrixOf(vectors!.values.slice(next * vectors!.dims, ++next * vectors!.dims), vectors!.dims)
      : side.matrix,
  ) as [Matrix, Matrix];
  begin(`comparing ${left.rows.toLocaleString('en')} × ${right.rows.toLocaleString('en')} vectors`);
  const scores = await kernelsOf(settings).cosine(left, right, { metric: flags.metric, signal: terminal.signal });
  begin('writing their scores');
  if (output !== undefined) {
    await writeMatrix(output, scores, left.rows, right.rows);
    if (flags.json === true)
      return print(
        terminal,
        `${JSON.stringify({ metric: flags.metric, rows: left.rows, columns: right.rows, output: output.name })}\n`,
      );
    if (flags.quiet !== true) say(terminal, `${left.rows} × ${right.rows} scores → ${output.name}`);
    return;
  }
  const rows = Array.from({ length: left.rows }, (_, row) =>
    Array.from(scores.subarray(row * right.rows, (row + 1) * right.rows)),
  );
  if (flags.json === true)
    return print(
      terminal,
      `${JSON.stringify({ metric: flags.metric, rows: left.rows, columns: right.rows, scores: rows })}\n`,
    );
  await print(terminal, rows.map((row) => `${row.map((score) => score.toFixed(6)).join('\t')}\n`).join(''));
}

/** Where one side cannot be read, the other one is not read to its end: it is closed before that is told. */
async function allOrNone<Read>(
  interruption: AbortSignal,
  sides: readonly string[],
  read: (side: string, signal: AbortSignal) => Promise<Read>,
): Promise<Read[]> {
  const refused = new AbortController();
  const signal = AbortSignal.any([interruption, refused.signal]);
  const reads = sides.map((side) => read(side, signal));
  try {
    return await Promise.all(reads);
  } catch (error) {
    refused.abort(error);
    await Promise.allSettled(reads);
    throw error;
  }
}

/** A text, unless it is the name of a file, whose content somebody wanted to compare. */
async function textOrRefusal(side: string): Promise<string> {
  if (vectorFileCure(side) !== undefined) readVectors(side); // says how to come by a file that can be read
  if (!isObjectAddress(side) && (await stat(side).catch(() => undefined))?.isFile() !== true) return side;
  const [what, other] = isObjectAddress(side) ? ['an object', 'a word before'] : ['a file', 'a full stop behind'];
  throw new ShoalError(
    'USAGE',
    `${side} is ${what}, and none of vectors (.npy, .arrow, .parquet, .jsonl): shoal embed ${side} -o x.arrow makes ` +
      `one. To compare these words themselves write them in another way, with ${other} them`,
    { file: side },
  );
}

async function readMatrix(
  terminal: Pick<Terminal, 'signal' | 'stderr'>,
  path: string,
  { column }: SimilarityFlags,
): Promise<VectorFile> {
  const isThere = isObjectAddress(path) || (await stat(path).catch(() => undefined)) !== undefined;
  if (!isThere)
    throw new ShoalError(
      'FILE_UNREADABLE',
      `cannot read ${path}: there is no such file. What ends in ${extname(path)} is a file of vectors; write a ` +
        'text in another way, with a full stop behind it',
      { file: path },
    );
  const parts: Float32Array[] = [];
  let [dims, model]: [number, string | undefined] = [0, undefined];
  for await (const batch of vectorsIn(path, { ...columnOf(path, column), withIds: false }, terminal)) {
    terminal.signal.throwIfAborted();
    dims ||= batch.dims;
    if (batch.dims !== dims)
      throw new ShoalError('DIMENSIONS_MISMATCH', `${path} holds vectors of ${dims} and of ${batch.dims} dimensions`, {
        file: path,
      });
    model = batch.model;
    parts.push(batch.vectors);
  }
  if (dims === 0) throw new ShoalError('INPUT_INVALID', `${path} holds no vectors`, { file: path });
  const values = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => (values.set(part, at), at + part.length), 0);
  return { name: path, dims, model, matrix: matrixOf(values, dims) };
}

/** Rows that queries are compared with, and the model that made them; undefined: not known. */
interface KnownRows {
  readonly name: string;
  readonly dims: number;
  readonly model: string | undefined;
}

interface VectorFile extends KnownRows {
  readonly matrix: Matrix;
}

/** Two files that say different models are refused; of one that says none it is said that nobody knows. */
function compareModels(terminal: Terminal, [a, b]: readonly [VectorFile, VectorFile], isQuiet: boolean): void {
  if (a.model !== undefined && b.model !== undefined && !isSameModel(a.model, b.model))
    throw new ShoalError(
      'DIMENSIONS_MISMATCH',
      `${a.name} was embedded by ${a.model} and ${b.name} by ${b.model}: vectors of two models cannot be compared`,
      { models: [a.model, b.model] },
    );
  if ((a.model === undefined) === (b.model === undefined) || isQuiet) return;
  const [known, other] = a.model === undefined ? [b, a] : [a, b];
  say(terminal, `${known.name} was embedded by ${known.model}; ${other.name} does not say which model made it`);
}

/** Of two files one may have no columns. */
function columnOf(path: string, column: string | undefined): { readonly column?: string } {
  return column === undefined || !(isParquet(path) || vectorFormat(path) === 'arrow') ? {} : { column };
}

/** Looked at before anything is embedded. */
async function checkMatrixTarget(output: string): Promise<FileTarget> {
  if (!output.endsWith('.npy'))
    throw new ShoalError(
      'USAGE',
      `the output ${output} is not called .npy, which is the one form that a matrix is written in`,
    );
  const target = await checkTarget(output, []);
  if (target.kind !== 'file') throw new ShoalError('USAGE', `the output ${output} is a device or a pipe; name a file`);
  return target;
}

async function writeMatrix(
  { name, path }: FileTarget,
  scores: Float32Array,
  rows: number,
  columns: number,
): Promise<void> {
  const temporary = `${path}.${process.pid}.new`;
  try {
    await writeFile(temporary, Buffer.concat([npyHeader(rows, columns), npyRows(scores)]));
    await rename(temporary, path);
  } catch (error) {
    throw writeFailure(name, error);
  } finally {
    await rm(temporary, { force: true });
  }
}

interface EmbedTerms {
  readonly isQuiet: boolean;
  readonly waitLimitMs: number | undefined;
  /** What the texts are to the rows: which prompt goes before them unless one is named. */
  readonly side?: 'query';
  readonly prompt?: string | undefined;
  /** What --model says in this call. */
  readonly asked: string | undefined;
  /** Whose model embeds; absent: the model of the settings. */
  readonly rows?: KnownRows;
}

async function embedded(
  terminal: Terminal,
  settings: Settings,
  texts: readonly string[],
  { isQuiet, waitLimitMs, side, prompt, asked, rows }: EmbedTerms,
): Promise<Matrix> {
  if (rows !== undefined) refuseUnknownModel(rows, asked);
  const name = rows?.model?.split('@')[0] ?? settings.model;
  const options = { settings: { ...settings, model: name }, isQuiet, waitLimitMs };
  const model = expectEmbedder(await fetchModel(terminal, name, options));
  if (rows !== undefined) refuseOtherModel(model, rows);
  refuseMissingPrompt(model, prompt);
  const { withSession } = await import('../processes/session.ts');
  return withSession(terminal, { ...options, model }, async ({ client, signal }) => {
    const { vectors } = await client.embed([...texts], {
      class: 'interactive',
      signal,
      ...(prompt !== undefined ? { prompt } : side === undefined ? {} : sidePrompt(model, side)),
    });
    return matrixOf(vectors, model.dims);
  });
}

/** Widths alone do not tell models from each other: 384 is that of many. */
function refuseUnknownModel({ name, model }: KnownRows, asked: string | undefined): void {
  if (model === undefined && asked === undefined)
    throw new ShoalError(
      'USAGE',
      `nobody knows which model made the vectors of ${name}: say --model NAME, the model that made them. A collection ` +
        'that is built with --model, from texts or from what shoal embed writes as .arrow keeps it',
    );
  if (model !== undefined && asked !== undefined && !isSameModel(model, asked))
    throw new ShoalError(
      'USAGE',
      `--model ${asked} is asked for and ${name} was embedded by ${model}: vectors of two models cannot be compared; ` +
        'leave out --model',
    );
}

function refuseOtherModel(model: StoredModel, { name, dims, model: known }: KnownRows): void {
  const here = `${model.name}@${model.revision}`;
  if (known !== undefined && !isSameModel(known, here))
    throw new ShoalError(
      'DIMENSIONS_MISMATCH',
      `${name} was embedded by ${known} and here is ${here}: their vectors cannot be compared; build it again`,
      {},
    );
  if (model.dims !== dims)
    throw new ShoalError(
      'DIMENSIONS_MISMATCH',
      `${name} has rows of ${dims} dimensions and ${model.name} makes ${model.dims}: name its model with --model`,
      {},
    );
}

export interface SpreadFlags {
  readonly seed: readonly string[];
  readonly k: number;
  readonly steps: number;
  readonly decay: number;
  readonly threshold: number;
  readonly save?: string;
  readonly delimiter?: string;
  /** Undefined: told by the first row. */
  readonly header?: boolean;
  readonly json?: boolean;
  readonly quiet?: boolean;
}

/** `graph`: an edge list, or the name of a graph that was saved. */
export async function spread(terminal: Terminal, graphOrFile: string, flags: SpreadFlags): Promise<void> {
  await withSteps(terminal, flags.quiet !== true, (begin) => spreadOver(terminal, graphOrFile, flags, begin));
}

async function spreadOver(
  terminal: Terminal,
  graphOrFile: string,
  flags: SpreadFlags,
  begin: (step: string) => void,
): Promise<void> {
  const settings = await collectionSettings(terminal, flags);
  const { collectionsDir: folder } = settings;
  const isFile = (await stat(graphOrFile).catch(() => undefined))?.isFile() === true;
  begin(`reading ${graphOrFile}`);
  const list =
    isFile || graphOrFile.includes('.')
      ? await untilAborted(readEdgeList(graphOrFile, { ...edgeOptions(flags), terminal }), terminal.signal)
      : undefined;
  if (list === undefined) refuseFlagsOfLists(graphOrFile, flags);
  if (flags.quiet !== true) for (const note of list?.notes ?? []) say(terminal, note);
  const graph = list?.graph ?? (await openGraph(folder, graphOrFile));
  if (flags.save !== undefined) {
    begin(`keeping ${graphOrFile} as ${flags.save}`);
    await saveGraph(folder, flags.save, graph);
    if (flags.quiet !== true)
      say(
        terminal,
        `kept as ${flags.save}: ${(await graphInfo(folder, flags.save)).nodes.toLocaleString('en')} nodes, ` +
          `${graph.source.length.toLocaleString('en')} edges`,
      );
  }
  if (flags.seed.length === 0) {
    if (flags.save !== undefined) return;
    throw new ShoalError(
      'USAGE',
      'nothing to begin with: name a node with --seed NODE or --seed NODE=0.5, as often as you like',
    );
  }
  const seeds = seedsOf(graph, flags.seed);
  const { k, steps, decay, threshold } = flags;
  begin(`spreading over ${graph.source.length.toLocaleString('en')} edges of ${graphOrFile}`);
  const { ids, scores } = hitsOf(
    await kernelsOf(settings).spread(graph, [seeds], { k, steps, decay, threshold, signal: terminal.signal }),
    0,
  );
  const found = Array.from(ids, (id, at) => ({
    node: graph.names?.[Number(id)] ?? String(id),
    activation: scores[at]!,
  }));
  if (flags.json === true)
    return printJson(terminal, {
      nodes: graph.nodes,
      edges: graph.source.length,
      steps,
      decay,
      threshold,
      found,
    });
  await print(terminal, found.map(({ node, activation }) => `${activation.toFixed(6)}  ${node}\n`).join(''));
}

function edgeOptions({ delimiter, header }: SpreadFlags): EdgeListOptions {
  return { delimiter, hasHeader: header };
}

function refuseFlagsOfLists(name: string, { delimiter, header }: SpreadFlags): void {
  if (delimiter !== undefined || header !== undefined)
    throw new ShoalError(
      'USAGE',
      `--delimiter, --header and --no-header are about files of edges, and ${name} is a graph that was saved`,
    );
}

function seedsOf(graph: Graph, given: readonly string[]): Seeds {
  const numbers = graph.names === undefined ? undefined : new Map(graph.names.map((name, node) => [name, node]));
  const numberOf = (id: string): number | undefined =>
    numbers === undefined ? (/^(0|[1-9]\d{0,9})$/.test(id) ? Number(id) : undefined) : numbers.get(id);
  const seeds = given.map((seed) => {
    // a node may be called "a=1"
    const whole = numberOf(seed);
    const [, node = seed, value = '1'] = whole === undefined ? (/^([^]+)=([\d.eE+-]+)$/.exec(seed) ?? []) : [];
    const number = whole ?? numberOf(node);
    if (number === undefined || number >= graph.nodes || !Number.isFinite(Number(value)))
      throw new ShoalError(
        'GRAPH_INVALID',
        `there is no node "${node}" among the ${graph.nodes.toLocaleString('en')} of the graph`,
        { node },
      );
    return { node: number, value: Number(value) };
  });
  return { nodes: Uint32Array.from(seeds, ({ node }) => node), values: Float32Array.from(seeds, ({ value }) => value) };
}

async function printJson(terminal: Terminal, report: Readonly<Record<string, unknown>>): Promise<void> {
  await print(terminal, `${JSON.stringify(report, null, 1)}\n`);
}

// Files, cut into the parts of a run: what each is, and what the run is called. The same files, options and folder give
// the same parts with the same ids, whoever plans them and whenever. Asks no queue server and writes nothing.

import { readdir, realpath } from 'node:fs/promises';
import { extname, join, resolve } from 'node:path';
import {
  MAX_PARTS,
  MAX_ROWS_PER_PART,
  ShoalError,
  partRows,
  runId,
  type Part,
  type PartOutput,
  type PartSource,
} from '@shoal/contract';
import { refuseUncarriable } from '@shoal/worker/files/carried-columns';
import { compressionOf } from '@shoal/worker/files/compression';
import type { RowGroup } from '@shoal/worker/files/footer';
import { lineRecords } from '@shoal/worker/files/line-records';
import { idColumn, textColumn } from '@shoal/worker/files/parquet-records';
import type { OnAway } from '@shoal/worker/files/object-source';
import { openAt, openChunks, type Input } from '../input/files.ts';
import { isObjectAddress, objectsAt } from '../input/object-address.ts';
import { lineRanges } from './line-ranges.ts';
import type { RunPlace } from './run-place.ts';

/** A quarter of a million rows are seconds on a large GPU, and some tens of megabytes of vectors. */
export const PART_ROWS = 262_144;
/** Of all objects and of the manifest. */
export const STEM = 'part';

const READ_BYTES = 1024 * 1024;
const CUT_FORMATS = ['parquet', 'jsonl', 'text'] as const;
const CUT_EXTENSIONS = ['.parquet', '.pq', '.jsonl', '.ndjson', '.txt', '.text'];

export interface PlanTerms {
  /** As workers see it. */
  readonly place: Pick<RunPlace, 'name' | 'output'>;
  readonly partRows: number;
  readonly textField: string | undefined;
  readonly idField: string | undefined;
  readonly onError: 'fail' | 'skip';
  readonly dtype: PartOutput['dtype'];
  readonly vectorField: string | undefined;
  readonly withText: boolean;
  readonly model: Part['model'];
  /** Vectors will be those of a simulation. */
  readonly isTrial: boolean;
  /** Told how many bytes have been read of files of lines, which are counted. */
  readonly onBytes?: (bytes: number) => void;
  /** Told each time a store that has an input is away. */
  readonly onAway?: OnAway;
  readonly signal?: AbortSignal;
}

export interface Plan {
  readonly run: string;
  readonly parts: readonly Part[];
  /** Rows or lines that the parts may have. */
  readonly rows: number;
  /** Of the sources. */
  readonly bytes: number;
}

/**
 * Folders, prefixes and patterns of buckets become the files in them that can be cut, by name; everything else stays.
 */
export async function filesIn(sources: readonly string[], signal: AbortSignal): Promise<string[]> {
  const found = await Promise.all(
    sources.map(async (source) => {
      if (isPattern(source)) return objectsIn(source, signal);
      const entries = await readdir(source, { withFileTypes: true }).catch(() => undefined);
      if (entries === undefined) return [source];
      const names = entries.filter((one) => !one.isDirectory() && !one.name.startsWith('.')).map(({ name }) => name);
      const files = names.filter((name) => CUT_EXTENSIONS.includes(extname(name).toLowerCase())).toSorted();
      if (files.length > 0) return files.map((name) => join(source, name));
      throw new ShoalError(
        'FILE_UNREADABLE',
        `the folder ${source} has no file that can be cut into parts (${CUT_EXTENSIONS.join(', ')}); files in folders ` +
          'within it have to be named',
      );
    }),
  );
  return found.flat();
}

/**
 * USAGE where what is written would be read by the same command the next time: `output`, with "/" at its end, is a folder
 * or prefix that is read, or one of the files lies in it under a name of its objects.
 */
export async function refuseOwnObjects(
  sources: readonly string[],
  files: readonly string[],
  output: string,
): Promise<void> {
  const target = await placeOf(output);
  const isObject = new RegExp(`^${STEM}-\\d{5}\\.\\w+$`);
  for (const source of sources)
    if ((await placeOf(source)) === target)
      throw new ShoalError(
        'USAGE',
        `${source} is read, and -o ${output} would write into it: the same command, which goes on where another was ` +
          'interrupted, would take its objects for sources. Name another folder, which may lie within this one',
      );
  for (const file of files) {
    const [, folder = './', name = ''] = /^(.*\/)?([^/]*)$/s.exec(file) ?? [];
    if (isObject.test(name) && (await placeOf(folder)) === target)
      throw new ShoalError(
        'USAGE',
        `${file} is named as an object of a run in ${output} would be: it would be written over, or it is one. Name another ` +
          'place, or other sources',
      );
  }
}

async function placeOf(name: string): Promise<string> {
  if (isObjectAddress(name)) return name.endsWith('/') ? name : `${name}/`;
  return realpath(name).catch(() => resolve(name));
}

/** Of a bucket: s3://BUCKET/PREFIX/, or with * (of one level) or ** (of all) in it. */
function isPattern(source: string): boolean {
  return isObjectAddress(source) && (source.endsWith('/') || source.includes('*') || !source.slice(5).includes('/'));
}

async function objectsIn(pattern: string, signal: AbortSignal): Promise<string[]> {
  const all = await objectsAt(pattern, signal);
  const found = pattern.includes('*')
    ? all
    : all.filter((name) => CUT_EXTENSIONS.includes(extname(name).toLowerCase()));
  if (found.length > 0) return found;
  throw new ShoalError(
    'FILE_UNREADABLE',
    pattern.includes('*')
      ? `no object is called like ${pattern} (* stands for characters of one level, ** for those of all)`
      : `below ${pattern} directly lies no object that can be cut into parts (${CUT_EXTENSIONS.join(', ')}); ${pattern}** means ` +
          'those further below as well',
  );
}

/** Throws USAGE, FILE_UNREADABLE and INPUT_INVALID, naming the file. */
export async function planParts(inputs: readonly Input[], terms: PlanTerms): Promise<Plan> {
  const { place, partRows: mostRows, textField, idField, onError, model, isTrial } = terms;
  refuseUncut(inputs);
  const output = await outputOf(inputs, terms);
  const sources = inputs.map(sourceOf);
  const cut: Pick<Part, 'range' | 'source' | 'format'>[] = [];
  for (const [at, input] of inputs.entries())
    for (const range of await rangesOf(input, terms))
      cut.push({ format: input.format as Part['format'], source: sources[at]!, range });
  if (cut.length === 0)
    throw new ShoalError('INPUT_INVALID', `${namesOf(inputs)} has no rows: there is nothing to put into ${place.name}`);
  if (cut.length > MAX_PARTS)
    throw new ShoalError(
      'USAGE',
      `${cut.length.toLocaleString('en')} parts are more than a run may have (${MAX_PARTS.toLocaleString('en')}): make ` +
        'them larger with --part-rows, or divide the files among several runs. Row groups of Parquet are not cut',
    );
  const fields = {
    ...(textField !== undefined && { textField }),
    ...(idField !== undefined && { idField }),
    onError,
    output,
    model,
  };
  const run = runId({ sources, output, options: { ...fields, mostRows, ...(isTrial && { isTrial }) } });
  const parts = cut.map((one, number): Part => ({ run, number, of: cut.length, ...one, ...fields }));
  return {
    run,
    parts,
    rows: parts.reduce((sum, part) => sum + partRows(part), 0),
    bytes: sources.reduce((sum, { bytes }) => sum + bytes, 0),
  };
}

function refuseUncut(inputs: readonly Input[]): void {
  const problems = inputs.flatMap((input) => {
    const { name, format, path, object, identity } = input;
    const problem =
      (path === undefined && object === undefined) || identity === undefined
        ? 'is no file that workers could open'
        : compressionOf(name) !== undefined
          ? 'is compressed as a whole, and has no places to begin at'
          : CUT_FORMATS.some((one) => one === format)
            ? undefined
            : `is of ${format}; Parquet, JSONL and plain text are cut`;
    return problem === undefined ? [] : [`${name} ${problem}`];
  });
  if (problems.length > 0)
    throw new ShoalError(
      'USAGE',
      `${problems.join('\n')}\nworkers read parts of files by themselves; with -o FILE this command reads whatever there is`,
    );
  const twice = inputs.find((input, at) => inputs.findIndex((other) => sameness(other) === sameness(input)) !== at);
  if (twice !== undefined) throw new ShoalError('USAGE', `${twice.name} is given twice; its rows would be there twice`);
}

function sameness({ inode, name }: Input): string {
  return inode ?? name;
}

async function outputOf(inputs: readonly Input[], terms: PlanTerms): Promise<PartOutput> {
  const { place, dtype, vectorField, withText, idField } = terms;
  const parquet = inputs.filter(({ format }) => format === 'parquet');
  if (parquet.length > 0 && parquet.length < inputs.length)
    throw new ShoalError(
      'USAGE',
      'the columns of Parquet files go along into the objects, and some of the inputs are no Parquet files; embed them ' +
        'into another folder',
    );
  const carries = parquet.length > 0;
  if (carries && withText)
    throw new ShoalError('USAGE', '--with-text: the text goes along with the other columns of a Parquet file');
  for (const input of parquet) {
    const file = { open: () => openAt(input), parquet: input.parquet! };
    refuseUncarriable([file], vectorField ?? 'embedding', dtype);
    textColumn(input.parquet!, terms.textField ?? 'text');
    idColumn(input.parquet!, idField);
  }
  return {
    ...place.output,
    stem: STEM,
    format: 'parquet',
    dtype,
    ...(vectorField !== undefined && { vectorField }),
    ...(carries && { carries }),
    hasIds: !carries && (idField !== undefined || (await hasIds(inputs[0]!, terms))),
    ...(withText && { withText }),
  };
}

/** Whether the first good record has an id, as every other then must. */
async function hasIds(input: Input, terms: PlanTerms): Promise<boolean> {
  const { textField } = terms;
  if (input.format !== 'jsonl') return false;
  const options = { format: input.format, name: input.name, firstIndex: 0, textField, idField: undefined };
  for await (const found of lineRecords(await chunksOf(input, terms), options))
    if ('text' in found) return found.id !== undefined;
  return false;
}

/** From its beginning. */
async function chunksOf({ path, object }: Input, { onAway }: PlanTerms): Promise<AsyncIterable<Buffer>> {
  return object === undefined ? openChunks(path!, READ_BYTES) : object.chunks(onAway);
}

function sourceOf({ path, object, identity }: Input): PartSource {
  const { bytes, modifiedMs } = identity!;
  if (object !== undefined) return object.source;
  return { kind: 'file', path: resolve(path!), bytes, modifiedMs };
}

async function rangesOf(input: Input, terms: PlanTerms): Promise<readonly Part['range'][]> {
  if (input.parquet !== undefined) return groupRanges(input.name, input.parquet.groups, terms.partRows);
  let bytes = 0;
  const ranges = await lineRanges(
    counted(await chunksOf(input, terms), terms, (more) => (bytes += more)),
    terms.partRows,
  );
  if (bytes === input.bytes) return ranges;
  throw new ShoalError(
    'SOURCE_CHANGED',
    `${input.name} had ${input.bytes} bytes when this command began and ${bytes} when it was read; run it again once the ` +
      'file is whole',
    { file: input.name },
  );
}

async function* counted(
  chunks: AsyncIterable<Buffer>,
  { onBytes, signal }: PlanTerms,
  onMore: (bytes: number) => void,
): AsyncGenerator<Buffer> {
  for await (const chunk of chunks) {
    signal?.throwIfAborted();
    onMore(chunk.length);
    onBytes?.(chunk.length);
    yield chunk;
  }
}

/** Row groups of up to so many rows together; a larger one alone, since none is cut. */
export function groupRanges(
  name: string,
  groups: readonly Pick<RowGroup, 'rows'>[],
  mostRows: number,
): Extract<Part['range'], { kind: 'groups' }>[] {
  const ranges: { kind: 'groups'; from: number; to: number; firstRow: number; rows: number }[] = [];
  let firstRow = 0;
  for (const [at, { rows }] of groups.entries()) {
    if (rows > MAX_ROWS_PER_PART)
      throw new ShoalError(
        'INPUT_INVALID',
        `row group ${at + 1} of ${name} has ${rows.toLocaleString('en')} rows, a part may have ` +
          `${MAX_ROWS_PER_PART.toLocaleString('en')}, and row groups are not cut; write the file with smaller ones`,
      );
    const last = ranges.at(-1);
    if (last !== undefined && last.rows + rows <= mostRows) [last.to, last.rows] = [at + 1, last.rows + rows];
    else if (rows > 0) ranges.push({ kind: 'groups', from: at, to: at + 1, firstRow, rows });
    firstRow += rows;
  }
  return ranges;
}

export function namesOf(inputs: readonly Pick<Input, 'name'>[]): string {
  const [first, ...others] = inputs.map(({ name }) => name);
  return others.length === 0 ? first! : `${first} and ${others.length} other ${others.length === 1 ? 'file' : 'files'}`;
}

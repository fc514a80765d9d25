// `shoal embed`: lines in, vectors out, in the same order. The story is `embed`: check everything that can be checked,
// read the first record, open the session, stream. Nothing is started for a request that cannot succeed.

import { randomUUID } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { ShoalError, missingPrompt, promptText, type OutputDtype } from '@shoal/contract';
import type { Settings } from '@shoal/core';
import { expectEmbedder, type StoredModel } from '@shoal/models';
import { checkInputs, refuseFieldsWithoutEffect, totalBytes, type Input } from '../input/files.ts';
import { cutLong, pooled, type Piece } from '../input/long-texts.ts';
import { RecordReader } from '../input/record-reader.ts';
import type { TextFormat } from '../input/record.ts';
import { SkippedList, skippedPath } from '../output/beside.ts';
import { leftovers, removeRun } from '../output/earlier-run.ts';
import { refuseUncarriable } from '../output/carried-columns.ts';
import { interruptionReport } from '../output/interruption-report.ts';
import { withOutputLock } from '../output/output-lock.ts';
import { openEncoder } from '../output/row-encoder.ts';
import type { CarriedFile, RowForm } from '../output/row-form.ts';
import {
  FileWriter,
  SpooledWriter,
  StreamWriter,
  deviceSink,
  type Abandoned,
  type ByteSink,
  type RowWriter,
} from '../output/row-writer.ts';
import {
  READING_RULES,
  READING_RULES_NAME,
  differences,
  readRunState,
  withOrigin,
  TRIAL_NAME,
  type RunRequest,
  type RunState,
} from '../output/run-state.ts';
import { parseSink, type SinkCounts, type SinkForm } from '../sinks/sink.ts';
import { SinkWriter, sinkGone } from '../output/sink-writer.ts';
import {
  besideOf,
  checkTarget,
  existingShards,
  outputCompression,
  outputFormat,
  shardTarget,
  sinkTarget,
  type FileTarget,
  type OutputFormat,
  type Target,
} from '../output/target.ts';
import { duration, rowProgress } from '../progress.ts';
import { fetchModel, withSession, type Session } from '../processes/session.ts';
import { refuseOtherVectors } from '../processes/vectors-origin.ts';
import { settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';
import { commandOf } from '../typed-command.ts';

export interface EmbedFlags {
  readonly output?: string;
  /** A table, instead of a file. */
  readonly to?: string;
  readonly createTable?: boolean;
  readonly outputFormat?: OutputFormat;
  readonly format?: TextFormat;
  readonly textField?: string;
  readonly idField?: string;
  readonly delimiter?: string;
  /** False: --no-header. */
  readonly header: boolean;
  readonly withText?: boolean;
  readonly shardRows?: number;
  readonly onError: 'fail' | 'skip';
  readonly prompt?: string;
  readonly truncate: 'end' | 'error';
  /** What becomes of a text that is longer than a row; undefined: as `truncate` says. */
  readonly long?: 'cut' | 'chunk' | 'error';
  readonly dtype?: OutputDtype;
  /** Of Parquet: the column of the vectors. */
  readonly vectorField?: string;
  readonly dimensions?: number;
  /** Undefined: as the model has it. */
  readonly normalize?: boolean;
  readonly resume?: boolean;
  readonly fresh?: boolean;
  readonly tenant?: string;
  readonly class?: 'interactive' | 'bulk';
  /** Milliseconds. */
  readonly waitLimit?: number;
  /** A report on standard output, which has no rows then. */
  readonly json?: boolean;
  readonly quiet?: boolean;
}

export async function embed(terminal: Terminal, files: readonly string[], given: EmbedFlags): Promise<void> {
  const flags = withLong(given);
  const settings = await settingsOf(terminal, flags);
  refuseSilentTerminal(terminal, files);
  const inputs = await checkInputs(files, flags.format);
  const sink = flags.to === undefined ? undefined : await parseSink(flags.to);
  refuseFlagsOfSinks(flags);
  const format = sink === undefined ? outputFormat(flags.output, flags.outputFormat) : 'jsonl';
  const target = sink === undefined ? await checkTarget(flags.output, inputs) : sinkTarget(sink);
  refuseBinaryToTerminal(terminal, target, format);
  outputCompression(flags.output, format);
  refuseFlagsWithoutEffect(inputs, target, format, flags);
  refuseLostColumns(inputs, format, flags);
  const standing: Standing = { left: undefined, earlier: undefined };
  try {
    const request = { settings, flags, inputs, format, target, standing };
    await withOutputLock(target, () => embedClaimed(terminal, request));
  } catch (error) {
    tellEnding(terminal, { flags, target, standing, error });
    throw error;
  }
}

/** What a command that does not come to its end leaves, as far as it got. */
interface Standing {
  /** Rows of an earlier run, until this one has its own to tell. */
  earlier: RunState | undefined;
  /** Set once this run had an output. */
  left: Abandoned | undefined;
}

/**
 * For programs, also where not one row had come: a command that was interrupted always says what it leaves. One that
 * was called wrongly or could not read its input says so on standard error alone.
 */
function tellEnding(
  terminal: Terminal,
  {
    flags,
    target,
    standing: { left, earlier },
    error,
  }: Pick<Request, 'flags' | 'target' | 'standing'> & { readonly error: unknown },
): void {
  const isInterrupted = terminal.signal.aborted;
  if (target.kind !== 'file' || (left === undefined && !isInterrupted)) return;
  const before = earlier === undefined || earlier.rows === 0 ? undefined : keptBefore(target, earlier, flags);
  if (left === undefined && before !== undefined)
    say(
      terminal,
      `${before.rows.toLocaleString('en')} rows of an unfinished run stay in ${before.file}; the same command goes on ` +
        `with them: ${commandOf(terminal, ['--fresh'])}`,
    );
  if (flags.json === true)
    terminal.stdout.write(
      interruptionReport(
        terminal,
        left ?? before ?? { kind: 'nothing' },
        isInterrupted ? terminal.signal.reason : error,
      ),
    );
}

function keptBefore(
  target: FileTarget,
  { rows, shard }: RunState,
  { shardRows }: EmbedFlags,
): Extract<Abandoned, { kind: 'kept' }> {
  const { partial } = shardRows === undefined ? target : shardTarget(target, shard);
  return { kind: 'kept', rows, file: join(dirname(target.name), basename(partial)) };
}

/** The output is this run's alone, for as long as this takes. */
async function embedClaimed(
  terminal: Terminal,
  { settings, flags, inputs, format, target, standing }: Omit<Request, 'earlier' | 'records' | 'skipped'>,
): Promise<void> {
  const earlier = await findEarlierRun(target, inputs, flags);
  standing.earlier = earlier;
  const { textField, idField, delimiter, header: hasHeader, onError } = flags;
  const skipped = new SkippedList();
  const records = new RecordReader(terminal, inputs, {
    textField,
    idField,
    delimiter,
    hasHeader,
    skipsBad: onError === 'skip',
    onSkip: (record) => skipped.add(record),
    hasOneColumn:
      (flags.to !== undefined || format !== 'jsonl') && format !== 'npy' && carriedOf(inputs, format) === undefined,
  });
  const request: Request = { settings, flags, inputs, format, target, earlier, records, skipped, standing };
  const options = { settings, isQuiet: flags.quiet === true, waitLimitMs: flags.waitLimit };
  const isEmpty = await records.isEmpty();
  const model = expectEmbedder(await fetchModel(terminal, settings.model, options));
  refuseDimensions(model, flags.dimensions);
  refuseMissingPrompt(model, flags.prompt);
  refuseOwnLengths(model, flags.normalize);
  // whether there is a trial is known when the queue server is; until then it is as it was
  const asked = withOrigin(runRequest(model, request), earlier?.request.options[TRIAL_NAME] !== undefined);
  const goesOnWith = refuseOtherRun(target, earlier, asked);
  const dims = flags.dimensions ?? model.dims;
  const checked: CheckedRequest = { ...request, earlier: goesOnWith, asked, dims };
  if (target.kind === 'file' && target.sink !== undefined) {
    if (!isEmpty && !records.hasIds)
      throw new ShoalError(
        'USAGE',
        'rows of a table need ids, by which they are replaced and not doubled: --id-field NAME',
      );
    // a table that cannot take the rows is refused before anything is started
    await (await target.sink.open(sinkForm(flags, dims)).catch(sinkGone)).close();
  }
  if (isEmpty) return writeNothing(terminal, { ...checked, asked: withOrigin(asked, false) });
  await withSession(terminal, { ...options, model }, (session) => {
    const askedHere = withOrigin(asked, session.isTrial);
    const earlierHere = refuseOtherRun(target, goesOnWith, askedHere);
    return run(terminal, session, { ...checked, asked: askedHere, earlier: earlierHere });
  });
}

/** No record, no job: an output without rows needs the model's dimensions and nothing else. */
async function writeNothing(terminal: Terminal, request: CheckedRequest): Promise<void> {
  const { earlier } = request;
  // an input that has become empty is another one, and was refused; rows are here only where there is one of both
  const { writer } = await openWriter(terminal, { ...request, earlier: earlier?.rows === 0 ? undefined : earlier });
  await writer.finish();
  await tellDone(terminal, { rows: 0, rowsBefore: 0, truncated: 0, failed: 0, long: NO_LONG }, request, { seconds: 0 });
}

interface Request {
  readonly settings: Settings;
  readonly flags: EmbedFlags;
  readonly inputs: readonly Input[];
  readonly format: OutputFormat;
  readonly target: Target;
  readonly earlier: RunState | undefined;
  readonly records: RecordReader;
  readonly skipped: SkippedList;
  readonly standing: Standing;
}

/** The model agreed to it. */
interface CheckedRequest extends Request {
  readonly asked: RunRequest;
  readonly dims: number;
}

async function run(terminal: Terminal, session: Session, request: CheckedRequest): Promise<void> {
  const { writer, state } = await openWriter(terminal, request);
  const startedMs = performance.now();
  try {
    const done = await stream(terminal, session, { ...request, writer, state });
    await writer.finish();
    const seconds = (performance.now() - startedMs) / 1_000;
    await tellDone(terminal, done, request, { seconds, ...listsOf(writer) });
  } catch (error) {
    const left = await writer.abandon();
    request.standing.left = left;
    tellWhatIsLeft(terminal, left, request);
    throw error;
  }
}

interface Ending {
  readonly seconds: number;
  readonly idsFile?: string | undefined;
  readonly scalesFile?: string | undefined;
  /** Of a table. */
  readonly counts?: SinkCounts | undefined;
}

/** A report for programs, or a sentence for people. */
async function tellDone(terminal: Terminal, done: Done, request: CheckedRequest, ending: Ending): Promise<void> {
  const { flags, records, target } = request;
  if (flags.quiet !== true && flags.json !== true) say(terminal, summary(done, request, ending));
  if (flags.quiet !== true) records.sayNotes();
  if (flags.json !== true || target.kind !== 'file') return;
  const { rows, rowsBefore, truncated, failed, long } = done;
  const skipped = records.skipped + failed;
  await print(
    terminal,
    `${JSON.stringify({
      isDone: true,
      rows,
      rowsBefore,
      truncated,
      skipped,
      output: placeOf(target, flags, rows),
      ...(skipped === 0 ? {} : { skippedList: skippedPath(besideOf(target)) }),
      ...(long.texts === 0 ? {} : { long }),
      ...(ending.idsFile === undefined ? {} : { ids: ending.idsFile }),
      ...(ending.scalesFile === undefined ? {} : { scales: ending.scalesFile }),
      ...ending.counts,
    })}\n`,
  );
}

interface Done {
  readonly rows: number;
  readonly rowsBefore: number;
  readonly truncated: number;
  readonly failed: number;
  /** Texts that were embedded in pieces by this run (--long chunk), and the pieces. */
  readonly long: { readonly texts: number; readonly pieces: number };
}

const NO_LONG = { texts: 0, pieces: 0 };

/** Records to the client, blocks to the writer. */
async function stream(
  terminal: Terminal,
  session: Session,
  { flags, inputs, target, records, skipped, writer, state }: Request & { writer: RowWriter; state: RunState },
): Promise<Done> {
  const bar = rowProgress(
    terminal,
    flags.quiet !== true && !(target.kind === 'stdout' && terminal.stdout.isTTY === true),
  );
  const bytes = totalBytes(inputs);
  let rows = state.rows;
  let truncated = 0;
  let failed = 0;
  const long = { ...NO_LONG };
  try {
    const options = {
      signal: session.signal,
      truncate: flags.truncate,
      onError: flags.onError,
      ...(flags.prompt === undefined ? {} : { prompt: flags.prompt }),
      ...(flags.tenant === undefined ? {} : { tenant: flags.tenant }),
      ...(flags.class === undefined ? {} : { class: flags.class }),
      output: {
        ...(flags.dimensions !== undefined && { dimensions: flags.dimensions }),
        ...(wantsUnit(flags, session.model) && { normalize: true }),
      },
    };
    const [runId, startAt] = [state.runId, state.position];
    const source = records.from(startAt, flags.truncate === 'error' ? session.tokenizer : undefined);
    const pieces = (): AsyncIterable<Piece> =>
      cutLong(source, session.tokenizer, promptText(session.model, flags.prompt) ?? '', (count) => {
        long.texts++;
        long.pieces += count;
      });
    const blocks =
      flags.long === 'chunk'
        ? // pieces are counted from where this run begins, so that they are named by that as well
          pooled(session.client.embedStream(pieces(), { ...options, runId: `${runId}-${startAt}`, startAt: 0 }), {
            isUnit: session.model.isNormalized || flags.normalize === true,
            startAt,
          })
        : session.client.embedStream(source, { ...options, runId, startAt });
    for await (const block of blocks) {
      session.noteProgress();
      if (block.kind === 'skipped') {
        failed += block.rows;
        say(terminal, `skipped ${records.placeOf(block.items)}: ${block.error.message}`);
        for (const { index, file, line, unit, id } of block.items)
          skipped.add({ index, file, line, unit, id, reason: block.error.message });
        continue;
      }
      refuseOtherVectors(session, block);
      await writer.write({
        records: block.items,
        dims: block.dims,
        vectors: block.vectors,
        position: block.first + block.rows,
      });
      for (const { index } of block.items) skipped.hasRow(index);
      rows += block.rows;
      truncated += Array.isArray(block.truncated) ? block.truncated.length : 0;
      bar.update(rows, records.estimateTotal(bytes));
    }
    session.signal.throwIfAborted();
    return { rows, rowsBefore: state.rows, truncated, failed, long };
  } finally {
    bar.stop();
  }
}

function refuseSilentTerminal(terminal: Terminal, files: readonly string[]): void {
  if (files.length === 0 && terminal.stdin.isTTY === true) {
    throw new ShoalError(
      'USAGE',
      'nothing to embed: name files, pipe text in (echo hello | shoal embed), or give - to type it',
    );
  }
}

function refuseBinaryToTerminal(terminal: Terminal, target: Target, format: OutputFormat): void {
  if (target.kind === 'stdout' && format !== 'jsonl' && terminal.stdout.isTTY === true) {
    throw new ShoalError(
      'USAGE',
      `.${format} is binary and standard output is a terminal: write it to a file with -o OUT.${format}, or ` +
        'into a pipe',
    );
  }
}

function refuseFlagsWithoutEffect(
  inputs: readonly Input[],
  target: Target,
  format: OutputFormat,
  { withText, shardRows, vectorField, ...fields }: EmbedFlags,
): void {
  if (fields.idField !== undefined && format === 'npy' && target.kind !== 'file')
    throw new ShoalError(
      'USAGE',
      '--id-field has no place in a .npy that goes into a pipe or a device: .npy holds numbers and nothing else. With ' +
        '-o FILE.npy the ids are written beside it, and .jsonl, .csv, .arrow and .parquet hold them',
    );
  if (fields.json === true && target.kind !== 'file')
    throw new ShoalError(
      'USAGE',
      '--json writes a report to standard output and needs an output file for the rows: -o FILE. Without --json the ' +
        'rows of .jsonl are JSON as they are',
    );
  if (withText === true && format === 'npy')
    throw new ShoalError(
      'USAGE',
      '--with-text needs .jsonl, .csv, .arrow or .parquet: .npy holds numbers and nothing else',
    );
  if (vectorField !== undefined && format !== 'parquet' && fields.to === undefined)
    throw new ShoalError('USAGE', '--vector-field names a column of a .parquet or a table, and the output is neither');
  if (shardRows !== undefined && target.kind !== 'file')
    throw new ShoalError(
      'USAGE',
      '--shard-rows needs an output file (-o OUT.npy), from which the shards get their names: OUT-00000.npy',
    );
  refuseFieldsWithoutEffect(inputs, fields);
}

function refuseFlagsOfSinks({ to, output, outputFormat: format, shardRows, createTable }: EmbedFlags): void {
  if (to === undefined && createTable === true)
    throw new ShoalError('USAGE', '--create-table makes the table that --to names, and there is no --to');
  if (to === undefined) return;
  const other =
    output !== undefined
      ? '-o'
      : format !== undefined
        ? '--output-format'
        : shardRows === undefined
          ? undefined
          : '--shard-rows';
  if (other !== undefined)
    throw new ShoalError('USAGE', `${other} is about a file, and --to names a table; give one of them`);
}

function sinkForm(flags: EmbedFlags, dims: number): SinkForm {
  return {
    dims,
    dtype: flags.dtype ?? 'f32',
    withText: flags.withText === true,
    vectorField: flags.vectorField ?? 'embedding',
    creates: flags.createTable === true,
  };
}

/** `--long` says it for both; two flags that say different things are refused. */
function withLong(flags: EmbedFlags): EmbedFlags {
  const { long, truncate } = flags;
  if (long === undefined) return flags;
  if (truncate === 'error' && long !== 'error')
    throw new ShoalError('USAGE', `--truncate error refuses long texts and --long ${long} does not; give one of them`);
  return { ...flags, truncate: long === 'error' ? 'error' : 'end' };
}

/** The files whose columns go along: Parquet out of Parquet. */
function carriedOf(inputs: readonly Input[], format: OutputFormat): readonly CarriedFile[] | undefined {
  if (format !== 'parquet' || inputs.length === 0) return undefined;
  const files = inputs.flatMap(({ path, parquet }) =>
    path === undefined || parquet === undefined ? [] : [{ path, parquet }],
  );
  return files.length === inputs.length ? files : undefined;
}

/** What a Parquet file has beside its texts goes along or is said not to. */
function refuseLostColumns(inputs: readonly Input[], format: OutputFormat, flags: EmbedFlags): void {
  if (format === 'npy' && flags.dtype === 'i8' && (flags.output === undefined || flags.output === '-'))
    throw new ShoalError(
      'USAGE',
      '--dtype i8 has scales beside a .npy, and there is no place beside a pipe: -o FILE.npy',
    );
  const files = carriedOf(inputs, format);
  if (files === undefined) {
    if (format === 'parquet' && inputs.some(({ parquet }) => parquet !== undefined))
      throw new ShoalError(
        'USAGE',
        'the columns of a Parquet file go along into a .parquet, and some of the inputs are no Parquet files; embed ' +
          'them apart',
      );
    return;
  }
  const carried: readonly (readonly [boolean, string])[] = [
    [flags.withText === true, '--with-text: the text goes along with the other columns of a Parquet file'],
    [flags.shardRows !== undefined, '--shard-rows: a .parquet of a .parquet keeps its row groups, in one file'],
    [
      flags.dtype === 'i8',
      '--dtype i8 needs a column of scales, which does not go beside the columns of a Parquet file; take f16 or ' +
        'binary, or write .arrow',
    ],
  ];
  const [, problem] = carried.find(([isAsked]) => isAsked) ?? [];
  if (problem !== undefined) throw new ShoalError('USAGE', problem);
  refuseUncarriable(files, flags.vectorField ?? 'embedding');
}

function refuseDimensions(model: StoredModel, dimensions: number | undefined): void {
  if (dimensions !== undefined && dimensions > model.dims)
    throw new ShoalError('USAGE', `--dimensions ${dimensions} is more than ${model.name} has: ${model.dims}`);
}

/** Rows that came are never given up in silence: where they are, and what goes on with them. */
function tellWhatIsLeft(terminal: Terminal, left: Abandoned, { records, inputs, target, flags }: CheckedRequest): void {
  if (left.kind === 'nothing' || (left.kind === 'lost' && flags.quiet === true)) return;
  const total = records.estimateTotal(totalBytes(inputs));
  const about = records.isAtEnd ? '' : 'about ';
  // a run that goes on and was stopped at once has read too little to know
  const of = total === undefined || total < left.rows ? '' : ` of ${about}${total.toLocaleString('en')}`;
  const rows = `${left.rows.toLocaleString('en')}${of} ${left.rows === 1 && total === undefined ? 'row' : 'rows'}`;
  switch (left.kind) {
    case 'kept':
      return say(
        terminal,
        `${rows} kept in ${left.file}; the same command goes on with them: ${commandOf(terminal, ['--fresh'])}`,
      );
    case 'ended':
      return say(
        terminal,
        `${rows} kept in ${left.file}, which is a whole file; ${nameOfUnrepeatable(inputs)} cannot be read again, so ` +
          'that no command goes on with them by itself: embed what comes behind them into another file',
      );
    case 'lost':
      return say(
        terminal,
        `${rows} not kept: a .npy in a pipe begins with their number. With -o FILE${target.kind === 'file' ? '' : '.npy'} ` +
          'they are kept',
      );
  }
}

function nameOfUnrepeatable(inputs: readonly Input[]): string {
  return inputs.find(({ identity }) => identity === undefined)?.name ?? 'the input';
}

/** Of a model whose vectors have length 1 anyhow nothing is asked for. */
function wantsUnit({ normalize = false }: EmbedFlags, { isNormalized }: Pick<StoredModel, 'isNormalized'>): boolean {
  return normalize && !isNormalized;
}

/** Vectors of a model that normalizes cannot be had otherwise. */
function refuseOwnLengths({ name, isNormalized }: StoredModel, normalize: boolean | undefined): void {
  if (normalize === false && isNormalized)
    throw new ShoalError('USAGE', `--no-normalize: the vectors of ${name} have length 1 and cannot be had otherwise`);
}

/** Whoever asks for a prompt would otherwise get vectors without one, and never know. */
export function refuseMissingPrompt(
  model: Pick<StoredModel, 'name' | 'prompts' | 'defaultPrompt'>,
  prompt: string | undefined,
): void {
  if (prompt === undefined || promptText(model, prompt) !== undefined) return;
  throw new ShoalError('USAGE', `--prompt ${prompt}: the model ${model.name} ${missingPrompt(model)}`);
}

/** What an interrupted run left, when it is to be continued. */
async function findEarlierRun(
  target: Target,
  inputs: readonly Input[],
  { resume: isResumed = false, fresh: isFresh = false, shardRows }: EmbedFlags,
): Promise<RunState | undefined> {
  if (isResumed && isFresh)
    throw new ShoalError('USAGE', '--resume goes on and --fresh begins again; give one of them');
  if (target.kind !== 'file') {
    if (isFresh)
      throw new ShoalError(
        'USAGE',
        '--fresh needs an output file (-o OUT.jsonl): nothing is kept of what goes to standard output or a device',
      );
    if (isResumed)
      throw new ShoalError(
        'USAGE',
        '--resume needs an output file (-o OUT.jsonl): what went to standard output or a device cannot be continued',
      );
    return undefined;
  }
  const unrepeatable = inputs.find((input) => input.identity === undefined);
  if (isResumed && unrepeatable !== undefined)
    throw new ShoalError('USAGE', `--resume needs input files: ${unrepeatable.name} cannot be read again`);
  if (isFresh) {
    if (shardRows !== undefined) await checkShards(target, await readRunState(target.state), { isFresh });
    return undefined;
  }
  const earlier = await leftovers(target);
  if (earlier !== undefined && earlier.rows > 0 && unrepeatable !== undefined)
    throw new ShoalError(
      'USAGE',
      `${keptRows(target, earlier)}, and ${unrepeatable.name} cannot be read again behind them.${cures(earlier)}`,
    );
  if (shardRows !== undefined) await checkShards(target, earlier, { isFresh });
  return unrepeatable === undefined ? earlier : undefined;
}

/**
 * Shards of another run would be mixed up with those of this one, and a run cannot go on behind a shard that is gone.
 */
async function checkShards(
  target: FileTarget,
  earlier: RunState | undefined,
  { isFresh }: { readonly isFresh: boolean },
): Promise<void> {
  const there = await existingShards(target);
  const name = (shard: number): string => shardTarget(target, shard).name;
  const gone = Array.from({ length: earlier?.shard ?? 0 }, (_, shard) => shard).find((shard) => !there.includes(shard));
  if (gone !== undefined && !isFresh)
    throw new ShoalError(
      'USAGE',
      `${name(gone)} is gone, which an interrupted run had finished; put it back, or begin again with --fresh`,
    );
  const strange = there.find((shard) => shard > (earlier?.shard ?? -1));
  if (strange === undefined) return;
  throw new ShoalError(
    'USAGE',
    `${name(strange)} is there from an earlier run; remove the shards of that run, or choose another name`,
  );
}

function runRequest(model: StoredModel, { settings, flags, inputs, format, target }: Request): RunRequest {
  const options = {
    '--output-format': format,
    '--format': inputs.map((input) => input.format).join(', '),
    '--text-field': flags.textField,
    '--id-field': flags.idField,
    '--delimiter': flags.delimiter,
    '--no-header': flags.header ? undefined : true,
    '--with-text': flags.withText,
    '--shard-rows': flags.shardRows,
    '--on-error': flags.onError,
    '--prompt': flags.prompt,
    '--truncate': flags.truncate,
    '--long': flags.long === 'chunk' ? 'chunk' : undefined,
    '--dtype': flags.dtype === 'f32' ? undefined : flags.dtype,
    '--vector-field': flags.vectorField,
    '--to': target.kind === 'file' ? target.sink?.name : undefined,
    'compression of the output': outputCompression(flags.output, format),
    '--dimensions': flags.dimensions,
    '--normalize': wantsUnit(flags, model) ? true : undefined,
    '--max-tokens': settings.maxTokens,
    [READING_RULES_NAME]: READING_RULES,
  };
  const given = Object.entries(options).flatMap(([flag, value]) =>
    value === undefined ? [] : [[flag, String(value)] as const],
  );
  return {
    inputs: inputs.flatMap((input) => (input.identity === undefined ? [] : [input.identity])),
    model: `${model.name}@${model.revision}`,
    options: Object.fromEntries(given),
  };
}

/** The earlier run, where this command goes on with it; undefined where there is nothing to go on with. */
function refuseOtherRun(target: Target, earlier: RunState | undefined, asked: RunRequest): RunState | undefined {
  if (earlier === undefined || target.kind !== 'file') return undefined;
  const found = differences(earlier.request, asked);
  if (found.length === 0) return { ...earlier, request: asked };
  if (earlier.rows === 0) return undefined; // nothing came, nothing is lost
  throw new ShoalError(
    'USAGE',
    `${keptRows(target, earlier)}, and this command asks for something else:\n  ${found.join('\n  ')}\n` +
      cures(earlier).trim(),
  );
}

function keptRows({ name, partial }: FileTarget, { rows }: RunState): string {
  return `${rows.toLocaleString('en')} rows of an unfinished run are kept for ${name} (${basename(partial)})`;
}

function cures({ command }: RunState): string {
  const first = command === undefined ? 'The command of that run' : command;
  return ` ${first}\ngoes on with them; --fresh removes them and begins again`;
}

type WriterRequest = Pick<
  CheckedRequest,
  'flags' | 'inputs' | 'records' | 'skipped' | 'target' | 'format' | 'dims' | 'asked' | 'earlier'
>;

async function openWriter(terminal: Terminal, request: WriterRequest): Promise<{ writer: RowWriter; state: RunState }> {
  const { target, format, dims, asked, flags, records } = request;
  const form: RowForm = {
    format,
    dims,
    hasIds: records.hasIds,
    withText: flags.withText === true,
    model: asked.model,
    dtype: flags.dtype ?? 'f32',
    compression: outputCompression(flags.output, format),
    vectorField: flags.vectorField,
    carried: carriedOf(request.inputs, format),
  };
  const fresh: RunState = {
    v: 1,
    runId: randomUUID(),
    request: asked,
    rows: 0,
    position: 0,
    shard: 0,
    bytes: 0,
    command: commandOf(terminal, ['--fresh']),
  };
  if (target.kind === 'file' && target.sink !== undefined) {
    const { earlier, skipped, inputs } = request;
    const goesOn = earlier !== undefined && earlier.rows > 0 && flags.fresh !== true;
    if (goesOn) sayGoesOn(terminal, target, earlier.rows);
    const writer = await SinkWriter.open(
      {
        place: target.sink,
        form: sinkForm(flags, dims),
        target,
        skipped,
        isRepeatable: inputs.every(({ identity }) => identity !== undefined),
        signal: terminal.signal,
        onAway: (problem, waitMs) => say(terminal, `${problem}; trying again in ${waitMs / 1_000} s`),
      },
      goesOn ? earlier : fresh,
      goesOn,
    );
    return { writer, state: writer.state };
  }
  if (target.kind === 'file') return openFileWriter(terminal, target, form, request, fresh);
  const sink = target.kind === 'stdout' ? stdoutSink(terminal) : await deviceSink(target.path);
  return {
    writer: format === 'npy' ? await SpooledWriter.create(form, sink) : new StreamWriter(await openEncoder(form), sink),
    state: fresh,
  };
}

async function openFileWriter(
  terminal: Terminal,
  target: FileTarget,
  form: RowForm,
  { flags, earlier, inputs, skipped }: WriterRequest,
  fresh: RunState,
) {
  const isRepeatable = inputs.every(({ identity }) => identity !== undefined);
  const options = { target, form, shardRows: flags.shardRows, isRepeatable, skipped };
  const isThere = earlier !== undefined && (earlier.rows > 0 || earlier.position > 0);
  const reopened = isThere ? await FileWriter.reopen(options, earlier) : undefined;
  if (isThere && reopened === undefined && !(await isRowless(target, flags)))
    throw new ShoalError(
      'FILE_UNREADABLE',
      `${keptRows(target, earlier)}, but not all of them are there any more; put the hidden files back, or begin ` +
        'again with --fresh',
      { file: target.name },
    );
  if (reopened !== undefined) sayGoesOn(terminal, target, reopened.state.rows);
  else if (isThere && reopened === undefined)
    say(terminal, `the rows of an interrupted run that were kept for ${target.name} are gone; it begins again`);
  if (flags.fresh === true) await removeRun(target, { keepsShards: flags.shardRows === undefined });
  const writer = reopened ?? (await FileWriter.create(options, fresh));
  return { writer, state: writer.state };
}

function sayGoesOn(terminal: Terminal, { name }: FileTarget, rows: number): void {
  say(
    terminal,
    `goes on with ${name} behind ${rows.toLocaleString('en')} rows of an interrupted run; --fresh begins again`,
  );
}

/** Its rows have the name of the output already, or somebody removed them: there is nothing that could be lost. */
async function isRowless({ partial }: FileTarget, { shardRows }: EmbedFlags): Promise<boolean> {
  return shardRows === undefined && (await stat(partial).catch(() => undefined)) === undefined;
}

function stdoutSink(terminal: Terminal): ByteSink {
  return { write: (bytes) => print(terminal, bytes), close: async () => undefined };
}

function summary(
  { rows, rowsBefore, truncated, failed, long }: Done,
  { records: { skipped }, target, flags }: Pick<Request, 'records' | 'target' | 'flags'>,
  { seconds, idsFile, scalesFile, counts }: Ending,
): string {
  const place = target.kind === 'file' ? ` → ${placeOf(target, flags, rows)}` : '';
  if (rows === 0 && failed + skipped === 0) return `the input is empty: 0 rows${place}`;
  const fresh = rows - rowsBefore;
  // A rate of a few rows would be that of starting a worker.
  const pace = fresh < 256 ? '' : ` (${Math.round(fresh / seconds).toLocaleString('en')} texts/s)`;
  const parts = [`${rows.toLocaleString('en')} ${rows === 1 ? 'row' : 'rows'}${place} in ${duration(seconds)}${pace}`];
  if (rowsBefore > 0) parts.push(`${rowsBefore.toLocaleString('en')} of them were there before`);
  if (truncated > 0) parts.push(`${truncated.toLocaleString('en')} truncated at the model’s length`);
  if (long.texts > 0)
    parts.push(`${long.texts.toLocaleString('en')} long ones in ${long.pieces.toLocaleString('en')} pieces`);
  if (skipped + failed > 0) {
    const list = target.kind === 'file' ? `, listed in ${skippedPath(besideOf(target))}` : '';
    parts.push(`${(skipped + failed).toLocaleString('en')} skipped${list}`);
  }
  if (idsFile !== undefined) parts.push(`their ids in ${idsFile}`);
  if (counts !== undefined && counts.replaced > 0)
    parts.push(`${counts.replaced.toLocaleString('en')} of this run took the place of rows with their ids`);
  if (scalesFile !== undefined) parts.push(`their scales in ${scalesFile}`);
  return parts.join('; ');
}

function listsOf(writer: RowWriter): Omit<Ending, 'seconds'> {
  if (writer instanceof SinkWriter) return { counts: writer.counts };
  return writer instanceof FileWriter ? { idsFile: writer.idsFile, scalesFile: writer.scalesFile } : {};
}

function placeOf(target: FileTarget, { shardRows }: EmbedFlags, rows: number): string {
  if (shardRows === undefined) return target.name;
  const [first, last] = [0, Math.max(0, Math.ceil(rows / shardRows) - 1)].map(
    (shard) => shardTarget(target, shard).name,
  );
  return first === last ? first! : `${first} to ${last}`;
}

// `shoal index`: collections out of texts (embedded through the queue) or files of vectors, and what there is of them.
// A build makes a version that appears when it is complete; who searches the one before goes on.

import { ShoalError, isSameModel, isShoalError, mainQueue, promptText, sidePrompt } from '@shoal/contract';
import type { Settings } from '@shoal/core';
import { expectEmbedder, type StoredModel } from '@shoal/models';
import {
  appendToCollection,
  checkCollection,
  collectionInfo,
  createCollection,
  listCollections,
  modelText,
  openCollection,
  removeCollection,
  type CollectionInfo,
  type Metric,
  type Recall,
  type RowSource,
  type RowType,
} from '@shoal/similarity';
import { refuseFieldsWithoutEffect, totalBytes, withInputs, type Input } from '../input/files.ts';
import { withRecords, type RecordReader, type RecordsTerms } from '../input/record-reader.ts';
import { ReadingNotes } from '@shoal/worker/files/reading-notes';
import { placeIn, type TextFormat, type TextRecord } from '@shoal/worker/files/record';
import { SkippedList } from '../output/beside.ts';
import { interruptionReport } from '../output/interruption-report.ts';
import type { Block } from '@shoal/worker/files/row-form';
import { READING_RULES, READING_RULES_NAME, type RunRequest, type RunState } from '../output/run-state.ts';
import { duration, rowProgress } from '../progress.ts';
import { collectionSettings, type CollectionSettings } from '../search/collection-settings.ts';
import { withKeptBuild, type KeptBuild } from '../search/kept-build.ts';
import { areVectors, isParquet, vectorRows } from '../search/vector-input.ts';
import { measureCandidates, openNamed, recallText } from '../search/search-collection.ts';
import { fetchModel } from '../processes/fetch-model.ts';
import type { Session } from '../processes/session.ts';
import { refuseOtherVectors } from '../processes/vectors-origin.ts';
import { print, say, type Terminal } from '../terminal.ts';
import { commandOf } from '../typed-command.ts';
import { refuseMissingPrompt } from '../embed/flags.ts';

export interface IndexFlags {
  readonly json?: boolean;
  readonly quiet?: boolean;
}

export interface BuildFlags extends IndexFlags {
  readonly append?: boolean;
  /** The tenant that may see it over HTTP; absent: as before. */
  readonly owner?: string;
  /** Absent: f32, or that of the rows to append to. */
  readonly dtype?: RowType;
  readonly ann?: boolean;
  readonly metric: Metric;
  readonly keep: number;
  readonly format?: TextFormat;
  readonly textField?: string;
  readonly idField?: string;
  readonly delimiter?: string;
  /** False: --no-header. */
  readonly header: boolean;
  /** Of an Arrow or Parquet file: the column of the vectors. */
  readonly column?: string;
  readonly onError: 'fail' | 'skip';
  /** Name of the model's prompt before each text, or "none"; default: its "passage", if it has one. */
  readonly prompt?: string;
  /** Without what an interrupted build has kept. */
  readonly fresh?: boolean;
  /** Milliseconds. */
  readonly waitLimit?: number;
  /** Settings, which are here as well to tell what was asked for in this call from what is set for all. */
  readonly model?: string;
  readonly maxTokens?: string;
}

export interface CheckFlags extends IndexFlags {
  readonly ann?: boolean;
  readonly metric: Metric;
}

export async function build(
  terminal: Terminal,
  name: string,
  files: readonly string[],
  flags: BuildFlags,
): Promise<void> {
  const settings = await collectionSettings(terminal, flags);
  const { collectionsDir: folder } = settings;
  const startedMs = performance.now();
  const hasVectors = await areVectors(files, flags);
  if (hasVectors) refuseFlagsOfTexts(flags, files);
  if (flags.append === true) await refuseOtherRows(folder, name, flags);
  const { info, notes } = hasVectors
    ? {
        info: await write({ terminal, settings, folder, name, flags }, vectorRows(files, flags, terminal), {
          about: aboutVectors(flags),
        }),
        notes: new ReadingNotes(),
      }
    : await buildFromTexts({ terminal, settings, folder, name, flags }, files);
  const recall = flags.ann === true ? await measure(terminal, settings, info, flags) : undefined;
  if (flags.json === true)
    return print(terminal, `${JSON.stringify({ ...info, ...annOf(flags, recall), ...readOf(notes) }, null, 1)}\n`);
  if (flags.quiet === true) return;
  const { version, rows, dims, dtype, bytes } = info;
  say(
    terminal,
    `${name}@${version}: ${rows.toLocaleString('en')} rows of ${dims} dimensions (${dtype}, ` +
      `${megabytes(bytes)} MB) in ` +
      `${duration((performance.now() - startedMs) / 1_000)}${
        recall === undefined ? '' : `; candidates: ${recallText(recall)}`
      }`,
  );
  for (const line of notes.lines) say(terminal, line);
  if ((await openCollection(folder, `${name}@${version}`, { verify: false })).about.model === undefined)
    say(terminal, `which model made the rows of ${name} is not known: a search needs --model NAME`);
}

interface Target {
  readonly terminal: Terminal;
  readonly settings: CollectionSettings;
  readonly folder: string;
  readonly name: string;
  readonly flags: BuildFlags;
}

async function write(
  { terminal, folder, name, flags }: Target,
  source: RowSource,
  {
    about,
    dims,
    signal = terminal.signal,
  }: { readonly about: Readonly<Record<string, unknown>>; readonly dims?: number; readonly signal?: AbortSignal },
): Promise<CollectionInfo> {
  const owner = flags.owner ?? (await ownerOf(folder, name));
  const options = { signal, about: { ...about, ...(owner !== undefined && { owner }) }, keepVersions: flags.keep };
  if (flags.append === true) return appendToCollection(folder, name, source, options);
  return createCollection(folder, name, source, {
    ...options,
    dtype: flags.dtype ?? 'f32',
    ...(dims === undefined ? {} : { dims }),
  });
}

type Built = { readonly info: CollectionInfo; readonly notes: ReadingNotes };

async function buildFromTexts(place: Target, files: readonly string[]): Promise<Built> {
  const { terminal, flags } = place;
  if (flags.column !== undefined)
    throw new ShoalError(
      'USAGE',
      '--column names the vectors of an Arrow or Parquet file, and the files hold texts; leave it out',
    );
  return withInputs(files, flags.format, async (inputs) => {
    refuseFieldsWithoutEffect(inputs, flags);
    const skipped = new SkippedList();
    const terms: RecordsTerms = { flags, onSkip: (record) => skipped.add(record), hasOneColumn: false };
    return withRecords(terminal, inputs, terms, (records) => buildFromRecords(place, { inputs, records, skipped }));
  });
}

async function buildFromRecords(
  place: Target,
  { inputs, records, skipped }: Pick<BuildRun, 'inputs' | 'records' | 'skipped'>,
): Promise<Built> {
  const { terminal, settings, folder, name, flags } = place;
  const options = { settings, isQuiet: flags.quiet === true, waitLimitMs: flags.waitLimit };
  if (await records.isEmpty())
    throw new ShoalError(
      'COLLECTION_EMPTY',
      'the input holds no texts, so there is nothing to make a collection of',
      {},
    );
  const named = await modelFor(folder, name, settings, flags);
  const model = expectEmbedder(await fetchModel(terminal, named, options));
  refuseMissingPrompt(model, flags.prompt);
  const about = { model: `${model.name}@${model.revision}` };
  if (flags.append === true) await refuseOtherModel(folder, name, about.model);
  const prompt = await promptFor(folder, name, model, flags);
  const sessionTerms = { ...options, settings: { ...settings, model: model.name }, model };
  const request = buildRequest(about.model, inputs, settings, flags);
  const whole = prompt === undefined ? about : { ...about, prompt };
  const terms = {
    folder,
    name,
    request,
    dims: model.dims,
    skipped,
    isFresh: flags.fresh === true,
    isRepeatable: isRepeatable(inputs),
  };
  const { withSession } = await import('../processes/session.ts');
  return withKeptBuild(terminal, terms, (kept) =>
    withSession(terminal, sessionTerms, async (session) => {
      if (session.isTrial) throw simulatedRows(name, settings);
      const run = { kept, records, inputs, skipped, flags, prompt };
      let info: CollectionInfo;
      try {
        await embedInto(terminal, session, run);
        info = await write(place, kept.rows(), { about: whole, dims: model.dims, signal: session.signal });
      } catch (error) {
        await tellWhatIsKept(terminal, run, session.signal.aborted ? session.signal.reason : error);
        throw error;
      }
      const listed = await kept.done();
      if (listed !== undefined && flags.quiet !== true)
        say(terminal, `${skipped.size.toLocaleString('en')} records without a row, listed in ${listed}`);
      return { info, notes: records.notes };
    }),
  );
}

/** A collection says of which model its rows are, for as long as it is kept. */
function simulatedRows(name: string, { prefix, model }: Settings): ShoalError {
  return new ShoalError(
    'CONFIG_INVALID',
    `the collection "${name}" is not built: ${mainQueue(model)} under ${prefix} is for a trial (simServes), and its ` +
      'vectors would be kept as those of the model. Take another prefix (SHOAL_PREFIX or --prefix)',
    { prefix, model },
  );
}

/** Everything that decides what the rows are. */
function buildRequest(
  model: string,
  inputs: readonly Input[],
  settings: Settings,
  { textField, idField, delimiter, header, onError, prompt }: BuildFlags,
): RunRequest {
  const options = {
    '--format': inputs.map(({ format }) => format).join(', '),
    '--text-field': textField,
    '--id-field': idField,
    '--delimiter': delimiter,
    '--no-header': header ? undefined : true,
    '--on-error': onError,
    '--prompt': prompt,
    '--max-tokens': settings.maxTokens,
    [READING_RULES_NAME]: READING_RULES,
  };
  const given = Object.entries(options).flatMap(([flag, value]) =>
    value === undefined ? [] : [[flag, String(value)] as const],
  );
  return {
    inputs: inputs.flatMap(({ identity }) => (identity === undefined ? [] : [identity])),
    model,
    options: Object.fromEntries(given),
  };
}

interface BuildRun {
  readonly kept: KeptBuild;
  readonly records: RecordReader;
  readonly inputs: readonly Input[];
  readonly skipped: SkippedList;
  readonly flags: BuildFlags;
  readonly prompt: string | undefined;
}

/** Embeds what is not kept yet. */
async function embedInto(
  terminal: Terminal,
  session: Session,
  { kept, records, inputs, skipped, flags, prompt }: BuildRun,
): Promise<void> {
  const bar = rowProgress(terminal, flags.quiet !== true);
  let { rows } = kept.state;
  try {
    for await (const block of embedded(terminal, session, { records, skipped, prompt, state: kept.state })) {
      await kept.writer.write(block);
      bar.update((rows += block.records.length), records.estimateTotal(totalBytes(inputs)));
    }
  } finally {
    bar.stop();
  }
  await kept.settle();
}

/** The build failed, in embedding or in writing the collection: rows that came are kept, and that is said. */
async function tellWhatIsKept(
  terminal: Terminal,
  { kept, records, inputs, flags }: BuildRun,
  error: unknown,
): Promise<void> {
  const before = kept.writer.state.rows;
  const rows = await kept.keep();
  const total = records.estimateTotal(totalBytes(inputs));
  const of = total === undefined ? '' : ` of ${records.isAtEnd ? '' : 'about '}${total.toLocaleString('en')}`;
  if (rows > 0)
    say(
      terminal,
      `${rows.toLocaleString('en')}${of} rows kept; the same command goes on with them: ${commandOf(terminal, ['--fresh'])}`,
    );
  else if (before > 0)
    say(
      terminal,
      `${before.toLocaleString('en')} rows not kept: standard input or a pipe cannot be read again; from a file the ` +
        'same command would go on with them',
    );
  if (flags.json === true)
    terminal.stdout.write(interruptionReport(terminal, rows > 0 ? { kind: 'kept', rows } : { kind: 'nothing' }, error));
}

function isRepeatable(inputs: readonly Input[]): boolean {
  return inputs.every(({ identity }) => identity !== undefined);
}

function refuseFlagsOfTexts(
  { model, maxTokens, textField, idField, delimiter, header, onError, prompt }: BuildFlags,
  files: readonly string[],
): void {
  const asked = Object.entries({
    '--max-tokens': maxTokens,
    '--text-field': textField,
    '--id-field': files.every(isParquet) ? undefined : idField, // which column is the id has to be said of Parquet
    '--delimiter': delimiter,
    '--no-header': header ? undefined : true,
    '--prompt': prompt,
    '--on-error skip': onError === 'skip' ? onError : undefined,
  });
  const flag = asked.find(([, value]) => value !== undefined)?.[0];
  if (flag !== undefined)
    throw new ShoalError(
      'USAGE',
      `${flag} is about texts, and the files hold vectors; leave it out, or say --format jsonl or --format parquet to ` +
        'embed the texts of files that have both',
    );
  if (model !== undefined && modelText(model) === undefined)
    throw new ShoalError('USAGE', `--model ${model} is no model: NAME, or NAME@REVISION, that made the vectors`);
}

/** Of vectors: what --model says of them. What the files say comes with their rows. */
function aboutVectors({ model }: BuildFlags): { readonly model?: string } {
  return model === undefined ? {} : { model };
}

/** What is built anew stays whose it was. */
async function ownerOf(folder: string, name: string): Promise<string | undefined> {
  const before = await openCollection(folder, name, { verify: false }).catch(() => undefined); // none, or a damaged one
  const owner = before?.about['owner'];
  return typeof owner === 'string' ? owner : undefined;
}

/** Rows that are appended are stored, and embedded, as those that are there. */
async function refuseOtherRows(folder: string, name: string, { dtype, model }: BuildFlags): Promise<void> {
  if (dtype === undefined && model === undefined) return;
  const { dtype: thereDtype } = await collectionInfo(folder, name);
  if (dtype !== undefined && dtype !== thereDtype)
    throw new ShoalError(
      'USAGE',
      `--dtype ${dtype} is asked for and ${name} holds ${thereDtype}: all rows of a collection are of one ` +
        'type; leave out --dtype, or build it anew without --append',
    );
  const { about } = await openCollection(folder, name, { verify: false });
  if (model !== undefined && about.model !== undefined && !isSameModel(model, about.model))
    throw new ShoalError(
      'USAGE',
      `--model ${model} is asked for and ${name} was embedded by ${about.model}: vectors of two models cannot ` +
        'be compared; leave out --model, or build it anew without --append',
    );
}

/** What is appended comes from the model of what is there; where nobody knows that, --model must say it. */
async function modelFor(
  folder: string,
  name: string,
  settings: Settings,
  { append, model }: BuildFlags,
): Promise<string> {
  if (append !== true) return settings.model;
  const { about, rows } = await openCollection(folder, name, { verify: false });
  if (about.model !== undefined) return about.model.split('@')[0]!;
  if (model === undefined && rows > 0)
    throw new ShoalError(
      'USAGE',
      `nobody knows which model made the rows of ${name}: say --model NAME to put rows of that model behind them (the ` +
        'model of the collection stays not known), or build it anew without --append',
    );
  return settings.model;
}

async function refuseOtherModel(folder: string, name: string, model: string): Promise<void> {
  const { about } = await openCollection(folder, name, { verify: false });
  if (about.model !== undefined && !isSameModel(about.model, model))
    throw new ShoalError(
      'DIMENSIONS_MISMATCH',
      `${name} was embedded by ${about.model} and this is ${model}: vectors of two models cannot be compared; ` +
        'build it anew without --append',
      {},
    );
}

/**
 * Which prompt goes before the texts: the one that is asked for, else that of the rows that are there, else that of
 * passages; undefined: none is asked for, and the model's default one goes before them. Rows behind others have the same before them: USAGE where they would not.
 */
async function promptFor(
  folder: string,
  name: string,
  model: StoredModel,
  { append, prompt }: BuildFlags,
): Promise<string | undefined> {
  const usual = sidePrompt(model, 'passage').prompt;
  if (append !== true) return prompt ?? usual;
  const { about } = await openCollection(folder, name, { verify: false });
  const before = typeof about['prompt'] === 'string' ? about['prompt'] : undefined; // older ones, and vectors, say none
  if (prompt === undefined || before === undefined) return prompt ?? before ?? usual;
  if (promptText(model, prompt) === promptText(model, before)) return before;
  throw new ShoalError(
    'USAGE',
    `--prompt ${prompt} is asked for and the rows of ${name} were embedded with --prompt ${before}: leave it out, or ` +
      'build it anew without --append',
  );
}

/** Rows as the writer takes them, each called as a search shows it. */
async function* embedded(
  terminal: Terminal,
  session: Session,
  { records, skipped, prompt, state }: Pick<BuildRun, 'records' | 'skipped' | 'prompt'> & { readonly state: RunState },
): AsyncGenerator<Block> {
  for await (const block of session.client.embedStream(records.from(state.position, undefined), {
    runId: state.runId,
    startAt: state.position,
    signal: session.signal,
    ...(prompt !== undefined && { prompt }),
    truncate: 'end',
  })) {
    session.noteProgress();
    if (block.kind === 'skipped') {
      say(terminal, `skipped ${records.placeOf(block.items)}: ${block.error.message}`);
      for (const { index, file, line, unit, id } of block.items)
        skipped.add({ index, file, line, unit, id, reason: block.error.message });
      continue;
    }
    refuseOtherVectors(session, block);
    for (const { index } of block.items) skipped.hasRow(index);
    const named = block.items.map((item) => ({ id: nameOf(item), index: item.index, text: item.text }));
    yield { records: named, dims: block.dims, vectors: block.vectors, position: block.first + block.rows };
  }
  session.signal.throwIfAborted();
}

/** Its id, else its place: a search shows it. */
function nameOf({ id, file, line, unit }: TextRecord): string {
  if (id !== undefined) return String(id);
  // as compilers name a place, and of what is no line in words
  return line === undefined || unit === undefined
    ? `${file}${line === undefined ? '' : `:${line}`}`
    : placeIn(file, line, unit);
}

/** What reading the texts left out, where it left out anything. */
function readOf({ counts }: ReadingNotes): { readonly read?: object } {
  return Object.keys(counts).length === 0 ? {} : { read: counts };
}

function annOf({ metric }: CheckFlags, recall: Recall | undefined): { readonly ann?: object } {
  return recall === undefined ? {} : { ann: { metric, ...recall } };
}

async function measure(
  terminal: Terminal,
  settings: CollectionSettings,
  { name, version, rows }: CollectionInfo,
  { metric, quiet }: CheckFlags,
): Promise<Recall> {
  const collection = await openNamed(settings, `${name}@${version}`);
  const bar = rowProgress(terminal, quiet !== true);
  try {
    return await measureCandidates(settings, collection, {
      metric,
      signal: terminal.signal,
      onRows: (done) => bar.update(done, rows),
    });
  } finally {
    bar.stop();
  }
}

export async function list(terminal: Terminal, flags: IndexFlags): Promise<void> {
  const found = await listCollections((await collectionSettings(terminal, flags)).collectionsDir);
  if (flags.json === true)
    return print(
      terminal,
      `${JSON.stringify(
        found.map((one) =>
          'error' in one ? { name: one.name, error: { code: one.error.code, message: one.error.message } } : one,
        ),
        null,
        1,
      )}\n`,
    );
  if (found.length === 0 && flags.quiet !== true)
    say(terminal, 'there are no collections yet: shoal index build NAME FILE… makes one');
  await print(
    terminal,
    found.map((one) => ('error' in one ? `${one.name}  damaged: ${one.error.message}\n` : lineOf(one))).join(''),
  );
}

function lineOf({ name, version, rows, dims, dtype, bytes, createdMs }: CollectionInfo): string {
  return (
    `${name}@${version}  ${rows.toLocaleString('en')} rows × ${dims} ${dtype}  ${megabytes(bytes)} MB  ` +
    `${new Date(createdMs).toISOString().slice(0, 19)}Z\n`
  );
}

export async function show(terminal: Terminal, name: string, flags: IndexFlags): Promise<void> {
  const { collectionsDir: folder } = await collectionSettings(terminal, flags);
  const info = await collectionInfo(folder, name);
  const { about } = await openCollection(folder, name, { verify: false });
  if (flags.json === true) return print(terminal, `${JSON.stringify({ ...info, about }, null, 1)}\n`);
  await print(
    terminal,
    `${lineOf(info)}versions  ` +
      `${info.versions.map((version) => `${info.name}@${version}`).join(', ')}\nmodel     ` +
      `${about.model ?? 'not known: a search needs --model NAME'}\nfile      ${info.path}\n`,
  );
}

export async function check(terminal: Terminal, name: string, flags: CheckFlags): Promise<void> {
  const settings = await collectionSettings(terminal, flags);
  const info = await checkCollection(settings.collectionsDir, name);
  const recall = flags.ann === true ? await measure(terminal, settings, info, flags) : undefined;
  if (flags.json === true)
    return print(terminal, `${JSON.stringify({ ...info, isWhole: true, ...annOf(flags, recall) }, null, 1)}\n`);
  await print(
    terminal,
    `${info.name}@${info.version} is whole: ${info.rows.toLocaleString('en')} rows, checksum as ` +
      `written\n${recall === undefined ? '' : `candidates: ${recallText(recall)}\n`}`,
  );
}

export async function remove(terminal: Terminal, names: readonly string[], flags: IndexFlags): Promise<void> {
  const { collectionsDir: folder } = await collectionSettings(terminal, flags);
  // A version goes with its collection, and each goes once.
  const leaving = [...new Set(names)].filter((name) => !name.includes('@') || !names.includes(name.split('@')[0]!));
  for (const name of leaving) await refuseUnknown(folder, name);
  const removed: string[] = [];
  for (const name of leaving)
    removed.push(...(await removeCollection(folder, name)).map((version) => `${name.split('@')[0]}@${version}`));
  if (flags.json === true) await print(terminal, `${JSON.stringify({ removed })}\n`);
  else if (flags.quiet !== true) say(terminal, `removed ${removed.join(', ')}`);
}

/**
 * Before anything is taken away: a mistyped name among several must not end the command half-way. A damaged one may go.
 */
async function refuseUnknown(folder: string, name: string): Promise<void> {
  await collectionInfo(folder, name).catch((error: unknown) => {
    if (!isShoalError(error)) throw error;
    if (error.code === 'COLLECTION_UNKNOWN' || error.code === 'COLLECTION_GONE')
      throw new ShoalError(error.code, `${error.message}; nothing was removed`, error.fields, error);
  });
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toLocaleString('en', { maximumFractionDigits: bytes < 1e7 ? 1 : 0 });
}

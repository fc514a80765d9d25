// `shoal embed`: lines in, vectors out, in the same order. The story is `embed`: check everything that can be checked,
// read the first record, open the session, stream. Nothing is started for a request that cannot succeed. What is refused,
// how a run goes on, where rows go and what is said are ../embed.

import { mkdir } from 'node:fs/promises';
import { dirname } from 'node:path';
import { ShoalError, promptText } from '@shoal/contract';
import type { Settings } from '@shoal/core';
import { expectEmbedder, type StoredModel } from '@shoal/models';
import {
  carriedOf,
  isPartsOutput,
  refuseBinaryToTerminal,
  refuseDimensions,
  refuseFlagsOfParts,
  refuseFlagsOfSinks,
  refuseFlagsWithoutEffect,
  refuseLostColumns,
  refuseMissingPrompt,
  refuseOwnLengths,
  refuseShardsOfObjects,
  refuseSilentTerminal,
  wantsUnit,
  withLong,
  type EmbedFlags,
} from '../embed/flags.ts';
import {
  NO_LONG,
  listsOf,
  objectsOf,
  tellDone,
  tellEnding,
  tellWhatIsLeft,
  type Done,
  type Ending,
} from '../embed/report.ts';
import {
  findEarlierRun,
  refuseOtherRun,
  runRequest,
  type CheckedRequest,
  type Request,
  type Standing,
} from '../embed/request.ts';
import {
  finishedBefore,
  forgetFinished,
  isObject,
  noteFinished,
  removeFolder,
  uploadFinished,
  type ObjectTarget,
} from '../embed/upload.ts';
import { openWriter, sayGoesOn, sinkForm } from '../embed/writer.ts';
import { totalBytes, withInputs, type Input } from '../input/files.ts';
import { cutLong, pooled, type Piece } from '../input/long-texts.ts';
import { withRecords, type RecordsTerms } from '../input/record-reader.ts';
import { SkippedList } from '../output/beside.ts';
import { withOutputLock } from '../output/output-lock.ts';
import type { RowWriter } from '../output/row-writer.ts';
import { TRIAL_NAME, withOrigin, type RunState } from '../output/run-state.ts';
import { sinkGone } from '../output/sink-writer.ts';
import {
  checkTarget,
  outputCompression,
  outputFormat,
  sinkTarget,
  uploadTarget,
  type Target,
} from '../output/target.ts';
import { fetchModel } from '../processes/fetch-model.ts';
import type { Session, SessionOptions } from '../processes/session.ts';
import { refuseOtherVectors } from '../processes/vectors-origin.ts';
import { rowProgress } from '../progress.ts';
import { settingsOf } from '../settings.ts';
import { objectPlace } from '@shoal/worker/files/object-place';
import { S3Object } from '../sinks/s3.ts';
import { parseSink } from '../sinks/sink.ts';
import { say, type Terminal } from '../terminal.ts';

export async function embed(terminal: Terminal, files: readonly string[], given: EmbedFlags): Promise<void> {
  if (isPartsOutput(given)) return (await import('./embed-parts.ts')).embedParts(terminal, files, given);
  refuseFlagsOfParts(given);
  const flags = withLong(given);
  const settings = await settingsOf(terminal, flags);
  refuseSilentTerminal(terminal, files);
  await withInputs(files, flags.format, (inputs) => embedInputs(terminal, settings, inputs, flags));
}

async function embedInputs(
  terminal: Terminal,
  settings: Settings,
  inputs: readonly Input[],
  flags: EmbedFlags,
): Promise<void> {
  const sink = flags.to === undefined ? undefined : await parseSink(flags.to);
  refuseFlagsOfSinks(flags);
  const format = sink === undefined ? outputFormat(flags.output, flags.outputFormat) : 'jsonl';
  const target = sink === undefined ? await fileTarget(flags, inputs) : sinkTarget(sink);
  refuseBinaryToTerminal(terminal, target, format);
  outputCompression(flags.output, format);
  refuseFlagsWithoutEffect(inputs, target, format, flags);
  refuseLostColumns(inputs, format, flags);
  refuseShardsOfObjects(target, flags);
  const standing: Standing = { left: undefined, earlier: undefined };
  if (target.kind === 'file' && isObject(target)) await mkdir(dirname(target.path), { recursive: true });
  try {
    const request = { settings, flags, inputs, format, target, standing };
    const onWait = (line: string): void => say(terminal, line);
    await withOutputLock(target, () => embedClaimed(terminal, request), { onWait });
  } catch (error) {
    tellEnding(terminal, { flags, target, standing, error });
    throw error;
  } finally {
    if (target.kind === 'file' && isObject(target)) await removeFolder(target);
  }
}

/** A file of this machine, or one that is uploaded. */
async function fileTarget({ output }: EmbedFlags, inputs: readonly Input[]): Promise<Target> {
  const object = output === undefined ? undefined : objectPlace(output, 'output');
  if (object === undefined) return checkTarget(output, inputs);
  if (inputs.some(({ name }) => name === object.name))
    throw new ShoalError(
      'USAGE',
      `the output ${object.name} is also an input; choose another one, the input would be lost`,
    );
  return uploadTarget(object);
}

/** The output is this run's alone, for as long as this takes. */
async function embedClaimed(
  terminal: Terminal,
  { settings, flags, inputs, format, target, standing }: Omit<Request, 'earlier' | 'records' | 'skipped'>,
): Promise<void> {
  const earlier = await findEarlierRun(target, inputs, flags);
  standing.earlier = earlier;
  const skipped = new SkippedList();
  const terms: RecordsTerms = {
    flags,
    onSkip: (record) => skipped.add(record),
    hasOneColumn:
      (flags.to !== undefined || format !== 'jsonl') && format !== 'npy' && carriedOf(inputs, format) === undefined,
  };
  await withRecords(terminal, inputs, terms, (records) =>
    embedRecords(terminal, { settings, flags, inputs, format, target, earlier, records, skipped, standing }),
  );
}

async function embedRecords(terminal: Terminal, request: Request): Promise<void> {
  const { settings, flags, target, earlier, records } = request;
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
  const terms = { isEmpty, options, model };
  if (target.kind === 'file' && isObject(target)) return embedToObject(terminal, target, checked, terms);
  const { done, ...ending } = await embedRows(terminal, checked, terms);
  await tellDone(terminal, done, checked, ending);
}

interface RunTerms {
  readonly options: SessionOptions;
  readonly model: StoredModel;
  /** There is no record. */
  readonly isEmpty: boolean;
}

/** The object is looked at before anything is started; what an earlier command computed is uploaded as it is. */
async function embedToObject(
  terminal: Terminal,
  target: ObjectTarget,
  request: CheckedRequest,
  terms: RunTerms,
): Promise<void> {
  const { flags, asked, standing } = request;
  if (flags.fresh === true) await forgetFinished(target);
  const object = await S3Object.open(target.upload);
  try {
    const before = await finishedBefore(target, asked);
    if (before !== undefined) sayGoesOn(terminal, target, before.rows);
    const { done, ...ending } =
      before === undefined ? await embedRows(terminal, request, terms) : { done: before, seconds: 0 };
    standing.left = { kind: 'kept', rows: done.rows, file: target.name };
    await uploadFinished(terminal, target, object, { isQuiet: flags.quiet === true });
    standing.left = undefined;
    await tellDone(terminal, done, request, { ...ending, ...objectsOf(target, ending) });
  } finally {
    object.close();
  }
}

/** Embeds what is there into the output of this machine. */
async function embedRows(terminal: Terminal, request: CheckedRequest, terms: RunTerms): Promise<Ended> {
  const { options, model, isEmpty } = terms;
  if (isEmpty) return writeNothing(terminal, { ...request, asked: withOrigin(request.asked, false) });
  let ended: Ended | undefined;
  const { withSession } = await import('../processes/session.ts');
  await withSession(terminal, { ...options, model }, async (session) => {
    const asked = withOrigin(request.asked, session.isTrial);
    const earlier = refuseOtherRun(request.target, request.earlier, asked);
    ended = await run(terminal, session, { ...request, asked, earlier });
  });
  return ended!;
}

type Ended = Ending & { readonly done: Done };

/** No record, no job: an output without rows needs the model's dimensions and nothing else. */
async function writeNothing(terminal: Terminal, request: CheckedRequest): Promise<Ended> {
  const { earlier } = request;
  // an input that has become empty is another one, and was refused; rows are here only where there is one of both
  const { writer } = await openWriter(terminal, { ...request, earlier: earlier?.rows === 0 ? undefined : earlier });
  const done = { rows: 0, rowsBefore: 0, truncated: 0, failed: 0, long: NO_LONG };
  await finished(writer, request, done);
  return { done, seconds: 0 };
}

async function run(terminal: Terminal, session: Session, request: CheckedRequest): Promise<Ended> {
  const { writer, state } = await openWriter(terminal, request);
  const startedMs = performance.now();
  try {
    const done = await stream(terminal, session, { ...request, writer, state });
    await finished(writer, request, done);
    return { done, seconds: (performance.now() - startedMs) / 1_000, ...listsOf(writer) };
  } catch (error) {
    const left = await writer.abandon();
    request.standing.left = left;
    tellWhatIsLeft(terminal, left, request);
    throw error;
  }
}

/** The output has its name, and a later command knows that there is nothing to compute. */
async function finished(writer: RowWriter, { target, asked }: CheckedRequest, done: Done): Promise<void> {
  if (target.kind === 'file' && isObject(target)) await noteFinished(target, asked, done);
  await writer.finish();
}

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

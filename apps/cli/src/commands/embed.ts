// `shoal embed`: lines in, vectors out, in the same order. The story is `embed`: check everything that can be checked,
// read the first record, open the session, stream. Nothing is started for a request that cannot succeed.

import { randomUUID } from 'node:crypto';
import { ShoalError, type Settings, type Tokenizer } from '@shoal/core';
import type { StoredModel } from '@shoal/models';
import { checkInputs, readInputs, totalBytes, type Input } from '../input/files.ts';
import type { BadRecord, TextFormat, TextRecord } from '../input/records.ts';
import { PartialFile } from '../output/partial-file.ts';
import { FileWriter, SpooledWriter, StreamWriter, deviceSink, headOf, type ByteSink, type RowWriter } from '../output/row-writer.ts';
import { differences, isHeldByAnother, readRunState, type RunRequest, type RunState } from '../output/run-state.ts';
import { checkTarget, outputFormat, type FileTarget, type OutputFormat, type Target } from '../output/target.ts';
import { duration, rowProgress } from '../progress.ts';
import { fetchModel, withSession, type Session } from '../session.ts';
import { settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';

export interface EmbedFlags {
  readonly output?: string;
  readonly outputFormat?: OutputFormat;
  readonly format?: TextFormat;
  readonly textField: string;
  readonly idField?: string;
  readonly onError: 'fail' | 'skip';
  readonly prompt?: 'query' | 'passage';
  readonly truncate: 'end' | 'error';
  readonly dimensions?: number;
  readonly resume?: boolean;
  readonly quiet?: boolean;
}

export async function embed(terminal: Terminal, files: readonly string[], flags: EmbedFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  refuseSilentTerminal(terminal, files);
  const inputs = await checkInputs(files, flags.format);
  const format = outputFormat(flags.output, flags.outputFormat);
  const target = await checkTarget(flags.output, inputs);
  refuseBinaryToTerminal(terminal, target, format);
  const earlier = await findEarlierRun(target, inputs, flags.resume === true);
  const records = new RecordReader(terminal, inputs, flags);
  const request: Request = { settings, flags, inputs, format, target, earlier, records };
  const options = { settings, isQuiet: flags.quiet === true };
  const isEmpty = await records.isEmpty();
  const model = await fetchModel(terminal, settings.model, options);
  refuseDimensions(model, flags.dimensions);
  const asked = runRequest(model, request);
  if (earlier !== undefined) refuseOtherRun(target, earlier, asked);
  const dims = flags.dimensions ?? model.dims;
  if (isEmpty) return writeNothing(terminal, { ...request, asked, dims });
  await withSession(terminal, { ...options, model }, (session) => run(terminal, session, { ...request, asked, dims }));
}

/** No record, no job: an output without rows needs the model's dimensions and nothing else. */
async function writeNothing(terminal: Terminal, request: CheckedRequest): Promise<void> {
  const { flags, target, records } = request;
  const { writer } = await openWriter(terminal, { ...request, earlier: undefined });
  await writer.finish();
  if (flags.quiet !== true) say(terminal, summary({ rows: 0, rowsBefore: 0, truncated: 0, failed: 0 }, records, target, 0));
}

interface Request {
  readonly settings: Settings;
  readonly flags: EmbedFlags;
  readonly inputs: readonly Input[];
  readonly format: OutputFormat;
  readonly target: Target;
  readonly earlier: RunState | undefined;
  readonly records: RecordReader;
}

/** The model agreed to it. */
interface CheckedRequest extends Request {
  readonly asked: RunRequest;
  readonly dims: number;
}

async function run(terminal: Terminal, session: Session, request: CheckedRequest): Promise<void> {
  const { flags, target, records } = request;
  const { writer, state } = await openWriter(terminal, request);
  const startedMs = performance.now();
  try {
    const done = await stream(terminal, session, { ...request, writer, state });
    await writer.finish();
    if (flags.quiet !== true) say(terminal, summary(done, records, target, (performance.now() - startedMs) / 1_000));
  } catch (error) {
    await writer.abandon(flags.resume === true);
    throw error;
  }
}

interface Done {
  readonly rows: number;
  readonly rowsBefore: number;
  readonly truncated: number;
  readonly failed: number;
}

/** Records to the client, blocks to the writer. */
async function stream(terminal: Terminal, session: Session, { flags, inputs, target, records, writer, state }: Request & { writer: RowWriter; state: RunState }): Promise<Done> {
  const bar = rowProgress(terminal, flags.quiet !== true && !(target.kind === 'stdout' && terminal.stdout.isTTY === true));
  const bytes = totalBytes(inputs);
  let rows = state.rows;
  let truncated = 0;
  let failed = 0;
  try {
    const blocks = session.client.embedStream(records.from(state.position, flags.truncate === 'error' ? session.tokenizer : undefined), {
      runId: state.runId,
      startAt: state.position,
      signal: session.signal,
      truncate: flags.truncate,
      onError: flags.onError,
      ...(flags.prompt === undefined ? {} : { prompt: flags.prompt }),
      ...(flags.dimensions === undefined ? {} : { output: { dimensions: flags.dimensions } }),
    });
    for await (const block of blocks) {
      session.noteProgress();
      if (block.kind === 'skipped') {
        failed += block.rows;
        say(terminal, `skipped ${records.placeOf(block.items)}: ${block.error.message}`);
        continue;
      }
      await writer.write({ records: block.items, dims: block.dims, vectors: block.vectors, position: block.first + block.rows });
      rows += block.rows;
      truncated += Array.isArray(block.truncated) ? block.truncated.length : 0;
      bar.update(rows, records.estimateTotal(bytes));
    }
    session.signal.throwIfAborted();
    return { rows, rowsBefore: state.rows, truncated, failed };
  } finally {
    bar.stop();
  }
}

/** The records of all inputs, good ones only; what happens to bad ones is decided here and nowhere else. */
class RecordReader {
  readonly #terminal: Terminal;
  readonly #skips: boolean;
  readonly #records: AsyncGenerator<TextRecord | BadRecord>;
  #firstGood: TextRecord | undefined;
  #bytes = 0;
  #good = 0;
  #isAtEnd = false;
  skipped = 0;

  constructor(terminal: Terminal, inputs: readonly Input[], { textField, idField, onError }: EmbedFlags) {
    this.#terminal = terminal;
    this.#skips = onError === 'skip';
    this.#records = readInputs(inputs, { stdin: terminal.stdin, textField, idField, onBytes: (bytes) => (this.#bytes += bytes) });
  }

  /** Reads up to the first good record, so that an input which is wrong from its first line starts nothing. */
  async isEmpty(): Promise<boolean> {
    this.#firstGood = await this.#next();
    return this.#firstGood === undefined;
  }

  /**
   * The good records behind the first `position` of them. With a tokenizer, texts that it would cut are bad: the client
   * would refuse them too, but with all the texts of their job and without knowing their lines.
   */
  async *from(position: number, tokenizer: Tokenizer | undefined): AsyncGenerator<TextRecord> {
    for (let record = this.#firstGood; record !== undefined; record = await this.#next()) {
      if (tokenizer?.encode(record.text).isTruncated === true) this.#refuse(`${record.file}, line ${record.line}: the text has more than the ${tokenizer.maxTokens} tokens of a row; shorten it, or leave out --truncate error`);
      else if (this.#good++ >= position) yield record;
    }
  }

  /** Rows of the whole input: known at its end, before that estimated by bytes. */
  estimateTotal(bytes: number | undefined): number | undefined {
    if (this.#isAtEnd) return this.#good;
    return bytes === undefined || this.#bytes === 0 ? undefined : Math.max(this.#good, Math.round((this.#good * bytes) / this.#bytes));
  }

  /** How to call some records in a message. */
  placeOf(records: readonly TextRecord[]): string {
    const [first, last] = [records[0], records.at(-1)];
    if (first === undefined || last === undefined) return 'no record';
    return first === last ? nameOf(first) : `${nameOf(first)} to ${nameOf(last)} (${records.length} records of one job)`;
  }

  async #next(): Promise<TextRecord | undefined> {
    for (;;) {
      const { value, done } = await untilAborted(this.#records.next(), this.#terminal.signal);
      if (done === true) {
        this.#isAtEnd = true;
        return undefined;
      }
      if ('text' in value) return value;
      this.#refuse(value.problem);
    }
  }

  #refuse(problem: string): void {
    if (!this.#skips) throw new ShoalError('INPUT_INVALID', `${problem}. --on-error skip leaves such lines out`);
    this.skipped++;
    say(this.#terminal, `skipped ${problem}`);
  }
}

function nameOf({ file, line, id }: TextRecord): string {
  return `${file}, line ${line}${id === undefined ? '' : ` (id ${JSON.stringify(id)})`}`;
}

/** Reading standard input can wait for ever; an interruption must not. */
async function untilAborted<Value>(promise: Promise<Value>, signal: AbortSignal): Promise<Value> {
  signal.throwIfAborted();
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = (): void => reject(signal.reason);
  signal.addEventListener('abort', abort, { once: true });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

function refuseSilentTerminal(terminal: Terminal, files: readonly string[]): void {
  if (files.length === 0 && terminal.stdin.isTTY === true) {
    throw new ShoalError('USAGE', 'nothing to embed: name files, pipe text in (echo hello | shoal embed), or give - to type it');
  }
}

function refuseBinaryToTerminal(terminal: Terminal, target: Target, format: OutputFormat): void {
  if (target.kind === 'stdout' && format === 'npy' && terminal.stdout.isTTY === true) {
    throw new ShoalError('USAGE', '.npy is binary and standard output is a terminal: write it to a file with -o OUT.npy, or into a pipe');
  }
}

function refuseDimensions(model: StoredModel, dimensions: number | undefined): void {
  if (dimensions !== undefined && dimensions > model.dims) throw new ShoalError('USAGE', `--dimensions ${dimensions} is more than ${model.name} has: ${model.dims}`);
}

/** What an interrupted run left, when it is to be continued. Refuses to work on a file that another process is writing. */
async function findEarlierRun(target: Target, inputs: readonly Input[], isResumed: boolean): Promise<RunState | undefined> {
  if (target.kind !== 'file') {
    if (isResumed) throw new ShoalError('USAGE', '--resume needs an output file (-o OUT.jsonl): what went to standard output or a device cannot be continued');
    return undefined;
  }
  const unrepeatable = inputs.find((input) => input.identity === undefined);
  if (isResumed && unrepeatable !== undefined) throw new ShoalError('USAGE', `--resume needs input files: ${unrepeatable.name} cannot be read again`);
  const state = await readRunState(target.state);
  if (state !== undefined && await isHeldByAnother(target.state, state)) {
    throw new ShoalError('FILE_UNWRITABLE', `cannot write ${target.name}: another shoal embed (process ${state.pid}) is writing it; wait for it, or choose another file`);
  }
  return isResumed ? state : undefined;
}

function runRequest(model: StoredModel, { settings, flags, inputs, format }: Request): RunRequest {
  const options = {
    '--output-format': format, '--format': inputs.map((input) => input.format).join(', '), '--text-field': flags.textField, '--id-field': flags.idField,
    '--on-error': flags.onError, '--prompt': flags.prompt, '--truncate': flags.truncate, '--dimensions': flags.dimensions, '--max-tokens': settings.maxTokens,
  };
  const given = Object.entries(options).flatMap(([flag, value]) => (value === undefined ? [] : [[flag, String(value)] as const]));
  return {
    inputs: inputs.flatMap((input) => (input.identity === undefined ? [] : [input.identity])),
    model: `${model.name}@${model.revision}`,
    options: Object.fromEntries(given),
  };
}

function refuseOtherRun(target: Target, earlier: RunState, asked: RunRequest): void {
  const found = differences(earlier.request, asked);
  if (found.length === 0) return;
  const name = target.kind === 'file' ? target.name : 'the output';
  throw new ShoalError('USAGE', `${name} cannot be resumed, because its first ${earlier.rows} rows come from another request:\n  ${found.join('\n  ')}\nRepeat the first command, or leave out --resume to begin again`);
}

type WriterRequest = Pick<CheckedRequest, 'target' | 'format' | 'dims' | 'asked' | 'earlier'>;

async function openWriter(terminal: Terminal, request: WriterRequest): Promise<{ writer: RowWriter; state: RunState }> {
  const { target, format, dims, asked } = request;
  const fresh: RunState = { v: 1, pid: process.pid, runId: randomUUID(), request: asked, rows: 0, position: 0, bytes: 0 };
  if (target.kind === 'file') return openFileWriter(terminal, target, request, fresh);
  const sink = target.kind === 'stdout' ? stdoutSink(terminal) : await deviceSink(target.path);
  return { writer: format === 'npy' ? await SpooledWriter.create(dims, sink) : new StreamWriter(sink), state: fresh };
}

async function openFileWriter(terminal: Terminal, target: FileTarget, { format, dims, earlier }: WriterRequest, fresh: RunState) {
  const reopened = earlier === undefined ? undefined : await PartialFile.reopen(target, { ...earlier, pid: process.pid });
  if (reopened !== undefined) say(terminal, `resuming ${target.name} behind row ${reopened.state.rows}`);
  const partial = reopened ?? await PartialFile.create(target, fresh, headOf(format, 0, dims));
  return { writer: new FileWriter(partial, format, dims), state: partial.state };
}

function stdoutSink(terminal: Terminal): ByteSink {
  return { write: (bytes) => print(terminal, bytes), close: async () => undefined };
}

function summary({ rows, rowsBefore, truncated, failed }: Done, { skipped }: RecordReader, target: Target, seconds: number): string {
  const place = target.kind === 'file' ? ` → ${target.name}` : '';
  if (rows === 0 && failed + skipped === 0) return `the input is empty: 0 rows${place}`;
  const fresh = rows - rowsBefore;
  // A rate of a few rows would be that of starting a worker.
  const pace = fresh < 256 ? '' : ` (${Math.round(fresh / seconds).toLocaleString('en')} texts/s)`;
  const parts = [`${rows.toLocaleString('en')} ${rows === 1 ? 'row' : 'rows'}${place} in ${duration(seconds)}${pace}`];
  if (rowsBefore > 0) parts.push(`${rowsBefore.toLocaleString('en')} of them were there before`);
  if (truncated > 0) parts.push(`${truncated.toLocaleString('en')} truncated at the model’s length`);
  if (skipped + failed > 0) parts.push(`${(skipped + failed).toLocaleString('en')} skipped`);
  return parts.join('; ');
}

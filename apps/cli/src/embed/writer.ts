// Where the rows of `shoal embed` go: a writer for each kind of target, behind the rows of an earlier run where there are
// some.

import { randomUUID } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { ShoalError } from '@shoal/contract';
import { removeRun } from '../output/earlier-run.ts';
import { openEncoder } from '../output/row-encoder.ts';
import type { RowForm } from '@shoal/worker/files/row-form';
import {
  FileWriter,
  SpooledWriter,
  StreamWriter,
  deviceSink,
  type ByteSink,
  type RowWriter,
} from '../output/row-writer.ts';
import type { RunState } from '../output/run-state.ts';
import { SinkWriter } from '../output/sink-writer.ts';
import { outputCompression, type FileTarget } from '../output/target.ts';
import type { SinkForm } from '../sinks/sink.ts';
import { print, say, sayAway, type Terminal } from '../terminal.ts';
import { commandOf } from '../typed-command.ts';
import { carriedOf, type EmbedFlags } from './flags.ts';
import { keptRows, type CheckedRequest } from './request.ts';

type WriterRequest = Pick<
  CheckedRequest,
  'flags' | 'inputs' | 'records' | 'skipped' | 'target' | 'format' | 'dims' | 'asked' | 'earlier'
>;

export async function openWriter(
  terminal: Terminal,
  request: WriterRequest,
): Promise<{ writer: RowWriter; state: RunState }> {
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
        onAway: sayAway(terminal),
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

export function sinkForm(flags: EmbedFlags, dims: number): SinkForm {
  return {
    dims,
    dtype: flags.dtype ?? 'f32',
    withText: flags.withText === true,
    vectorField: flags.vectorField ?? 'embedding',
    creates: flags.createTable === true,
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

export function sayGoesOn(terminal: Terminal, { name }: FileTarget, rows: number): void {
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

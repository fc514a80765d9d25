// A run of `shoal embed` as it is asked for, and an earlier one that it may go on with: found, compared, refused.

import { basename, dirname, join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import type { Settings } from '@shoal/core';
import type { StoredModel } from '@shoal/models';
import type { Input } from '../input/files.ts';
import type { RecordReader } from '../input/record-reader.ts';
import type { SkippedList } from '../output/beside.ts';
import { leftovers } from '../output/earlier-run.ts';
import type { Abandoned } from '../output/row-writer.ts';
import {
  READING_RULES,
  READING_RULES_NAME,
  differences,
  readRunState,
  type RunRequest,
  type RunState,
} from '../output/run-state.ts';
import type { OutputFormat } from '@shoal/worker/files/row-form';
import { existingShards, outputCompression, shardTarget, type FileTarget, type Target } from '../output/target.ts';
import { wantsUnit, type EmbedFlags } from './flags.ts';

/** What a command that does not come to its end leaves, as far as it got. */
export interface Standing {
  /** Rows of an earlier run, until this one has its own to tell. */
  earlier: RunState | undefined;
  /** Set once this run had an output. */
  left: Abandoned | undefined;
}

export interface Request {
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
export interface CheckedRequest extends Request {
  readonly asked: RunRequest;
  readonly dims: number;
}

/** What an interrupted run left, when it is to be continued. */
export async function findEarlierRun(
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

export function runRequest(model: StoredModel, { settings, flags, inputs, format, target }: Request): RunRequest {
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
export function refuseOtherRun(target: Target, earlier: RunState | undefined, asked: RunRequest): RunState | undefined {
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

export function keptBefore(
  target: FileTarget,
  { rows, shard }: RunState,
  { shardRows }: EmbedFlags,
): Extract<Abandoned, { kind: 'kept' }> {
  const { partial } = shardRows === undefined ? target : shardTarget(target, shard);
  return { kind: 'kept', rows, file: join(dirname(target.name), basename(partial)) };
}

export function keptRows({ name, partial }: FileTarget, { rows }: RunState): string {
  return `${rows.toLocaleString('en')} rows of an unfinished run are kept for ${name} (${basename(partial)})`;
}

function cures({ command }: RunState): string {
  const first = command === undefined ? 'The command of that run' : command;
  return ` ${first}\ngoes on with them; --fresh removes them and begins again`;
}

// The flags of `shoal embed`, and what of them cannot be: told before anything is read or started.

import { ShoalError, missingPrompt, promptText, type OutputDtype } from '@shoal/contract';
import type { StoredModel } from '@shoal/models';
import { openAt, refuseFieldsWithoutEffect, type Input } from '../input/files.ts';
import type { TextFormat } from '@shoal/worker/files/record';
import { carriedShards, refuseUncarriable } from '@shoal/worker/files/carried-columns';
import type { CarriedFile } from '@shoal/worker/files/row-form';
import type { OutputFormat } from '@shoal/worker/files/row-form';
import type { Target } from '../output/target.ts';
import type { Terminal } from '../terminal.ts';

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
  /** Of a run of parts: rows of each. */
  readonly partRows?: number;
  /** The parts are left to the workers. */
  readonly workersOnly?: boolean;
  /** What is not done of a run of parts is taken back. */
  readonly cancel?: boolean;
  /** Its objects are compared with the checksums of its manifest. */
  readonly verify?: boolean;
  /** A setting, as it was typed. */
  readonly maxTokens?: unknown;
  /** A report on standard output, which has no rows then. */
  readonly json?: boolean;
  readonly quiet?: boolean;
}

export function refuseSilentTerminal(terminal: Terminal, files: readonly string[]): void {
  if (files.length === 0 && terminal.stdin.isTTY === true) {
    throw new ShoalError(
      'USAGE',
      'nothing to embed: name files, pipe text in (echo hello | shoal embed), or give - to type it',
    );
  }
}

export function refuseBinaryToTerminal(terminal: Terminal, target: Target, format: OutputFormat): void {
  if (target.kind === 'stdout' && format !== 'jsonl' && terminal.stdout.isTTY === true) {
    throw new ShoalError(
      'USAGE',
      `.${format} is binary and standard output is a terminal: write it to a file with -o OUT.${format}, or ` +
        'into a pipe',
    );
  }
}

export function refuseFlagsWithoutEffect(
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

export function refuseFlagsOfSinks({ to, output, outputFormat: format, shardRows, createTable }: EmbedFlags): void {
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

/** Shards appear one by one, and an object once all rows are there. */
export function refuseShardsOfObjects(target: Target, { shardRows }: EmbedFlags): void {
  if (target.kind !== 'file' || target.upload === undefined || shardRows === undefined) return;
  throw new ShoalError('USAGE', `--shard-rows cuts files of this machine, and ${target.upload.name} is one object`);
}

/** `--long` says it for both; two flags that say different things are refused. */
export function withLong(flags: EmbedFlags): EmbedFlags {
  const { long, truncate } = flags;
  if (long === undefined) return flags;
  if (truncate === 'error' && long !== 'error')
    throw new ShoalError('USAGE', `--truncate error refuses long texts and --long ${long} does not; give one of them`);
  return { ...flags, truncate: long === 'error' ? 'error' : 'end' };
}

/** The files whose columns go along: Parquet out of Parquet. */
export function carriedOf(inputs: readonly Input[], format: OutputFormat): readonly CarriedFile[] | undefined {
  if (format !== 'parquet' || inputs.length === 0) return undefined;
  const files = inputs.flatMap((input) =>
    input.parquet === undefined ? [] : [{ open: () => openAt(input), parquet: input.parquet }],
  );
  return files.length === inputs.length ? files : undefined;
}

/** What a Parquet file has beside its texts goes along or is said not to. */
export function refuseLostColumns(inputs: readonly Input[], format: OutputFormat, flags: EmbedFlags): void {
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
  if (flags.withText === true)
    throw new ShoalError('USAGE', '--with-text: the text goes along with the other columns of a Parquet file');
  refuseUncarriable(files, flags.vectorField ?? 'embedding', flags.dtype);
  if (flags.shardRows !== undefined) carriedShards(files, flags.shardRows);
}

export function refuseDimensions(model: StoredModel, dimensions: number | undefined): void {
  if (dimensions !== undefined && dimensions > model.dims)
    throw new ShoalError('USAGE', `--dimensions ${dimensions} is more than ${model.name} has: ${model.dims}`);
}

/** Of a model whose vectors have length 1 anyhow nothing is asked for. */
export function wantsUnit(
  { normalize = false }: EmbedFlags,
  { isNormalized }: Pick<StoredModel, 'isNormalized'>,
): boolean {
  return normalize && !isNormalized;
}

/** Vectors of a model that normalizes cannot be had otherwise. */
export function refuseOwnLengths({ name, isNormalized }: StoredModel, normalize: boolean | undefined): void {
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

/** A run of parts goes into a folder, which is named as one. */
export function isPartsOutput({ output }: EmbedFlags): boolean {
  return output !== undefined && output.endsWith('/') && (output.startsWith('s3://') || !/^\w+:\/\//.test(output));
}

/** Flags that are about parts, of a command whose output is none of theirs. */
export function refuseFlagsOfParts({ output, partRows, workersOnly, cancel, verify }: EmbedFlags): void {
  const given = { '--part-rows': partRows, '--workers-only': workersOnly, '--cancel': cancel, '--verify': verify };
  const [flag] = Object.entries(given).find(([, value]) => value !== undefined) ?? [];
  if (flag !== undefined)
    throw new ShoalError(
      'USAGE',
      `${flag} is about a run of parts, whose output is a folder of this machine and of its workers (-o FOLDER/, with the ` +
        `slash), and the output is ${output ?? 'standard output'}`,
    );
}

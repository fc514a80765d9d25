// Flags and values that several commands have.

import { type Command, InvalidArgumentError, Option } from 'commander';
import { COLLECTION_NAME_RULE, isCollectionName } from '@shoal/similarity/collection-name';

export const INPUT_FORMATS = ['text', 'jsonl', 'json', 'csv', 'markdown', 'parquet'];

export const FILES_HELP =
  '.txt, .jsonl, .json, .csv, .tsv, .md (also .gz, .zst) or .parquet files or objects (s3://BUCKET/KEY; with -o FOLDER/ ' +
  'also folders, s3://BUCKET/PREFIX/ and patterns with *), or - for standard input; none: standard input';

export const DELIMITER_HELP = 'what divides the fields of CSV; "tab" for a tab (default: a comma, in .tsv a tab)';

export const NO_HEADER_HELP = 'the first row of CSV is a record; fields have numbers';

export function addInputFlags(command: Command): void {
  command
    .addOption(
      new Option(
        '--format <format>',
        'form of the input, whatever the extension says; standard input is text unless told',
      ).choices(INPUT_FORMATS),
    )
    .option(
      '--text-field <name>',
      'field of a JSONL line, CSV row or Parquet column that holds the text, in CSV by name or number (default: "text")',
    )
    .option(
      '--id-field <name>',
      'field that holds the id; every record must have it (without this flag: "id" where there is one)',
    )
    .option('--delimiter <character>', DELIMITER_HELP, delimiter)
    .option('--no-header', NO_HEADER_HELP)
    .addOption(
      new Option(
        '--on-error <mode>',
        'what a line that cannot be read, or a text that cannot be embedded, does to the run',
      )
        .choices(['fail', 'skip'])
        .default('fail'),
    );
}

export const WAIT_LIMIT =
  'give up when nothing comes for so long because the queue is paused, its workers are drained or busy with others’ ' +
  'jobs, or its server is away, e.g. 10m (default: wait)';

export function addReportFlags(command: Command): void {
  command.option('--json', 'report as JSON').option('-q, --quiet', 'no progress and no notes; errors only');
}

export function delimiter(text: string): string {
  const character = text === 'tab' || text === '\\t' ? '\t' : text;
  if (!/^[\t\x20-\x7e]$/.test(character) || character === '"')
    throw new InvalidArgumentError('It must be one ASCII character other than a quote, or "tab".');
  return character;
}

const SPAN_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** "10m" in milliseconds. */
export function span(text: string): number {
  const [, count, unit] = /^(\d{1,9})(ms|s|m|h|d)$/.exec(text) ?? [];
  if (count === undefined) throw new InvalidArgumentError('It must be a number with a unit: 30s, 10m, 6h or 7d.');
  return Number(count) * SPAN_MS[unit as keyof typeof SPAN_MS];
}

export function positiveInteger(text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new InvalidArgumentError('It must be a whole number from 1 to 999999999.');
  return Number(text);
}

export function numberFrom0(most: number): (text: string) => number {
  return (text) => {
    const number = text.trim() === '' ? NaN : Number(text);
    if (!(number >= 0 && number <= most && number < Infinity))
      throw new InvalidArgumentError(`It must be a number from 0${most === Infinity ? '' : ` to ${most}`}.`);
    return number;
  };
}

export function queueName(text: string): string {
  if (text.trim() === '' || text.includes(':'))
    throw new InvalidArgumentError(
      'It must be the name of a queue, which is not empty and has no ":", for example embed-minilm or similarity.',
    );
  return text;
}

export function collectionName(text: string): string {
  if (!isCollectionName(text)) throw new InvalidArgumentError(`It must be ${COLLECTION_NAME_RULE}.`);
  return text;
}

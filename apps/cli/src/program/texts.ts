// Commands that texts go into: embed, try and rerank.

import { type Command, Option } from 'commander';
import type { EmbedFlags } from '../embed/flags.ts';
import type { RerankFlags } from '../commands/rerank.ts';
import type { TryFlags } from '../commands/try.ts';
import type { Terminal } from '../terminal.ts';
import { CONNECTION, addSettings } from './settings.ts';
import { FILES_HELP, WAIT_LIMIT, addInputFlags, positiveInteger, span } from './shared.ts';

export function addEmbed(program: Command, terminal: Terminal): void {
  const command = program
    .command('embed')
    .summary('vectors of the texts in files or standard input')
    .description(
      'Embeds texts through the queue: every line of a .txt, one field of every line of a .jsonl, element of a .json, row ' +
        'of a .csv or .parquet, every passage of a .md; also .gz and .zst of each but .parquet. Rows come out in input ' +
        'order; a .parquet of a .parquet keeps all its columns. Starts a queue server and a worker when ' +
        'there are none, and says so.',
    )
    .argument('[file...]', FILES_HELP);
  addOutputFlags(command);
  addInputFlags(command);
  command
    .option(
      '--prompt <name>',
      'put the model’s prompt of this name before each text: query, passage, or another that it has; "none" for none ' +
        'where it has a default one',
    )
    .addOption(
      new Option('--truncate <mode>', 'a text longer than the model takes is cut at its end, or an error')
        .choices(['end', 'error'])
        .default('end'),
    )
    .addOption(
      new Option(
        '--long <mode>',
        'what becomes of a text longer than a row of the model: cut at its end (as without this flag), chunk: embedded in ' +
          'pieces whose mean, weighted by tokens, is its vector, or an error',
      ).choices(['cut', 'chunk', 'error']),
    )
    .option('--dimensions <n>', 'keep only the first n dimensions, normalized again', positiveInteger)
    .option('--normalize', 'vectors of length 1 also from a model that gives each its own length')
    .option(
      '--no-normalize',
      'vectors of their own lengths, which a model has that does not normalize; others refuse it',
    )
    .option('--tenant <name>', 'whose run this is: tenants share the workers half and half', 'default')
    .addOption(
      new Option('--class <class>', 'interactive goes before bulk').choices(['interactive', 'bulk']).default('bulk'),
    )
    .option('--wait-limit <time>', WAIT_LIMIT, span)
    .option('--fresh', 'begin again, without the rows that an interrupted run left beside the output')
    .option('--resume', 'go on with them, which happens anyhow; refused where the input cannot be read again')
    .option('--json', 'report as JSON on standard output, also where the run was interrupted; needs -o FILE')
    .option('-q, --quiet', 'no progress and no notes; errors only');
  addSettings(command, ['model', 'maxTokens', 'jobTexts', ...CONNECTION]);
  command.addHelpText('after', EMBED_EXAMPLES);
  command.action(async (files: string[], flags: EmbedFlags) =>
    (await import('../commands/embed.ts')).embed(terminal, files, flags),
  );
}

function addOutputFlags(command: Command): void {
  command
    .option(
      '-o, --output <file>',
      'write to this file (.jsonl, .csv, both also .gz and .zst, .npy, .arrow, .parquet) instead of standard output, or to ' +
        'an object of S3 (s3://BUCKET/KEY.parquet); it appears when it is complete. FOLDER/ or s3://BUCKET/PREFIX/: ' +
        'workers read the files and write a .parquet for each part of them',
    )
    .addOption(
      new Option(
        '--output-format <format>',
        'jsonl: {"id" or "index", "embedding"} a row; csv: the same as columns; npy: float32 [rows, dims]; arrow: an IPC ' +
          'file with columns id or index, embedding; parquet: the same, or of Parquet files all their columns and embedding',
      ).choices(['jsonl', 'csv', 'npy', 'arrow', 'parquet']),
    )
    .option(
      '--to <table>',
      'write into a table instead: postgres://USER@HOST/DATABASE/TABLE; rows replace those with their ids',
    )
    .option('--create-table', 'make the table of --to where there is none (pgvector)')
    .option('--with-text', 'write the texts as well (not npy)')
    .addOption(
      new Option(
        '--dtype <type>',
        'what a value is stored as: f32 as it is, f16 half the size, i8 a quarter (with a scale a row), binary a bit a ' +
          'dimension, eight in a byte',
      ).choices(['f32', 'f16', 'i8', 'binary']),
    )
    .option('--vector-field <name>', 'name of the column of vectors in a .parquet or a table (default: "embedding")')
    .option(
      '--shard-rows <n>',
      'a file for each n rows: OUT-00000.npy, OUT-00001.npy …; OUT.index.json names them all when they are complete',
      positiveInteger,
    )
    .option(
      '--part-rows <n>',
      'with -o FOLDER/: rows of a part (default: 262144); row groups of Parquet go together up to it and are not cut',
      positiveInteger,
    )
    .option(
      '--workers-only',
      'with -o FOLDER/: leave when all parts are asked for; the same command without it follows',
    )
    .option('--cancel', 'with -o FOLDER/: take back what is not done of the run that this command would ask for')
    .option(
      '--verify',
      'with -o FOLDER/: compare the objects of a run that is done with the checksums of its manifest',
    );
}

const EMBED_EXAMPLES = `
Examples:
  echo hello | shoal embed -
  shoal embed docs.jsonl --id-field key -o docs.npy
  shoal embed table.csv --text-field comment --id-field 1 -o table.arrow --with-text
  shoal embed docs/*.md -o docs.jsonl
  shoal embed huge.jsonl.zst -o huge.npy --shard-rows 1000000 --dtype f16
  PGPASSWORD=… shoal embed docs.jsonl --to postgres://me@db.example/app/docs --create-table
  shoal embed shards/ -o vectors/ --text-field comment
  shoal embed reviews.parquet --text-field comment -o reviews-embedded.parquet --long chunk

What an interrupted run wrote (Ctrl-C, SIGTERM, an error, a crash) is kept in a hidden .OUTPUT.shoal-partial beside the
output, and the same command goes on with it; with other input, another model or other options it is refused, and
--fresh begins again. Rows of standard input become OUT.partial.npy, since it cannot be read again. Beside the output:
OUTPUT.skipped.jsonl names what --on-error skip left out, OUTPUT.npy.ids.jsonl has the ids of a .npy's rows. "index" counts the records of the input from 0; a passage of Markdown is called
FILE#HEADING-PATH/N and is embedded with its headings.`;

export function addTry(program: Command, terminal: Terminal): void {
  const command = program
    .command('try')
    .summary('search the Markdown of Shoal and its dependencies by meaning')
    .description(
      'Embeds the Markdown of Shoal and the READMEs of its dependencies through the queue, up to 3,000 ' +
        'passages, and answers searches. Vectors are kept: the next time only what has changed is embedded.',
    )
    .argument('[query...]', 'what to look for; without it, on a terminal, searches are typed in')
    .option('-k, --top <n>', 'answers to show', positiveInteger, 3)
    .option('--all', 'every passage, without the limit')
    .option('--wait-limit <time>', WAIT_LIMIT, span)
    .option('--json', 'answers as JSON')
    .option('-q, --quiet', 'no progress and no notes; errors only');
  addSettings(command, ['model', ...CONNECTION]);
  command.action(async (query: string[], flags: TryFlags) =>
    (await import('../commands/try.ts')).tryOut(terminal, query, flags),
  );
}

export function addRerank(program: Command, terminal: Terminal): void {
  const command = program
    .command('rerank')
    .summary('the texts in files by how well they answer a question')
    .description(
      'Weighs texts against a question by a reranker (a cross-encoder, which reads both at once) and shows the best. ' +
        'Texts are read as embed reads them: every line of a .txt, one field of every line of a .jsonl or row of a ' +
        '.csv, every passage of a .md. Starts a queue server and a worker when there are none, and says so.',
    )
    .argument('<question>', 'what the texts are weighed against, in quotes')
    .argument('[file...]', FILES_HELP)
    .option('-n, --top <n>', 'texts to show (default: 10; all with --json or -o)', positiveInteger)
    .option('-o, --output <file>', 'write JSON lines to this file (.jsonl) instead; it appears when it is complete');
  addInputFlags(command);
  command
    .addOption(
      new Option('--truncate <mode>', 'of a pair longer than the model takes the longer text is cut, or an error')
        .choices(['end', 'error'])
        .default('end'),
    )
    .option('--tenant <name>', 'whose run this is: tenants share the workers half and half', 'default')
    .option('--wait-limit <time>', WAIT_LIMIT, span)
    .option('--json', 'JSON lines on standard output: rank, score, index, id, file, line and text')
    .option('-q, --quiet', 'no progress and no notes; errors only');
  addSettings(command, ['model', 'maxTokens', 'jobTexts', ...CONNECTION]);
  command.addHelpText('after', RERANK_EXAMPLES);
  command.action(async (question: string, files: string[], flags: RerankFlags) =>
    (await import('../commands/rerank.ts')).rerank(terminal, question, files, flags),
  );
}

const RERANK_EXAMPLES = `
Examples:
  shoal rerank "how are stalled jobs recovered" docs/*.md --model cross-encoder/ms-marco-MiniLM-L6-v2
  shoal search docs "stalled jobs" -k 100 --json | jq -c '.found[]' | shoal rerank "…" - --format jsonl --text-field name
  shoal rerank "late delivery" reviews.csv --text-field comment -o ranked.jsonl

Without --model the only reranker that is stored is taken. Scores are what the model gives, between 0 and 1 for many
and of any size for others; those of two models cannot be compared.`;

// Commands that compare vectors: collections, search, files of vectors, graphs.

import { type Command, Option } from 'commander';
import type { BuildFlags, CheckFlags, IndexFlags } from '../commands/collections.ts';
import type { SearchFlags, SimilarityFlags, SpreadFlags } from '../commands/search.ts';
import type { Terminal } from '../terminal.ts';
import { CONNECTION, addSettings } from './settings.ts';
import {
  DELIMITER_HELP,
  INPUT_FORMATS,
  NO_HEADER_HELP,
  WAIT_LIMIT,
  addReportFlags,
  collectionName,
  delimiter,
  numberFrom0,
  positiveInteger,
  span,
} from './shared.ts';

export function addIndex(program: Command, terminal: Terminal): void {
  const index = program
    .command('index')
    .description('Collections: named, versioned rows of vectors to search in.')
    .helpCommand(false);
  const build = addIndexBuild(index, terminal);
  const list = index
    .command('list')
    .description('Shows the collections of this machine, each with its newest version.');
  list.action(async (flags: IndexFlags) => (await import('../commands/collections.ts')).list(terminal, flags));
  const show = index
    .command('show')
    .description('Shows one collection: versions, rows, model, file.')
    .argument('<name>', 'NAME, or NAME@VERSION');
  show.action(async (name: string, flags: IndexFlags) =>
    (await import('../commands/collections.ts')).show(terminal, name, flags),
  );
  const check = index
    .command('check')
    .description(
      'Reads every byte of a version and compares it with its checksum; with --ann measures how much of the ' +
        'exact answer approximate search finds.',
    )
    .argument('<name>', 'NAME, or NAME@VERSION')
    .option('--ann', 'measure approximate search on rows of the collection; builds its index when there is none')
    .addOption(metricOption());
  check.action(async (name: string, flags: CheckFlags) =>
    (await import('../commands/collections.ts')).check(terminal, name, flags),
  );
  const rm = index
    .command('rm')
    .description('Takes away collections, or single versions. Who has one open keeps it until he is done.')
    .argument('<name...>', 'NAME, or NAME@VERSION');
  rm.action(async (names: string[], flags: IndexFlags) =>
    (await import('../commands/collections.ts')).remove(terminal, names, flags),
  );
  for (const command of [build, list, show, check, rm])
    command.option('--json', 'report as JSON').option('-q, --quiet', 'no progress and no notes; errors only');
  for (const command of [list, show, check, rm]) addSettings(command, SIMILARITY);
}

function addIndexBuild(index: Command, terminal: Terminal): Command {
  const build = index
    .command('build')
    .description(
      'Makes a collection, or its next version: from texts (.txt, .jsonl, .json, .csv, .md, .parquet), which are embedded ' +
        'through the queue, or from vectors (.npy, .arrow, .parquet, .jsonl with "embedding"). Starts a queue server and a ' +
        'worker when texts need them. The version appears when it is complete; searches go on with the one ' +
        'before.',
    )
    .argument('<name>', 'name of the collection', collectionName)
    .argument('[file...]', 'files or objects (s3://BUCKET/KEY) of texts, or of vectors')
    .option('--append', 'behind the rows that are there, instead of in their place')
    .addOption(
      new Option(
        '--dtype <type>',
        'what rows are stored as: f32 exact (unless told), f16 half the size, i8 a quarter; with --append as ' +
          'the rows that are there',
      ).choices(['f32', 'f16', 'i8']),
    )
    .option('--ann', 'also an index of candidates for approximate search, with its recall as measured on these rows')
    .addOption(metricOption())
    .option('--owner <tenant>', 'the tenant whose API keys alone see it over HTTP (default: as before, else everybody)')
    .option('--keep <n>', 'versions that stay, the new one included', positiveInteger, 2)
    .addOption(new Option('--format <format>', 'form of texts, whatever the extension says').choices(INPUT_FORMATS))
    .option('--text-field <name>', 'field of a JSONL line or CSV row that holds the text (default: "text")')
    .option('--id-field <name>', 'field that holds the id, which names the row')
    .option('--delimiter <character>', DELIMITER_HELP, delimiter)
    .option('--no-header', NO_HEADER_HELP)
    .option('--column <name>', COLUMN_HELP)
    .addOption(
      new Option('--on-error <mode>', 'what a line that cannot be read does to the build')
        .choices(['fail', 'skip'])
        .default('fail'),
    )
    .option(
      '--prompt <name>',
      'put the model’s prompt of this name before each text, or "none"; unless told, its "passage" if it has one',
    )
    .option('--fresh', 'begin again, without the rows that an interrupted build of this name has kept')
    .option('--wait-limit <time>', WAIT_LIMIT, span);
  addSettings(build, ['model', 'maxTokens', 'jobTexts', ...CONNECTION, 'collectionsDir', 'kernels']);
  build.addHelpText('after', INDEX_EXAMPLES);
  build.action(async (name: string, files: string[], flags: BuildFlags) =>
    (await import('../commands/collections.ts')).build(terminal, name, files, flags),
  );
  return build;
}

const INDEX_EXAMPLES = `
Examples:
  shoal index build docs *.md && shoal search docs "how are stalled jobs recovered"
  shoal index build docs *.md --ann && shoal search docs "…" --ann
  shoal index build products vectors.npy --dtype f16
  shoal index build docs new.md --append`;

export function addSearch(program: Command, terminal: Terminal): void {
  const search = program
    .command('search')
    .summary('the rows of a collection nearest to a text')
    .description(
      'Embeds the query by the model of the collection and shows the nearest rows, by exact search over all of ' +
        'them or, with --ann, among candidates that are scored exactly. Only the query goes through the queue: ' +
        'the rows are compared in this process, since their files are here. To ask the workers of another ' +
        'machine use the HTTP interface or the SDK.',
    )
    .argument('<name>', 'the collection: NAME, or NAME@VERSION')
    .argument('<query...>', 'what to look for')
    .option(
      '--prompt <name>',
      'put the model’s prompt of this name before the query, or "none"; unless told, its "query" if it has one',
    )
    .option('-k, --k <n>', 'rows to show', positiveInteger, 10)
    .option('--ann', 'approximate: candidates from the collection’s index; its recall is shown')
    .option('--wait-limit <time>', WAIT_LIMIT, span)
    .addOption(metricOption());
  search.action(async (name: string, query: string[], flags: SearchFlags) =>
    (await import('../commands/search.ts')).search(terminal, name, query, flags),
  );
  addSettings(search, ['model', 'maxTokens', ...CONNECTION, 'collectionsDir', 'kernels']);
  addReportFlags(search);
}

export function addSimilarity(program: Command, terminal: Terminal): void {
  const similarity = program
    .command('similarity')
    .summary('how alike two texts, or two files of vectors, are')
    .description(
      'Every vector of A against every one of B: files or objects (s3://BUCKET/KEY) of vectors (.npy, .arrow, .parquet, .jsonl), or texts, which are ' +
        'embedded through the queue. Prints a line for each vector of A, or writes float32 [A, B].',
    )
    .argument('<a>', 'a file of vectors, or a text')
    .argument('<b>', 'a file of vectors, or a text')
    .option('-o, --output <file>', 'write the matrix to this .npy file')
    .option('--wait-limit <time>', WAIT_LIMIT, span)
    .option('--column <name>', COLUMN_HELP)
    .addOption(metricOption());
  similarity.action(async (a: string, b: string, flags: SimilarityFlags) =>
    (await import('../commands/search.ts')).similarity(terminal, a, b, flags),
  );
  addSettings(similarity, ['model', 'maxTokens', ...CONNECTION, 'collectionsDir', 'kernels']);
  addReportFlags(similarity);
}

export function addSpread(program: Command, terminal: Terminal): void {
  const spread = program
    .command('spread')
    .summary('spread activation over a graph')
    .description(
      'Activation spreads from the seeds along weighted edges; prints the most activated nodes. Cycles are fine.',
    )
    .argument(
      '<graph>',
      'an edge list (.jsonl with from, to, weight; .csv; .tsv; .npy), or the name of a graph that was saved',
    )
    .option(
      '--seed <node[=value]>',
      'a node to begin with, and its activation (1); as often as you like',
      (seed: string, before: string[]) => [...before, seed],
      [],
    )
    .option('-k, --k <n>', 'nodes to show', positiveInteger, 10)
    .option('--steps <n>', 'edges that activation goes along', positiveInteger, 3)
    .option('--decay <share>', 'what is left after an edge of weight 1, 0 to 1', numberFrom0(1), 0.5)
    .option('--threshold <value>', 'a node with less gives nothing on', numberFrom0(Infinity), 0)
    .option('--delimiter <character>', DELIMITER_HELP, delimiter)
    .option('--header', 'the first row of CSV is a heading (without this flag and the next: told by the row, and said)')
    .option('--no-header', 'the first row of CSV is an edge')
    .option('--save <name>', 'keep the graph under this name');
  addSettings(spread, SIMILARITY);
  spread.action(async (graph: string, flags: SpreadFlags) =>
    (await import('../commands/search.ts')).spread(terminal, graph, flags),
  );
  addReportFlags(spread);
}

const SIMILARITY = ['collectionsDir', 'kernels', 'cacheDir', 'threads'] as const;

const COLUMN_HELP =
  'column of an Arrow or Parquet file that holds the vectors (default: "embedding", else "vector", else the only list of floats)';

function metricOption(): Option {
  return new Option('--metric <metric>', 'cosine, dot product, or squared distance (l2: the smallest is best)')
    .choices(['cosine', 'dot', 'l2'])
    .default('cosine');
}

// Every command with its flags and help, and nothing that takes time to load: a command's own code is imported when it
// runs, so that `shoal --help` costs what commander costs. Flags that are settings carry the name core gives them.

import { Command, InvalidArgumentError, Option } from 'commander';
import { COLLECTION_NAME_RULE, isCollectionName } from '@shoal/similarity/collection-name';
import type { Shell } from './completion.ts';
import type { AuditFlags } from './commands/audit.ts';
import type { BuildFlags, CheckFlags, IndexFlags } from './commands/collections.ts';
import type { DoctorFlags } from './commands/doctor.ts';
import type { EmbedFlags } from './embed/flags.ts';
import type { GpuFlags } from './commands/gpu.ts';
import type { ExporterFlags } from './commands/exporter.ts';
import type { FleetFlags, StatusFlags } from './commands/fleet.ts';
import type { RestartFlags } from './commands/fleet-restart.ts';
import type { CreateFlags, KeyFlags } from './commands/key.ts';
import type { ImportFlags, ModelFlags, PullFlags } from './commands/model.ts';
import type { CleanFlags, CountsFlags, QueueFlags, RetryFlags } from './commands/queue.ts';
import type { TenantFlags } from './commands/queue-look.ts';
import type { RerankFlags } from './commands/rerank.ts';
import type { SearchFlags, SimilarityFlags, SpreadFlags } from './commands/search.ts';
import type { ServeFlags } from './commands/serve.ts';
import type { TuneFlags } from './commands/tune.ts';
import type { TryFlags } from './commands/try.ts';
import type { UpFlags } from './commands/up.ts';
import type { WorkerFlags } from './commands/worker.ts';
import { redactText } from '@shoal/core/redact-url';
import { print, type Terminal } from './terminal.ts';

export function buildProgram(terminal: Terminal, version: string): Command {
  const program = new Command('shoal')
    .description('Embedding jobs on a durable queue, batched to fit the device they run on.')
    .version(version, '--version', 'print the version')
    .helpOption('-h, --help', 'show help; also for every command: shoal embed --help')
    .helpCommand(false)
    .exitOverride()
    .configureOutput({
      writeOut: (text) => void terminal.stdout.write(text),
      writeErr: (text) => void terminal.stderr.write(text),
      outputError: (text, write) => write(redactText(text.replace(/^error: /, 'shoal: '))),
    })
    .addHelpText('after', AFTER_HELP);
  addEmbed(program, terminal);
  addTry(program, terminal);
  addIndex(program, terminal);
  addSearch(program, terminal);
  addRerank(program, terminal);
  addSimilarity(program, terminal);
  addSpread(program, terminal);
  addModel(program, terminal);
  addUp(program, terminal);
  addServe(program, terminal);
  addKey(program, terminal);
  addDashboard(program, terminal);
  addExporter(program, terminal, version);
  addWorker(program, terminal);
  addTune(program, terminal);
  addGpu(program, terminal);
  addDoctor(program, terminal, version);
  addFleet(program, terminal);
  addQueue(program, terminal);
  addAudit(program, terminal);
  addCompletion(program, terminal);
  return program;
}

const AFTER_HELP = `
Settings come from flags, SHOAL_* and REDIS_URL in the environment, and shoal.config.json in the current folder, in
this order. Without REDIS_URL a private queue server of this user is used, and started when there is none.
Exit codes: 0 done, 1 failed, 2 called wrongly, 130 after Ctrl-C.`;

function addEmbed(program: Command, terminal: Terminal): void {
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
  addSettings(command, ['model', 'maxTokens', ...CONNECTION]);
  command.addHelpText('after', EMBED_EXAMPLES);
  command.action(async (files: string[], flags: EmbedFlags) =>
    (await import('./commands/embed.ts')).embed(terminal, files, flags),
  );
}

function addOutputFlags(command: Command): void {
  command
    .option(
      '-o, --output <file>',
      'write to this file (.jsonl, .csv, both also .gz and .zst, .npy, .arrow, .parquet) instead of standard output, or to ' +
        'an object of S3 (s3://BUCKET/KEY.parquet); it appears when it is complete',
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
    );
}

const INPUT_FORMATS = ['text', 'jsonl', 'json', 'csv', 'markdown', 'parquet'];
const FILES_HELP =
  '.txt, .jsonl, .json, .csv, .tsv, .md (also .gz, .zst) or .parquet files or objects (s3://BUCKET/KEY), or - for standard ' +
  'input; none: standard input';

const DELIMITER_HELP = 'what divides the fields of CSV; "tab" for a tab (default: a comma, in .tsv a tab)';
const NO_HEADER_HELP = 'the first row of CSV is a record; fields have numbers';

function addInputFlags(command: Command): void {
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

const WAIT_LIMIT =
  'give up when nothing comes for so long because the queue is paused, its workers are drained or busy with others’ ' +
  'jobs, or its server is away, e.g. 10m (default: wait)';

const EMBED_EXAMPLES = `
Examples:
  echo hello | shoal embed -
  shoal embed docs.jsonl --id-field key -o docs.npy
  shoal embed table.csv --text-field comment --id-field 1 -o table.arrow --with-text
  shoal embed docs/*.md -o docs.jsonl
  shoal embed huge.jsonl.zst -o huge.npy --shard-rows 1000000 --dtype f16
  PGPASSWORD=… shoal embed docs.jsonl --to postgres://me@db.example/app/docs --create-table
  shoal embed reviews.parquet --text-field comment -o reviews-embedded.parquet --long chunk

What an interrupted run wrote (Ctrl-C, SIGTERM, an error, a crash) is kept in a hidden .OUTPUT.shoal-partial beside the
output, and the same command goes on with it; with other input, another model or other options it is refused, and
--fresh begins again. Rows of standard input become OUT.partial.npy, since it cannot be read again. Beside the output:
OUTPUT.skipped.jsonl names what --on-error skip left out, OUTPUT.npy.ids.jsonl has the ids of a .npy's rows. "index" counts the records of the input from 0; a passage of Markdown is called
FILE#HEADING-PATH/N and is embedded with its headings.`;

function addTry(program: Command, terminal: Terminal): void {
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
    (await import('./commands/try.ts')).tryOut(terminal, query, flags),
  );
}

const SIMILARITY = ['collectionsDir', 'kernels', 'cacheDir', 'threads'] as const;

function metricOption(): Option {
  return new Option('--metric <metric>', 'cosine, dot product, or squared distance (l2: the smallest is best)')
    .choices(['cosine', 'dot', 'l2'])
    .default('cosine');
}

function addIndex(program: Command, terminal: Terminal): void {
  const index = program
    .command('index')
    .description('Collections: named, versioned rows of vectors to search in.')
    .helpCommand(false);
  const build = addIndexBuild(index, terminal);
  const list = index
    .command('list')
    .description('Shows the collections of this machine, each with its newest version.');
  list.action(async (flags: IndexFlags) => (await import('./commands/collections.ts')).list(terminal, flags));
  const show = index
    .command('show')
    .description('Shows one collection: versions, rows, model, file.')
    .argument('<name>', 'NAME, or NAME@VERSION');
  show.action(async (name: string, flags: IndexFlags) =>
    (await import('./commands/collections.ts')).show(terminal, name, flags),
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
    (await import('./commands/collections.ts')).check(terminal, name, flags),
  );
  const rm = index
    .command('rm')
    .description('Takes away collections, or single versions. Who has one open keeps it until he is done.')
    .argument('<name...>', 'NAME, or NAME@VERSION');
  rm.action(async (names: string[], flags: IndexFlags) =>
    (await import('./commands/collections.ts')).remove(terminal, names, flags),
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
  addSettings(build, ['model', 'maxTokens', ...CONNECTION, 'collectionsDir', 'kernels']);
  build.addHelpText('after', INDEX_EXAMPLES);
  build.action(async (name: string, files: string[], flags: BuildFlags) =>
    (await import('./commands/collections.ts')).build(terminal, name, files, flags),
  );
  return build;
}

const COLUMN_HELP =
  'column of an Arrow or Parquet file that holds the vectors (default: "embedding", else "vector", else the only list of floats)';

const INDEX_EXAMPLES = `
Examples:
  shoal index build docs *.md && shoal search docs "how are stalled jobs recovered"
  shoal index build docs *.md --ann && shoal search docs "…" --ann
  shoal index build products vectors.npy --dtype f16
  shoal index build docs new.md --append`;

function addSearch(program: Command, terminal: Terminal): void {
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
    (await import('./commands/search.ts')).search(terminal, name, query, flags),
  );
  addSettings(search, ['model', 'maxTokens', ...CONNECTION, 'collectionsDir', 'kernels']);
  addReportFlags(search);
}

function addRerank(program: Command, terminal: Terminal): void {
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
  addSettings(command, ['model', 'maxTokens', ...CONNECTION]);
  command.addHelpText('after', RERANK_EXAMPLES);
  command.action(async (question: string, files: string[], flags: RerankFlags) =>
    (await import('./commands/rerank.ts')).rerank(terminal, question, files, flags),
  );
}

const RERANK_EXAMPLES = `
Examples:
  shoal rerank "how are stalled jobs recovered" docs/*.md --model cross-encoder/ms-marco-MiniLM-L6-v2
  shoal search docs "stalled jobs" -k 100 --json | jq -c '.found[]' | shoal rerank "…" - --format jsonl --text-field name
  shoal rerank "late delivery" reviews.csv --text-field comment -o ranked.jsonl

Without --model the only reranker that is stored is taken. Scores are what the model gives, between 0 and 1 for many
and of any size for others; those of two models cannot be compared.`;

function addSimilarity(program: Command, terminal: Terminal): void {
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
    (await import('./commands/search.ts')).similarity(terminal, a, b, flags),
  );
  addSettings(similarity, ['model', 'maxTokens', ...CONNECTION, 'collectionsDir', 'kernels']);
  addReportFlags(similarity);
}

function addSpread(program: Command, terminal: Terminal): void {
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
    (await import('./commands/search.ts')).spread(terminal, graph, flags),
  );
  addReportFlags(spread);
}

function addReportFlags(command: Command): void {
  command.option('--json', 'report as JSON').option('-q, --quiet', 'no progress and no notes; errors only');
}

function dtypeOption(): Option {
  return new Option(
    '--dtype <type>',
    'also make the form NAME-TYPE for CPUs. int8: whole numbers of 8 bits, faster, near the same vectors; f16: the ' +
      'word table in fp16, less memory, all but the same vectors',
  ).choices(['int8', 'f16']);
}

function addModel(program: Command, terminal: Terminal): void {
  const model = program
    .command('model')
    .description('Models of the cache folder: fetch, list, verify, import.')
    .helpCommand(false);
  const pull = model
    .command('pull')
    .description('Fetches a model and verifies it. Does nothing when it is there.')
    .argument('[name]', 'name of the model, or ORG/NAME[@REVISION] of the Hugging Face hub', 'minilm')
    .option('--name <name>', 'what to call a model of the hub here; without this flag org--name')
    .option('--task <name>', 'whose adapter to merge, of a model that has one for each task (Jina v3): org--name-task')
    .addOption(dtypeOption())
    .option('--update', 'take the newest commit of the hub instead of the one that is stored')
    .option('--force', 'fetch again and replace what is there')
    .option('-q, --quiet', 'no progress and no notes; errors only')
    .option('--json', 'report as JSON');
  pull.action(async (name: string, flags: PullFlags) =>
    (await import('./commands/model.ts')).pull(terminal, name, flags),
  );
  const list = model
    .command('list')
    .description('Shows the models that can be used, and which of them are in the cache.')
    .option('--json', 'report as JSON');
  list.action(async (flags: ModelFlags) => (await import('./commands/model.ts')).list(terminal, flags));
  const verify = model
    .command('verify')
    .description('Reads every file of a cached model and compares it with its checksum.')
    .argument('[name]', 'name of the model', 'minilm')
    .option('--json', 'report as JSON');
  verify.action(async (name: string, flags: ModelFlags) =>
    (await import('./commands/model.ts')).verify(terminal, name, flags),
  );
  const bring = model
    .command('import')
    .description(
      'Copies a model into the cache, checks it and gives it a name: a folder with ' +
        'config.json, model.safetensors and tokenizer.json, or an .onnx file with config.json and tokenizer.json ' +
        'beside it or one folder up. What cannot be computed as its authors do is refused by name.',
    )
    .argument('<path>', 'the folder or .onnx file')
    .option('--name <name>', 'what to call it: a-z, 0-9 and "-"; without this flag after the folder or file')
    .option('--force', 'replace the model that was imported under this name')
    .addOption(dtypeOption())
    .addOption(
      new Option('--pooling <kind>', 'how tokens become one vector, where no file of the model says it').choices([
        'mean',
        'cls',
        'lasttoken',
      ]),
    )
    .option('--normalize', 'vectors of length 1, where the files of the model say nothing of it')
    .option('--task <name>', 'whose adapter to merge into the weights, of a model that has adapters (Jina v3)')
    .option('--query-prompt <text>', 'put before texts that ask for the prompt "query", instead of what the files say')
    .option('--passage-prompt <text>', 'the same for the prompt "passage"')
    .option('-q, --quiet', 'no notes; errors only')
    .option('--json', 'report as JSON');
  bring.action(async (path: string, flags: ImportFlags) =>
    (await import('./commands/model.ts')).bring(terminal, path, flags),
  );
  const show = model
    .command('show')
    .description('Shows what is known of a cached model: vectors, tokenizer, prompts, queue, licence, files.')
    .argument('[name]', 'name of the model, or ORG/NAME of the hub', 'minilm')
    .option('--json', 'report as JSON');
  show.action(async (name: string, flags: ModelFlags) =>
    (await import('./commands/model.ts')).show(terminal, name, flags),
  );
  const remove = model
    .command('rm')
    .description(
      'Takes a model out of the cache, with the graphs made of it, and says what was freed. Refused while a worker ' +
        'serves it.',
    )
    .argument('<name>', 'name of the model, or ORG/NAME of the hub')
    .option('--force', 'also while it is served')
    .option('-q, --quiet', 'no notes; errors only')
    .option('--json', 'report as JSON');
  remove.action(async (name: string, flags: ModelFlags) =>
    (await import('./commands/model.ts')).remove(terminal, name, flags),
  );
  for (const command of [pull, list, show, verify, bring]) addSettings(command, STORE);
  addSettings(remove, [...STORE, 'redisUrl', 'prefix']);
}

function addUp(program: Command, terminal: Terminal): void {
  const command = program
    .command('up')
    .summary('everything on this machine: queue server, HTTP, workers, dashboard')
    .description(
      'Starts a private queue server (or uses the one of REDIS_URL), the HTTP producer with OpenAI’s API, a ' +
        'worker for each GPU that can be used and one on the CPU, a worker for similarity, and the dashboard; ' +
        'starts again what dies. With --device only that device and the CPU work. Ctrl-C answers what is open, ' +
        'drains the workers and leaves nothing running.',
    )
    .option('--json', 'print the addresses as one line of JSON');
  addSettings(command, ['device', 'model', 'maxTokens', 'traces', ...HTTP, ...DASHBOARD, ...CONNECTION, ...WORKER]);
  command.action(async (flags: UpFlags) => (await import('./commands/up.ts')).up(terminal, flags));
}

function addServe(program: Command, terminal: Terminal): void {
  const command = program
    .command('serve')
    .summary('run the HTTP producer in the foreground')
    .description(
      'Answers POST /v1/embeddings in the shape of OpenAI’s API, through the queue; workers run elsewhere. ' +
        'Prints its address when it listens. SIGTERM or Ctrl-C answers what is open first.',
    );
  addSettings(command, ['model', 'maxTokens', 'traces', ...HTTP, ...CONNECTION]);
  command.action(async (flags: ServeFlags) => (await import('./commands/serve.ts')).serve(terminal, flags));
}

function addKey(program: Command, terminal: Terminal): void {
  const key = program
    .command('key')
    .description(
      'API keys of the HTTP interface: make, list, revoke. They are kept as digests on the queue server that runs, for ' +
        'all HTTP processes, or in a file (--http-key-file). From the first one on HTTP answers nobody without a key. ' +
        'With --dashboard: keys of the dashboard, in the file of --dashboard-key-file.',
    )
    .helpCommand(false);
  const create = key
    .command('create')
    .description('Makes a key and prints it, once: only its digest is kept.')
    .argument('<name>', 'what or who uses it, for people')
    .option('--tenant <name>', 'whose jobs, files and batches are its own; tenants share the workers half and half')
    .option(
      '--scopes <list>',
      'what it is for, separated by commas: embed, rerank, similarity, batches, metrics, or admin for everything ' +
        '(default: the first four); with --dashboard: view or operate (default: view)',
    )
    .option('--requests-per-minute <n>', 'most requests a minute (default: no limit)', positiveInteger)
    .option('--texts-per-minute <n>', 'most texts a minute (default: no limit)', positiveInteger)
    .option('--tokens-per-minute <n>', 'most tokens a minute (default: no limit)', positiveInteger)
    .option('--expires <time>', 'how long it is good, e.g. 90d (default: until it is revoked)', span);
  create.action(async (name: string, flags: CreateFlags) =>
    (await import('./commands/key.ts')).create(terminal, name, flags),
  );
  const list = key.command('list').description('Shows what is kept of each key; never the key itself.');
  list.action(async (flags: KeyFlags) => (await import('./commands/key.ts')).list(terminal, flags));
  const revoke = key
    .command('revoke')
    .description('Makes keys useless, within seconds. Their records stay.')
    .argument('<id...>', 'the 10 characters after "shoal_", as shoal key list shows them');
  revoke.action(async (ids: string[], flags: KeyFlags) =>
    (await import('./commands/key.ts')).revoke(terminal, ids, flags),
  );
  for (const command of [create, list, revoke]) {
    command.option('--json', 'report as JSON').option('-q, --quiet', 'no notes; errors only');
    command.option('--dashboard', 'keys of the dashboard, instead of HTTP');
    addSettings(command, ['httpKeyFile', 'dashboardKeyFile', 'redisUrl', 'prefix', 'cacheDir']);
  }
}

function addDashboard(program: Command, terminal: Terminal): void {
  const command = program
    .command('dashboard')
    .summary('run the dashboard in the foreground')
    .description(
      'Shows all queues and their jobs in a browser (Bull Board), for looking only. Prints its address when it ' +
        'listens.',
    );
  addSettings(command, [...DASHBOARD, 'httpHosts', ...CONNECTION]);
  command.action(async (flags: ServeFlags) => (await import('./commands/serve.ts')).dashboard(terminal, flags));
}

function addExporter(program: Command, terminal: Terminal, version: string): void {
  const command = program
    .command('exporter')
    .summary('tell Prometheus of every queue, in the foreground')
    .description(
      'Serves /metrics of the whole fleet: jobs, waits, workers and backlog of every queue of the prefix, whoever feeds ' +
        'it (docs/metrics.md). One is enough for a fleet; the dashboard tells the same. Goes on while the queue server ' +
        'is away, and tells that. Prints its address when it listens.',
    )
    .option('--port <port>', 'as --exporter-port')
    .option('--host <host>', 'as --exporter-host');
  addSettings(command, ['exporterHost', 'exporterPort', 'httpHosts', ...CONNECTION]);
  command.action(async (flags: ExporterFlags) =>
    (await import('./commands/exporter.ts')).exporter(terminal, flags, version),
  );
}

function addWorker(program: Command, terminal: Terminal): void {
  const command = program
    .command('worker')
    .summary('run one worker in the foreground')
    .description(
      'Runs one worker on one device until it is told to stop: for the jobs of one model or, with --kind ' +
        'similarity, for similarity jobs on the collections of this machine. SIGTERM or Ctrl-C drains: what is ' +
        'in flight is finished, the rest goes back to the queue.',
    );
  addSettings(command, ['kind', 'device', 'model', 'maxTokens', 'traces', 'httpHosts', ...CONNECTION, ...WORKER]);
  command.action(async (flags: WorkerFlags) => (await import('./commands/worker.ts')).worker(terminal, flags));
}

function addFleet(program: Command, terminal: Terminal): void {
  const fleet = program
    .command('fleet')
    .description(
      'The workers of a model: who is alive, how fast, what waits; pause their claiming and let it go on. ' +
        'Works through the queue server that runs; none is started.',
    )
    .helpCommand(false);
  const which = 'a worker’s id, the beginning of one, or all';
  const status = fleet
    .command('status')
    .description(
      'Shows live workers (device, rates by length of rows, claims, token budget, memory), both lanes with ' +
        'what waits, from which backlog on a CPU worker helps out, and what stands in the way.',
    )
    .option('--all', 'every queue of the prefix');
  status.action(async (flags: StatusFlags) => (await import('./commands/fleet.ts')).status(terminal, flags));
  const drain = fleet
    .command('drain')
    .description(
      'Tells workers to claim nothing more; they finish what they have and stay up. With all, workers that ' +
        'start later are drained too.',
    )
    .argument('<worker>', which);
  drain.action(async (id: string, flags: FleetFlags) =>
    (await import('./commands/fleet.ts')).drain(terminal, id, flags),
  );
  const resume = fleet.command('resume').description('Lets drained workers claim again.').argument('<worker>', which);
  resume.action(async (id: string, flags: FleetFlags) =>
    (await import('./commands/fleet.ts')).resume(terminal, id, flags),
  );
  const restart = fleet
    .command('restart')
    .description(
      'Replaces workers: each is drained, told to leave (exit code 75) and started again by whoever keeps it; the next ' +
        'one’s turn is when a worker of the same name can serve. Stops at the first that does not come back. Ctrl-C ' +
        'leaves the fleet serving.',
    )
    .argument('[worker]', which, 'all')
    .option('--rolling [n]', 'so many at a time, one if no number is given', positiveInteger)
    .option('--within <time>', 'how long a worker may be away, e.g. 5m (default: 3m)', span)
    .option(
      '--drain-within <time>',
      'how long it may finish what it has claimed; the rest goes back (default: 1m)',
      span,
    )
    .option('--dry-run', 'only say which workers would be restarted');
  restart.action(async (id: string, flags: RestartFlags) =>
    (await import('./commands/fleet.ts')).restart(terminal, id, flags),
  );
  for (const command of [status, drain, resume, restart]) {
    command
      .option('--queue <name>', 'a queue by its name instead of a model’s, e.g. similarity', queueName)
      .option('--json', 'report as JSON')
      .option('-q, --quiet', 'no notes; errors only');
    addSettings(command, ['model', 'redisUrl', 'prefix', 'cacheDir']);
  }
}

function addGpu(program: Command, terminal: Terminal): void {
  const gpu = program.command('gpu').description('What NVIDIA GPUs need beside the driver.').helpCommand(false);
  const install = gpu
    .command('install')
    .description(
      'Fetches ONNX Runtime’s CUDA provider (a pinned wheel of the same version, 250 MB, once), puts it beside ' +
        'the runtime and says what its loader still misses. Does nothing when it is there.',
    )
    .option('--force', 'fetch again and replace what is there')
    .option('--json', 'report as JSON')
    .option('-q, --quiet', 'no progress and no notes; errors only');
  addSettings(install, ['cacheDir']);
  install.action(async (flags: GpuFlags) => (await import('./commands/gpu.ts')).install(terminal, flags));
}

function addDoctor(program: Command, terminal: Terminal, version: string): void {
  const command = program
    .command('doctor')
    .summary('what works here and what does not, each failure with its cure')
    .description(
      'Looks at versions, cache folder, GPUs (driver, memory, ECC, MIG, permission), the CUDA provider, the ' +
        'model on its device, this machine, the queue server and all its queues with their workers. Changes nothing. ' +
        'Exit code 1 when something is broken that the settings in force need.',
    )
    .option('--bundle <file>', 'write what was found as a tar (.tar, .tgz) for who helps; no texts, no secrets')
    .option('--log <file>', 'a log whose last lines go into the bundle')
    .option('--json', 'report as JSON');
  addSettings(command, ['device', 'precision', 'model', 'redisUrl', ...STORE]);
  command.action(async (flags: DoctorFlags) => (await import('./commands/doctor.ts')).doctor(terminal, flags, version));
}

function addTune(program: Command, terminal: Terminal): void {
  const command = program
    .command('tune')
    .summary('measure this device with one model, in under two minutes')
    .description(
      'Measures how much memory runs of a model need on a device and which token budget gives most texts per ' +
        'second, prints both beside the preset, and keeps them: workers use them from their next start. With ' +
        '--kind similarity: from which sizes on the GPU is faster than the CPU at comparing. Nothing else should ' +
        'run on the device meanwhile.',
    )
    .option('--show', 'only show what earlier runs have kept in the cache folder')
    .option('--undo', 'only forget it: workers begin with their presets again')
    .option('--json', 'report as JSON')
    .option('-q, --quiet', 'no progress and no notes; errors only');
  addSettings(command, [
    'kind',
    'device',
    'precision',
    'encoder',
    'deviceSessions',
    'model',
    'maxTokens',
    'threads',
    'maxRows',
    'poolTokens',
    ...STORE,
    'kernels',
    'cudaLibrary',
  ]);
  command.action(async (flags: TuneFlags) => (await import('./commands/tune.ts')).tune(terminal, flags));
}

function addQueue(program: Command, terminal: Terminal): void {
  const queue = program
    .command('queue')
    .description(
      'The queue of a model, both lanes and the quarantine: look at it, pause it, run jobs again, take them ' +
        'away, put it right. Works through the queue server that runs; none is started.',
    )
    .helpCommand(false);
  const counts = queue
    .command('counts')
    .description('Jobs of both lanes by state, workers, quarantine, reserved room.')
    .option('--all', 'every queue of the prefix');
  counts.action(async (flags: CountsFlags) => (await import('./commands/queue.ts')).counts(terminal, flags));
  const pause = queue
    .command('pause')
    .description('Nothing is claimed any more, in both lanes; what is claimed is finished, new jobs are taken.');
  pause.action(async (flags: QueueFlags) => (await import('./commands/queue.ts')).pause(terminal, flags));
  const resume = queue.command('resume').description('Lets a paused queue go on.');
  resume.action(async (flags: QueueFlags) => (await import('./commands/queue.ts')).resume(terminal, flags));
  const jobs = addQueueJobs(queue, terminal);
  const quarantine = addQuarantine(queue, terminal);
  const looks = addLooks(queue, terminal);
  for (const command of [counts, pause, resume, ...jobs, ...looks, ...quarantine]) {
    command
      .option('--queue <name>', 'a queue by its name instead of a model’s, e.g. embed-minilm-sim', queueName)
      .option('--json', 'report as JSON')
      .option('-q, --quiet', 'no progress and no notes; errors only');
    addSettings(command, ['model', 'redisUrl', 'prefix', 'cacheDir']);
  }
}

function addQueueJobs(queue: Command, terminal: Terminal): Command[] {
  const retry = queue
    .command('retry')
    .description(
      'Failed jobs wait again: those named, all, or all with one error code. A job whose input went with its ' +
        'failure has to be added anew.',
    )
    .argument('[job...]', 'ids of jobs')
    .option('--all', 'every job that failed')
    .option('--code <code>', 'every job that failed with this code, e.g. OUT_OF_VRAM');
  retry.action(async (jobIds: string[], flags: RetryFlags) =>
    (await import('./commands/queue.ts')).retry(terminal, jobIds, flags),
  );
  const cancel = queue
    .command('cancel')
    .description(
      'Takes jobs back: those that wait fail with CANCELLED at once, those that run as soon as their worker has heard.',
    )
    .argument('<job...>', 'ids of jobs');
  cancel.action(async (jobIds: string[], flags: QueueFlags) =>
    (await import('./commands/queue.ts')).cancel(terminal, jobIds, flags),
  );
  const clean = queue
    .command('clean')
    .description('Takes the records of finished jobs away. Results stay until their time to live is over.')
    .addOption(new Option('--state <state>', 'which jobs').choices(['completed', 'failed']).default('completed'))
    .option('--older-than <time>', 'only those that ended so long ago, e.g. 30s, 10m, 6h, 7d', span, 0);
  clean.action(async (flags: CleanFlags) => (await import('./commands/queue.ts')).clean(terminal, flags));
  const repair = queue
    .command('repair')
    .description(
      'Looks at every job of both lanes and puts right what is damaged: records that cannot be read, ids ' +
        'without a record, jobs that are in no list or wait for a child that is gone. Workers do the same every ' +
        'ten minutes, less thoroughly.',
    );
  repair.action(async (flags: QueueFlags) => (await import('./commands/queue.ts')).repair(terminal, flags));
  return [retry, cancel, clean, repair];
}

function addLooks(queue: Command, terminal: Terminal): Command[] {
  const why = queue
    .command('why')
    .description(
      'Says in one sentence why a job is where it is, then what that was judged from: over all queues of the prefix, both ' +
        'lanes, quarantine, inputs and results. Exit code 1 where nobody knows the id.',
    )
    .argument('<job>', 'id of a job');
  why.action(async (jobId: string, flags: QueueFlags) =>
    (await import('./commands/queue-look.ts')).why(terminal, jobId, flags),
  );
  const tenants = queue
    .command('tenants')
    .description('Whose jobs wait, those with most rows first: rows, tokens, room that is reserved, the longest waits.')
    .option('--top <n>', 'so many tenants (default: 20)', positiveInteger);
  tenants.action(async (flags: TenantFlags) => (await import('./commands/queue-look.ts')).tenants(terminal, flags));
  return [why, tenants];
}

function addQuarantine(queue: Command, terminal: Terminal): Command[] {
  const quarantine = queue
    .command('quarantine')
    .description('Jobs that killed their executor, with their inputs: look, give back, drop.')
    .helpCommand(false);
  const list = quarantine
    .command('list')
    .description('Shows up to 1,000 quarantined jobs, the newest first, and why they are here.');
  list.action(async (flags: QueueFlags) => (await import('./commands/queue.ts')).quarantineList(terminal, flags));
  const giveBack = quarantine
    .command('return')
    .description('Jobs wait again in the main lane, under their ids.')
    .argument('<job...>', 'ids of jobs');
  giveBack.action(async (jobIds: string[], flags: QueueFlags) =>
    (await import('./commands/queue.ts')).quarantineReturn(terminal, jobIds, flags),
  );
  const drop = quarantine
    .command('drop')
    .description('Takes jobs and their inputs away for good.')
    .argument('<job...>', 'ids of jobs');
  drop.action(async (jobIds: string[], flags: QueueFlags) =>
    (await import('./commands/queue.ts')).quarantineDrop(terminal, jobIds, flags),
  );
  return [list, giveBack, drop];
}

function addAudit(program: Command, terminal: Terminal): void {
  const command = program
    .command('audit')
    .summary('who changed what by hand')
    .description(
      'Shows who did what by hand, the newest last: commands that change a queue, its workers or the keys of HTTP, and ' +
        'actions of the dashboard. About 10,000 entries are kept on the queue server.',
    )
    .option('--since <time>', 'only the last so long, e.g. 24h', span)
    .option('--most <n>', 'the newest so many (default: 100)', positiveInteger)
    .option('--json', 'one JSON object a line')
    .option('-q, --quiet', 'no notes; errors only');
  addSettings(command, ['redisUrl', 'prefix', 'cacheDir']);
  command.action(async (flags: AuditFlags) => (await import('./commands/audit.ts')).audit(terminal, flags));
}

function addCompletion(program: Command, terminal: Terminal): void {
  program
    .command('completion')
    .summary('print a completion script for your shell')
    .description(
      'Prints a completion script. bash: source <(shoal completion bash); zsh: the same; fish: shoal ' +
        'completion fish | source',
    )
    .addArgument(program.createArgument('<shell>', 'the shell').choices(['bash', 'zsh', 'fish']))
    .action(async (shell: Shell) =>
      print(terminal, (await import('./completion.ts')).completionScript(program, shell)),
    );
}

/**
 * Settings as flags: what they stand for on the command line, and a short meaning. docs/settings.md has the long one.
 */
export const SETTING_FLAGS = {
  redisUrl: ['url', 'queue server, e.g. redis://localhost:6379 (REDIS_URL)'],
  redisCa: ['file', 'authority that signed the certificate of the queue server'],
  redisCert: ['file', 'certificate of ours, where the queue server asks for one'],
  redisKey: ['file', 'its key'],
  redisServerName: ['name', 'name in the certificate of the queue server'],
  redisPasswordFile: ['file', 'file with the password at the queue server'],
  unsafeServer: ['mode', 'refuse or warn: a queue server that may lose jobs'],
  prefix: ['tag', 'prefix of every key, a hash tag such as {shoal}'],
  model: ['name', 'model to use: a name of shoal model list, or ORG/NAME of the hub (default minilm)'],
  kind: ['kind', 'embed or similarity: the jobs that a worker serves'],
  device: ['device', 'auto, cpu, gpu:<index> or sim:<tokens per ms>'],
  simServes: ['what', 'itself or model: the queue that a simulated device serves'],
  precision: ['precision', 'what a GPU computes in: auto, fp32, fp16 or bf16'],
  encoder: ['which', 'auto, native or ort: what runs models on an NVIDIA GPU'],
  deviceSessions: ['n', 'sessions side by side on the device'],
  workerName: ['name', 'what this worker is called over all its lives'],
  cacheDir: ['folder', 'models, kept vectors and the private queue server'],
  modelsDir: ['folder', 'models, apart from the rest of the cache'],
  modelsReadOnly: ['auto|yes', 'whether the folder of the models is only read'],
  collectionsDir: ['folder', 'collections of vectors'],
  kernels: ['set', 'auto, plain, or an instruction set: what computes similarity'],
  smallOnCpu: ['choice', 'auto or never: what a similarity worker on a GPU compares on its CPU'],
  cudaLibrary: ['file', 'the CUDA kernels for similarity'],
  gpuRetryMs: ['ms', 'after which a similarity worker’s GPU that failed is tried again'],
  threads: ['n', 'threads of a run on the CPU; 0: one per core'],
  tokenizerThreads: ['n', 'threads that tokenize jobs which came as text'],
  maxTokens: ['n', 'longest row in tokens; longer texts are truncated'],
  maxPaddedTokens: ['n', 'most padded tokens of a micro-batch; unset: as measured'],
  maxRows: ['n', 'most rows of a micro-batch'],
  memoryFraction: ['share', 'share of the device’s memory that may be used, 0.05 to 1'],
  maxDeviceBytes: ['bytes', 'most memory of its device that a worker counts on'],
  latencyTargetMs: ['ms', 'longest micro-batch while an interactive row waits'],
  poolTokens: ['n', 'tokens that wait in the pool'],
  windowRows: ['n', 'rows that end the gathering of a short pool'],
  maxWaitMs: ['ms', 'how long a short pool gathers rows'],
  minRows: ['n', 'fewest rows that a short pool runs with'],
  maxRowAgeMs: ['ms', 'age at which a row goes into the next micro-batch'],
  maxQueuedRows: ['n', 'rows that may wait in the queue'],
  maxQueuedBytes: ['n', 'bytes of inputs and results that may be held'],
  maxTenantShare: ['share', 'most of both that one tenant may have, 0 to 1'],
  maxMemoryShare: ['share', 'of the queue server’s memory, above which claiming stops'],
  maxUnreadShare: ['share', 'of it that unread results may fill'],
  leaseMs: ['ms', 'how long a claim lasts without renewal'],
  stalledCheckMs: ['ms', 'how often stalled jobs are looked for'],
  executorTimeoutMs: ['ms', 'silence after which an executor is killed'],
  hybrid: ['mode', 'auto, never or always: what a CPU worker takes beside GPU workers'],
  hybridAgeMs: ['ms', 'age of the backlog at which a CPU worker helps out'],
  claimTimeoutMs: ['ms', 'after which a worker that claims nothing while jobs wait leaves'],
  janitorEveryMs: ['ms', 'how often what nobody needs is taken away'],
  keepCompletedJobs: ['count', 'completed jobs that stay, with their texts'],
  keepFailedJobs: ['count', 'failed jobs that stay, with their texts'],
  keepFinishedMs: ['ms', 'finished jobs go after so long; 0: only their number counts'],
  drainTimeoutMs: ['ms', 'how long a stopping worker finishes its work'],
  logLevel: ['level', 'silent, error, warn, info or debug'],
  logFormat: ['format', 'log lines: auto (text on a terminal, else json), json or text'],
  traces: ['off|otlp', 'whether spans go to an OpenTelemetry collector'],
  httpHost: ['host', 'address the HTTP producer listens on'],
  httpAccess: ['mode', 'auto, keys or open: whom HTTP asks for an API key'],
  httpKeyFile: ['file', 'API keys in a file, instead of on the queue server'],
  httpCors: ['origins', 'pages that may ask HTTP from a browser, or *'],
  serve: ['model[=alias]', 'a model that HTTP serves besides, and another name for it; as often as you like'],
  httpHosts: ['names', 'names besides localhost that HTTP, dashboard and metrics answer to'],
  httpPort: ['port', 'port of the HTTP producer; 0: any free one'],
  requestTimeoutMs: ['ms', 'how long an HTTP request waits for its vectors'],
  maxOpenRequests: ['n', 'most HTTP requests at a time'],
  maxWaitingRequests: ['n', 'most HTTP requests that wait for their turn'],
  maxHttpBytes: ['bytes', 'bodies and answers that HTTP holds at a time'],
  maxHttpConnections: ['n', 'most connections that HTTP holds'],
  httpTruncate: ['mode', 'error or end: what HTTP does with a text that is too long'],
  readyNeedsWorkers: ['yes|no', 'whether /readyz is 503 without a worker'],
  batchDir: ['folder', 'folder or s3://BUCKET/FOLDER for files, batches and jobs'],
  batchS3Endpoint: ['url', 'server of s3://… where it is not AWS'],
  batchMaxFileBytes: ['bytes', 'most bytes of a file of a batch'],
  batchMaxLines: ['n', 'most lines of a batch'],
  batchJobsInFlight: ['n', 'jobs that batches have on the queue at a time'],
  batchRetentionDays: ['days', 'how long files, batches and jobs are kept; 0: for good'],
  maxOpenBatches: ['n', 'most batches of a tenant that have not ended'],
  maxOpenJobs: ['n', 'most jobs of a tenant that have not ended'],
  webhookSecret: ['secret', 'whsec_… that notices are signed with'],
  webhookPrivate: ['yes|no', 'whether webhooks may lead to this machine and its network'],
  httpTokenRows: ['which', 'whole or bare: token ids over HTTP with their end tokens, or without'],
  metricsHost: ['host', 'address a worker’s metrics are served on'],
  metricsPort: ['port', 'first port to try for a worker’s /metrics and /readyz; 0: none'],
  exporterHost: ['host', 'address the exporter listens on'],
  exporterPort: ['port', 'port of the exporter; 0: any free one'],
  dashboardHost: ['host', 'address the dashboard listens on'],
  dashboardPort: ['port', 'port of the dashboard; 0: any free one'],
  dashboardKeyFile: ['file', 'keys that the dashboard asks for: viewers look, operators act'],
  dashboardTexts: ['yes|no', 'whether it shows the beginning of a job’s first text'],
  dashboardProxyHeader: ['name', 'header in which a proxy tells the dashboard who comes'],
  dashboardProxies: ['addresses', 'addresses and networks of that proxy'],
  dashboardOperators: ['names', 'who of those may act on the dashboard; *: everybody'],
} as const;

const STORE = ['cacheDir', 'modelsDir', 'modelsReadOnly'] as const;
const CONNECTION = ['redisUrl', 'unsafeServer', 'prefix', ...STORE, 'threads', 'logLevel', 'logFormat'] as const;
const HTTP = [
  'serve',
  'httpAccess',
  'httpKeyFile',
  'httpCors',
  'httpHost',
  'httpHosts',
  'httpPort',
  'requestTimeoutMs',
  'maxOpenRequests',
  'maxWaitingRequests',
  'maxHttpBytes',
  'maxHttpConnections',
  'httpTokenRows',
  'httpTruncate',
  'batchDir',
  'batchS3Endpoint',
  'batchMaxFileBytes',
  'batchMaxLines',
  'batchJobsInFlight',
  'batchRetentionDays',
  'maxOpenBatches',
  'maxOpenJobs',
  'webhookSecret',
  'webhookPrivate',
  'readyNeedsWorkers',
  'maxQueuedRows',
  'maxQueuedBytes',
  'maxTenantShare',
] as const;
const DASHBOARD = [
  'dashboardHost',
  'dashboardPort',
  'dashboardKeyFile',
  'dashboardTexts',
  'dashboardProxyHeader',
  'dashboardProxies',
  'dashboardOperators',
] as const;
const WORKER = [
  'simServes',
  'collectionsDir',
  'kernels',
  'smallOnCpu',
  'cudaLibrary',
  'gpuRetryMs',
  'metricsHost',
  'metricsPort',
  'precision',
  'encoder',
  'deviceSessions',
  'workerName',
  'tokenizerThreads',
  'maxPaddedTokens',
  'memoryFraction',
  'maxDeviceBytes',
  'latencyTargetMs',
  'maxRows',
  'poolTokens',
  'windowRows',
  'maxWaitMs',
  'minRows',
  'maxRowAgeMs',
  'maxMemoryShare',
  'maxUnreadShare',
  'hybrid',
  'hybridAgeMs',
  'leaseMs',
  'stalledCheckMs',
  'executorTimeoutMs',
  'claimTimeoutMs',
  'janitorEveryMs',
  'keepCompletedJobs',
  'keepFailedJobs',
  'keepFinishedMs',
  'drainTimeoutMs',
] as const;

/** Wherever a queue server may be named, so may what TLS towards it needs, and a file with the password. */
const WITH_SERVER = ['redisCa', 'redisCert', 'redisKey', 'redisServerName', 'redisPasswordFile'] as const;

function addSettings(command: Command, keys: readonly (keyof typeof SETTING_FLAGS)[]): void {
  for (const key of keys.flatMap((asked) => (asked === 'redisUrl' ? [asked, ...WITH_SERVER] : [asked]))) {
    const [value, meaning] = SETTING_FLAGS[key];
    const flag = `--${key.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)} <${value}>`;
    if (key === 'serve')
      command.option(flag, meaning, (one: string, before?: string) => [before, one].filter(Boolean).join(','));
    else command.option(flag, meaning);
  }
}

function delimiter(text: string): string {
  const character = text === 'tab' || text === '\\t' ? '\t' : text;
  if (!/^[\t\x20-\x7e]$/.test(character) || character === '"')
    throw new InvalidArgumentError('It must be one ASCII character other than a quote, or "tab".');
  return character;
}

const SPAN_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** "10m" in milliseconds. */
function span(text: string): number {
  const [, count, unit] = /^(\d{1,9})(ms|s|m|h|d)$/.exec(text) ?? [];
  if (count === undefined) throw new InvalidArgumentError('It must be a number with a unit: 30s, 10m, 6h or 7d.');
  return Number(count) * SPAN_MS[unit as keyof typeof SPAN_MS];
}

function positiveInteger(text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new InvalidArgumentError('It must be a whole number from 1 to 999999999.');
  return Number(text);
}

function numberFrom0(most: number): (text: string) => number {
  return (text) => {
    const number = text.trim() === '' ? NaN : Number(text);
    if (!(number >= 0 && number <= most && number < Infinity))
      throw new InvalidArgumentError(`It must be a number from 0${most === Infinity ? '' : ` to ${most}`}.`);
    return number;
  };
}

function queueName(text: string): string {
  if (text.trim() === '' || text.includes(':'))
    throw new InvalidArgumentError(
      'It must be the name of a queue, which is not empty and has no ":", for example embed-minilm or similarity.',
    );
  return text;
}

function collectionName(text: string): string {
  if (!isCollectionName(text)) throw new InvalidArgumentError(`It must be ${COLLECTION_NAME_RULE}.`);
  return text;
}

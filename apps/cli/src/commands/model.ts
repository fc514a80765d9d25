// `shoal model`: the store's verbs, with a progress bar and a report. What a model is and how it is checked is the
// store's business.

import { ShoalError, modelSlug, queueOf } from '@shoal/contract';
import { storeFolders, type Settings, type StoreFolders } from '@shoal/core';
import {
  DERIVED_FORMS,
  headInWords,
  importDerived,
  importModel,
  isHubName,
  listModels,
  removeModel,
  showModel,
  verifyModel,
  type DerivedFacts,
  type DerivedReport,
  type HubOrigin,
  type ModelDetails,
  type ModelListing,
  type StoredModel,
  type StoredReranker,
  type WeightDtype,
} from '@shoal/models';
import { attachRunningServer } from '@shoal/private-server';
import { fetchModel } from '../processes/fetch-model.ts';
import { settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';

export interface ModelFlags {
  readonly force?: boolean;
  readonly json?: boolean;
  readonly quiet?: boolean;
}

export interface PullFlags extends ModelFlags {
  readonly dtype?: WeightDtype;
  readonly update?: boolean;
  readonly name?: string;
  readonly task?: string;
}

export async function pull(terminal: Terminal, name: string, flags: PullFlags): Promise<void> {
  if (!isHubName(name) && flags.name !== undefined)
    throw new ShoalError('USAGE', `--name is for models of the hub, and ${name} is a name of the store`, { name });
  if (!isHubName(name) && flags.task !== undefined)
    throw new ShoalError('USAGE', `--task is for models of the hub, and ${name} is a name of the store`, { name });
  const settings = await settingsOf(terminal, flags);
  const model = await fetchModel(terminal, name, {
    settings,
    isQuiet: flags.quiet === true,
    force: flags.force === true,
    update: flags.update === true,
    as: flags.name,
    task: flags.task,
  });
  const derived = await derivedAsked(terminal, model, settings, flags);
  if (flags.json === true) {
    const { name: stored, revision, folder } = model;
    return print(terminal, `${JSON.stringify({ name: stored, revision, folder, ...(derived && jsonOf(derived)) })}\n`);
  }
  if (flags.quiet !== true)
    say(
      terminal,
      `${model.name}@${model.revision} is in ${model.folder}` +
        (isHubName(name)
          ? `: ${wordsOf(model)}, licence ${model.licence}; use it with --model ${nameFor(model, name)}`
          : ''),
    );
  sayDerived(terminal, derived, flags);
}

/** The form that `--dtype` asks for. Refusals are MODEL_UNAVAILABLE, with the model itself in the store. */
async function derivedAsked(
  terminal: Terminal,
  model: StoredModel,
  settings: Settings,
  { dtype, force, quiet }: Pick<PullFlags, 'dtype' | 'force' | 'quiet'>,
): Promise<DerivedReport | undefined> {
  if (dtype === undefined) return undefined;
  const folders = foldersOf(terminal, settings);
  const { proveModel, runGraph } = await import('@shoal/worker'); // it carries the runtime
  return importDerived(model, dtype, {
    ...folders,
    runGraph,
    prove: (brought) => proveModel(brought, folders),
    force: force === true,
    onStart: ({ name, texts }) => {
      if (quiet !== true) say(terminal, `making ${name}: ${texts} texts run through ${model.name} on this CPU, once`);
    },
  });
}

/** Under the name of the form. */
function jsonOf({ model: { name, revision, folder }, facts }: DerivedReport): object {
  return { [facts.dtype]: { name, revision, folder, ...facts } };
}

function sayDerived(terminal: Terminal, report: DerivedReport | undefined, { quiet }: ModelFlags): void {
  if (report === undefined || quiet === true) return;
  const { model, facts } = report;
  say(
    terminal,
    `${model.name}@${model.revision} is in ${model.folder}: ${nearness(facts)}; use it with --model ${model.name}`,
  );
}

function nearness({ dtype, base, baseRevision, passages, meanCosine, leastCosine, recallAt10 }: DerivedFacts): string {
  return (
    `${base}@${baseRevision} ${DERIVED_FORMS[dtype].inWords}, mean cosine to it ${meanCosine}, least ${leastCosine}, ` +
    `recall@10 ${recallAt10.toFixed(3)} over ${passages} passages`
  );
}

export interface ImportFlags extends ModelFlags {
  readonly dtype?: WeightDtype;
  readonly name?: string;
  readonly pooling?: 'mean' | 'cls' | 'lasttoken';
  readonly normalize?: boolean;
  readonly task?: string;
  readonly queryPrompt?: string;
  readonly passagePrompt?: string;
}

export async function bring(terminal: Terminal, path: string, flags: ImportFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  const folders = foldersOf(terminal, settings);
  const { model, notes } = await importModel(path, {
    ...folders,
    // loaded for this command alone: it carries the runtime
    prove: async (brought) => (await import('@shoal/worker')).proveModel(brought, folders),
    force: flags.force === true,
    ...(flags.name !== undefined && { name: flags.name }),
    pooling: flags.pooling,
    normalize: flags.normalize,
    task: flags.task,
    prompts: {
      ...(flags.queryPrompt !== undefined && { query: flags.queryPrompt }),
      ...(flags.passagePrompt !== undefined && { passage: flags.passagePrompt }),
    },
  });
  const derived = await derivedAsked(terminal, model, settings, flags);
  const { name, revision, folder, dims, isNormalized, prompts, defaultPrompt, precision } = model;
  const { kind, defaultMaxTokens: maxTokens } = model;
  if (flags.json === true) {
    const makes =
      model.kind === 'reranker'
        ? { scores: scoresOf(model) }
        : { dims, pooling: model.head.poolings.join('+'), isNormalized, prompts, defaultPrompt };
    const made = derived && jsonOf(derived);
    return print(
      terminal,
      `${JSON.stringify({ name, kind, revision, folder, ...makes, maxTokens, precision, notes, ...made })}\n`,
    );
  }
  if (flags.quiet === true) return;
  for (const note of notes) say(terminal, note);
  say(terminal, `${name}@${revision} is in ${folder}: ${wordsOf(model)}; use it with --model ${name}`);
  sayDerived(terminal, derived, flags);
}

export async function list(terminal: Terminal, flags: ModelFlags): Promise<void> {
  const models = await listModels(foldersOf(terminal, await settingsOf(terminal, flags)));
  if (flags.json === true) return print(terminal, `${JSON.stringify(models, null, 1)}\n`);
  const lines = models
    .filter((model) => !model.isForTests)
    .map(
      ({ name, kind, revision, bytes, isStored, licence, description, filesOf, notes = [], hub, problem }) =>
        (problem === undefined
          ? `${name}  ${kind === 'reranker' ? 'reranker  ' : ''}${revision}  ${place(isStored, filesOf)}  ${(bytes / 1e6).toFixed(0)} MB  ${licence}\n`
          : `${name}  cannot be opened: ${problem}\n`) +
        [hub === undefined ? description : `from ${hub}`, ...notes]
          .map((line) => (line === '' ? '' : `   ${line}\n`))
          .join(''),
    );
  await print(terminal, lines.join(''));
}

/** Whose files they are is said where they have another name. */
function place(isStored: boolean, filesOf: string | undefined): string {
  if (filesOf !== undefined)
    return isStored ? `made from ${filesOf}'s files, in the cache` : `made from ${filesOf}'s files, not fetched yet`;
  return isStored ? 'in the cache' : 'not fetched yet';
}

export async function verify(terminal: Terminal, name: string, flags: ModelFlags): Promise<void> {
  const { model, files, graphs } = await verifyModel(name, foldersOf(terminal, await settingsOf(terminal, flags)));
  const { revision, folder } = model;
  if (flags.json === true)
    return print(terminal, `${JSON.stringify({ name: model.name, revision, folder, files, graphs }, null, 1)}\n`);
  const lines = files.map(({ path, bytes, sha256 }) => `${sha256}  ${path}  ${bytes} bytes\n`);
  const built = graphs.map(({ path, bytes, problem }) => `${problem ?? 'as it was built'}  ${path}  ${bytes} bytes\n`);
  const count = `${files.length} files and ${graphs.length} ${graphs.length === 1 ? 'graph' : 'graphs'}`;
  await print(
    terminal,
    `${lines.join('')}${built.join('')}${model.name}@${model.revision} is whole: ${count} as they should be\n`,
  );
}

export async function show(terminal: Terminal, name: string, flags: ModelFlags): Promise<void> {
  const details = await showModel(name, foldersOf(terminal, await settingsOf(terminal, flags)));
  const { model, hub, derived, wordValues: _, ...rest } = details;
  if (flags.json !== true) return print(terminal, textOf(details));
  const { canary, ...facts } = model;
  await print(
    terminal,
    `${JSON.stringify({ ...facts, hasCanary: canary !== undefined, ...rest, ...(derived && { [derived.dtype]: derived }), memoryBytes: memoryBytesOf(details), ...(hub && { hub }) }, null, 1)}\n`,
  );
}

function textOf(details: ModelDetails): string {
  const { model, description, architecture, tokenizer, queue, files, graphs, notes, hub, derived } = details;
  const prompts = Object.entries(model.prompts).filter(([, text]) => text !== '');
  const rows: readonly (readonly [label: string, text: string])[] = [
    ['model', `${model.name}@${model.revision}: ${description}`],
    ['kind', model.kind],
    ['licence', `${model.licence}, by ${details.attribution}`],
    ['from', hub === undefined ? 'no hub' : fromHub(hub, details.knownCommit)],
    ['queue', `${queue}, on the CPU alone ${queue}-cpu`],
    [model.kind === 'reranker' ? 'scores' : 'vectors', wordsOf(model)],
    ['encoder', `${architecture}, rows of at most ${model.positionLimit} tokens`],
    ['tokenizer', `${tokenizer}, ${model.vocabularySize.toLocaleString('en')} tokens, hash ${model.tokenizerHash}`],
    [
      'prompts',
      prompts
        .map(([name, text]) => `${name} ${JSON.stringify(text)}${name === model.defaultPrompt ? ' by default' : ''}`)
        .join(', ') || 'none',
    ],
    ...(derived === undefined ? [] : [[`${derived.dtype} of`, nearness(derived)] as const]),
    ['memory', memoryOf(details)],
    ['folder', model.folder],
    ...files.map(({ path, bytes, sha256 }) => ['file', `${sha256}  ${path}  ${bytes} bytes`] as const),
    ...(hub?.files ?? []).map(
      ({ path, bytes, digest }) =>
        ['on the hub', `${digest.algorithm} ${digest.hex}  ${path}  ${bytes} bytes`] as const,
    ),
    ...graphs.map(({ path, bytes }) => ['graph', `${path}  ${bytes} bytes`] as const),
    ...notes.map((note) => ['note', note] as const),
  ];
  return rows.map(([label, text]) => `${label.padEnd(11)}${text}\n`).join('');
}

function fromHub({ repository, commit, asked }: HubOrigin, known: string | undefined): string {
  const was = asked === commit ? '' : ` (${asked} when it was pulled)`;
  return `${repository}@${commit}${was}${known === commit ? ', the commit that Shoal knows' : ''}`;
}

/** What weights take, by what they are kept in; undefined of a model that came as a graph. */
function memoryBytesOf({ model, values, wordValues = 0 }: ModelDetails): Readonly<Record<string, number>> | undefined {
  if (values === undefined) return undefined;
  if (model.precision === 'int8') return { int8: values };
  const half = 2 * values;
  return model.graphKind === 'fused-fp32-words16'
    ? { f16: 4 * values - 2 * wordValues, half }
    : { fp32: 4 * values, half };
}

function memoryOf(details: ModelDetails): string {
  const bytes = memoryBytesOf(details);
  if (bytes === undefined) return 'as its graph has it';
  const kept = {
    int8: 'in whole numbers of 8 bits (norms and positions in fp32)',
    f16: 'with the word table in fp16',
    fp32: 'in fp32',
    half: 'in fp16 or bf16',
  };
  const sizes = Object.entries(bytes).map(([dtype, size]) => `${megabytes(size)} ${kept[dtype as keyof typeof kept]}`);
  return `${details.values!.toLocaleString('en')} weights: ${sizes.join(', ')}; what runs take comes on top`;
}

function megabytes(bytes: number): string {
  return `${Math.ceil(bytes / 1e6).toLocaleString('en')} MB`;
}

export interface RemoveFlags extends ModelFlags {
  readonly redisUrl?: string;
}

/** Asks nothing; refuses while a worker of a queue server that runs serves it. */
export async function remove(terminal: Terminal, name: string, flags: RemoveFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  const folders = foldersOf(terminal, settings);
  const stored = await modelsOf(name, folders);
  if (flags.force !== true) await refuseServed(terminal, settings, stored);
  const removed = await removeModel(name, folders);
  if (flags.json === true) return print(terminal, `${JSON.stringify(removed)}\n`);
  if (flags.quiet === true) return;
  const { freedBytes, paths, alsoGone } = removed;
  say(
    terminal,
    `${removed.name} is gone, ${(freedBytes / 1e6).toFixed(0)} MB are free: ${paths.join(', ')}` +
      (alsoGone.length === 0 ? '' : `; so is ${alsoGone.join(' and ')}, which was made of its files`),
  );
}

/** The model of this name, and those that are made of its files. */
async function modelsOf(name: string, folders: StoreFolders): Promise<readonly ModelListing[]> {
  const models = await listModels(folders);
  const repository = name.replace(/@.*$/s, '').toLowerCase();
  const found = models.filter((model) =>
    isHubName(name) ? model.hub?.toLowerCase().startsWith(`${repository}@`) === true : model.name === name,
  );
  const made = models.filter(({ filesOf }) => found.some((model) => model.name === filesOf));
  return [...found, ...made];
}

async function refuseServed(terminal: Terminal, settings: Settings, models: readonly ModelListing[]): Promise<void> {
  const { cacheDir } = foldersOf(terminal, settings);
  const server = await attachRunningServer({ cacheDir, redisUrl: settings.redisUrl, signal: terminal.signal });
  if (server === undefined) return; // no worker runs
  const { withConnection } = await import('../processes/queue-connection.ts');
  const { liveWorkers } = await import('@shoal/queue');
  try {
    const { prefix } = settings;
    const onSlow = (line: string): void => say(terminal, line);
    await withConnection({ redisUrl: server.url, prefix, signal: terminal.signal, onSlow }, async (connection) => {
      for (const model of models) {
        const { name } = model;
        const workers = await liveWorkers(connection, queueOf(model), prefix);
        if (workers.length > 0)
          throw new ShoalError(
            'USAGE',
            `${name} is in use: ${workers.length === 1 ? 'a worker serves' : `${workers.length} workers serve`} ` +
              `${queueOf(model)} under ${prefix}. Stop them first, or take the files away with --force`,
            { name, workers },
          );
      }
    });
  } finally {
    await server.release();
  }
}

function wordsOf(model: StoredModel): string {
  const { dims, isNormalized, defaultMaxTokens } = model;
  if (model.kind === 'reranker')
    return `scores of pairs, ${SCORES_IN_WORDS[scoresOf(model)]}, rows of up to ${defaultMaxTokens} tokens`;
  const lengths = isNormalized ? '' : ', each of its own length';
  return `${dims} dimensions (${headInWords(model.head)})${lengths}, rows of up to ${defaultMaxTokens} tokens`;
}

const SCORES_IN_WORDS = { sigmoid: 'between 0 and 1 (sigmoid)', logits: 'of any size (logits)' } as const;

function scoresOf({ head }: StoredReranker): keyof typeof SCORES_IN_WORDS {
  return head.hasSigmoid ? 'sigmoid' : 'logits';
}

/** By its name on the hub, where that leads to it. */
function nameFor({ name }: StoredModel, asked: string): string {
  const repository = asked.replace(/@.*$/s, '');
  return modelSlug(repository) === name ? repository : name;
}

function foldersOf(terminal: Terminal, settings: Settings): StoreFolders {
  return storeFolders(settings, terminal.environment);
}

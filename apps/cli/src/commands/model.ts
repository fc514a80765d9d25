// `shoal model`: the store's verbs, with a progress bar and a report. What a model is and how it is checked is the
// store's business.

import { cacheFolder, type Settings } from '@shoal/core';
import { importModel, listModels, verifyModel } from '@shoal/models';
import { fetchModel } from '../processes/session.ts';
import { settingsOf } from '../settings.ts';
import { print, say, type Terminal } from '../terminal.ts';

export interface ModelFlags {
  readonly force?: boolean;
  readonly json?: boolean;
  readonly quiet?: boolean;
}

export async function pull(terminal: Terminal, name: string, flags: ModelFlags): Promise<void> {
  const settings = await settingsOf(terminal, flags);
  const model = await fetchModel(terminal, name, {
    settings,
    isQuiet: flags.quiet === true,
    force: flags.force === true,
  });
  if (flags.json === true)
    await print(terminal, `${JSON.stringify({ name: model.name, revision: model.revision, folder: model.folder })}\n`);
  else if (flags.quiet !== true) say(terminal, `${model.name}@${model.revision} is in ${model.folder}`);
}

export interface ImportFlags extends ModelFlags {
  readonly name?: string;
  readonly pooling?: 'mean' | 'cls';
  readonly queryPrompt?: string;
  readonly passagePrompt?: string;
}

export async function bring(terminal: Terminal, path: string, flags: ImportFlags): Promise<void> {
  const cacheDir = folderOf(terminal, await settingsOf(terminal, flags));
  const { model, notes } = await importModel(path, {
    cacheDir,
    // loaded for this command alone: it carries the runtime
    prove: async (brought) => (await import('@shoal/worker')).proveModel(brought, { cacheDir }),
    force: flags.force === true,
    ...(flags.name !== undefined && { name: flags.name }),
    pooling: flags.pooling,
    prompts: {
      ...(flags.queryPrompt !== undefined && { query: flags.queryPrompt }),
      ...(flags.passagePrompt !== undefined && { passage: flags.passagePrompt }),
    },
  });
  const { name, revision, folder, dims, pooling, defaultMaxTokens, precision } = model;
  if (flags.json === true)
    return print(
      terminal,
      `${JSON.stringify({ name, revision, folder, dims, pooling, maxTokens: defaultMaxTokens, precision, notes })}\n`,
    );
  if (flags.quiet === true) return;
  for (const note of notes) say(terminal, note);
  say(
    terminal,
    `${name}@${revision} is in ${folder}: ${dims} dimensions, ${pooling} pooling, rows of up to ` +
      `${defaultMaxTokens} tokens; use it with --model ${name}`,
  );
}

export async function list(terminal: Terminal, flags: ModelFlags): Promise<void> {
  const models = await listModels({ cacheDir: folderOf(terminal, await settingsOf(terminal, flags)) });
  if (flags.json === true) return print(terminal, `${JSON.stringify(models, null, 1)}\n`);
  const lines = models
    .filter((model) => !model.isForTests)
    .map(
      ({ name, revision, bytes, isStored, licence, description, filesOf, notes = [], problem }) =>
        (problem === undefined
          ? `${name}  ${revision}  ${place(isStored, filesOf)}  ${(bytes / 1e6).toFixed(0)} MB  ${licence}\n`
          : `${name}  cannot be opened: ${problem}\n`) +
        [description, ...notes].map((line) => (line === '' ? '' : `   ${line}\n`)).join(''),
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
  const { model, files, graphs } = await verifyModel(name, {
    cacheDir: folderOf(terminal, await settingsOf(terminal, flags)),
  });
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

function folderOf(terminal: Terminal, settings: Settings): string {
  return cacheFolder(settings.cacheDir, terminal.environment);
}

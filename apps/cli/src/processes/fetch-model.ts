// The model of a command, from the cache folder or brought there. Loads nothing of a queue: what can be refused by
// looking at the model is refused at once.

import { storeFolders, type Settings } from '@shoal/core';
import { isHubName, openHubModel, openModel, pullModel, type FetchedFacts, type StoredModel } from '@shoal/models';
import { downloadProgress } from '../progress.ts';
import { say, type Terminal } from '../terminal.ts';

export interface FetchOptions {
  readonly settings: Settings;
  readonly isQuiet: boolean;
  readonly force?: boolean;
  /** Of a model of the hub: its newest commit. */
  readonly update?: boolean;
  /** What to call a model of the hub. */
  readonly as?: string | undefined;
  /** Whose adapter to merge, of a model of the hub that has one for each task. */
  readonly task?: string | undefined;
}

/** The model from the cache folder, fetched first when it is not there, or in any case with `force`. */
export async function fetchModel(
  terminal: Terminal,
  name: string,
  { settings, isQuiet, force = false, update = false, as, task }: FetchOptions,
): Promise<StoredModel> {
  const bar = downloadProgress(terminal, `model ${name}`, !isQuiet);
  const tell = (message: string): void => (isQuiet ? undefined : say(terminal, message));
  const folders = storeFolders(settings, terminal.environment);
  let isAnnounced = false;
  const options = {
    ...folders,
    environment: terminal.environment,
    signal: terminal.signal,
    // loaded where a model is brought: it carries the runtime
    prove: async (brought: StoredModel) => (await import('@shoal/worker')).proveModel(brought, folders),
    ...(force ? { force } : {}),
    update,
    name: as,
    task,
    onStart: ({ repository, commit, licence, bytes, bytesLeft }: FetchedFacts) => {
      const [all, left] = [Math.ceil(bytes / 1e6), Math.ceil(bytesLeft / 1e6)];
      tell(
        `fetching ${repository}@${commit.slice(0, 12)} (${all} MB${left < all ? `, ${left} MB left` : ''}; licence ${licence}), once`,
      );
      isAnnounced = true;
    },
    onWait: (why: string, waitMs: number) => tell(`${why}; tried again in ${Math.ceil(waitMs / 1000)} s`),
    onProgress: (done: number, total: number | undefined) => {
      if (!isAnnounced)
        tell(`fetching the model ${name}${total === undefined ? '' : ` (${Math.ceil(total / 1e6)} MB)`}, once`);
      isAnnounced = true;
      bar.update(done, total);
    },
  };
  try {
    if (!isHubName(name)) return await (force || update ? pullModel : openModel)(name, options);
    const { model, notes } = await openHubModel(name, options);
    for (const note of notes) tell(note);
    return model;
  } finally {
    bar.stop();
  }
}

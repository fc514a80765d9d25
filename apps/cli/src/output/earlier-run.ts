// What an interrupted run left beside its output, and how it is taken away when somebody asks for that. Rows that cannot
// be understood are never thrown away here: who wants to begin again says so.

import { rm, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { removeLeftovers } from './partial-file.ts';
import { readRunState, type RunState } from './run-state.ts';
import { existingShards, shardTarget, type FileTarget } from './target.ts';

/** Heads of all forms are smaller; a run that was killed while it began leaves one without a state. */
const MOST_HEAD_BYTES = 4_096;

/** The state of the run that is not finished; FILE_UNREADABLE when rows are there and nothing says what they are. */
export async function leftovers(target: FileTarget): Promise<RunState | undefined> {
  const state = await readRunState(target.state);
  if (state !== undefined) return state;
  const bytes = await stat(target.partial).then(
    ({ size }) => size,
    () => 0,
  );
  if (bytes <= MOST_HEAD_BYTES) return undefined;
  throw new ShoalError(
    'FILE_UNREADABLE',
    `an unfinished run left ${basename(target.partial)} (${(bytes / 1e6).toFixed(1)} MB) beside ${target.name}, and ` +
      'what says which rows it holds is gone or of another version of Shoal: --fresh removes it and begins again',
    { file: target.name },
  );
}

/** Nothing of the unfinished run is left, nor, unless `keepsShards`, of the shards that it had finished. */
export async function removeRun(target: FileTarget, { keepsShards }: { readonly keepsShards: boolean }): Promise<void> {
  const state = await readRunState(target.state);
  if (state?.request.options['--shard-rows'] !== undefined) {
    await rm(shardTarget(target, state.shard).partial, { force: true });
    const finished = keepsShards ? [] : await existingShards(target);
    for (const shard of finished.filter((number) => number <= state.shard))
      await rm(shardTarget(target, shard).path, { force: true });
  }
  await removeLeftovers(target);
}

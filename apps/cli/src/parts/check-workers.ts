// Before parts are asked for: whether somebody takes them who has the folders that they are about. A worker reads and
// writes in its partFolders alone, so a part in other places would fail wherever it is claimed.

import { realpath } from 'node:fs/promises';
import { posix } from 'node:path';
import { ShoalError, partsQueue, placesOf } from '@shoal/contract';
import { claimingOf, lackingPlaces, type JobProducer } from '@shoal/queue';
import type { Plan } from './plan-parts.ts';

const SHOWN_PLACES = 3;

/**
 * Throws NOT_SERVED where no worker takes parts of this model in these folders. Says which workers that take parts do not
 * have them, where others do.
 */
export async function checkWorkers(
  producer: Pick<JobProducer, 'workers'>,
  model: string,
  { parts }: Pick<Plan, 'parts'>,
  onNotice: (message: string) => void,
): Promise<void> {
  const workers = await producer.workers();
  if (workers === undefined) return; // the server is away, and is waited for
  const claiming = claimingOf(workers);
  const folders = foldersOf(parts);
  if (claiming.length === 0)
    throw new ShoalError(
      'NOT_SERVED',
      `no worker of ${model} takes parts of files (${partsQueue(model)}` +
        `${workers.length > 0 ? `: ${workers.length} that do are drained` : ''}). Start its workers with partFolders ` +
        `(SHOAL_PART_FOLDERS), a list of folders that hold ${shown(folders)}, as they see them; ${OTHERWISE}`,
    );
  const lacking = lackingPlaces(workers, await Promise.all(folders.map(namesOf)));
  if (lacking.length === 0) return;
  const lacks = shown([...new Set(lacking.flatMap((one) => one.lacks))]);
  const has = shown(
    lacking.map((one) => `${one.workerId} has ${shown(one.folders)}`),
    '; ',
  );
  if (lacking.length < claiming.length)
    return onNotice(
      `warning: ${lacking.length} of ${claiming.length} workers that take parts of ${model} cannot take these: ${lacks} is ` +
        `not in their partFolders (${has}). A part that one of them claims fails; start them with these folders too`,
    );
  throw new ShoalError(
    'NOT_SERVED',
    `no worker of ${model} takes parts in ${lacks}: ${has}. Start its workers with these folders in partFolders ` +
      `(SHOAL_PART_FOLDERS), as they see them, or bring files and output below a folder that they have; ${OTHERWISE}`,
  );
}

const OTHERWISE = 'or write one file with -o FILE, for which any worker will do';

/** Of all files, and of the output. */
function foldersOf(parts: Plan['parts']): readonly string[] {
  const places = parts.map(placesOf);
  return [...new Set(places.flatMap(({ source, output }) => [posix.dirname(source), output]))];
}

/** A folder as it was asked for, and as links of this machine lead. */
async function namesOf(folder: string): Promise<readonly string[]> {
  return folder.startsWith('/') ? [folder, await realpath(folder).catch(() => folder)] : [folder];
}

function shown(places: readonly string[], between = ', '): string {
  const more = places.length - SHOWN_PLACES;
  return places.slice(0, SHOWN_PLACES).join(between) + (more > 0 ? ` and ${more} more` : '');
}

// A stored model by its name on the hub. It is asked for by ORG/NAME and lies under the name of its queue, or under one
// that a person chose; its import.json says which repository it is of. Its int8 and f16 forms have other vectors and are
// only had by their own names. The hub is not asked.

import { ShoalError, isShoalError } from '@shoal/contract';
import { findImported, importedNames, type ImportedModel } from '../store/imported-models.ts';
import type { HubOrigin } from './hub-origin.ts';
import { storeNameOf, type HubName } from './hub-name.ts';

export type PulledModel = ImportedModel & { readonly hub: HubOrigin };

/**
 * The model of this repository in a folder of models; undefined without one. MODEL_UNAVAILABLE where it is there in
 * another revision than the one that is asked for, USAGE where it is there twice and the name does not say which.
 */
export async function findHubModel(asked: HubName, models: string): Promise<PulledModel | undefined> {
  const usual = await pulledAs(storeNameOf(asked), asked, models);
  if (usual !== undefined && isRevision(usual, asked.revision)) return usual;
  const found: PulledModel[] = usual === undefined ? [] : [usual];
  for (const name of await importedNames(models)) {
    const model = name === usual?.name ? undefined : await pulledAs(name, asked, models);
    if (model !== undefined) found.push(model);
  }
  const fitting = found.filter((model) => isRevision(model, asked.revision));
  if (fitting.length > 1)
    throw new ShoalError(
      'USAGE',
      `${asked.repository} is in the store as ${fitting.map(({ name }) => name).join(' and ')}: ask for one by this name`,
      { repository: asked.repository },
    );
  if (fitting.length === 0 && found.length > 0) throw otherRevision(asked, found[0]!);
  return fitting[0];
}

/** The model of this repository under this name; undefined where there is none, or in another revision. */
export async function findPulledAs(name: string, asked: HubName, models: string): Promise<PulledModel | undefined> {
  const model = await pulledAs(name, asked, models);
  return model !== undefined && isRevision(model, asked.revision) ? model : undefined;
}

async function pulledAs(name: string, { repository }: HubName, models: string): Promise<PulledModel | undefined> {
  const model = await findImported(name, models).catch((error: unknown) => {
    if (isShoalError(error, 'MODEL_CORRUPT')) return undefined; // of another version of Shoal: brought anew
    throw error;
  });
  const hub = model?.hub;
  const isIt =
    hub !== undefined && model?.derived === undefined && hub.repository.toLowerCase() === repository.toLowerCase();
  return isIt ? { ...model!, hub } : undefined;
}

/** The branch or tag that was asked for then, or the commit, of which the beginning is enough. */
function isRevision({ hub }: PulledModel, revision: string | undefined): boolean {
  if (revision === undefined || revision === hub.asked) return true;
  return /^[0-9a-f]{7,40}$/.test(revision) && hub.commit.startsWith(revision);
}

function otherRevision({ repository, revision }: HubName, { name, hub }: PulledModel): ShoalError {
  const was = hub.asked === hub.commit ? '' : ` (${hub.asked} when it was pulled)`;
  return new ShoalError(
    'MODEL_UNAVAILABLE',
    `${repository} is in the store with commit ${hub.commit}${was}, and ${revision} was asked for: shoal model pull ` +
      `${repository}@${revision} --update replaces it, and --name NAME keeps both`,
    { repository, name, commit: hub.commit, revision },
  );
}

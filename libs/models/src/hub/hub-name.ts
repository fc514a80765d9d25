// Names of the Hugging Face hub, ORG/NAME with perhaps @REVISION, told apart from names of the store (no "/") and from
// paths. The name in the store is that of the queue (docs/jobs.md): lower case, "/" becomes "--", all else "-". Several
// names of the hub may give one; who keeps them apart is the store, which knows whose files lie there.

import { ShoalError, modelSlug } from '@shoal/contract';

export interface HubName {
  /** ORG/NAME as the hub spells it. */
  readonly repository: string;
  /** A commit, a branch or a tag; undefined where none was asked for. */
  readonly revision: string | undefined;
}

/** As huggingface_hub checks it: 96 characters, no "--", no "..", no "-" or "." at an end. */
const PART = /^(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[\w.-]*\w)?$/;
const MOST_CHARACTERS = 96;
/** Git's rules for references, and what no address would take as it is. */
const REVISION = /^(?!.*(?:\.\.|\/\/))[A-Za-z0-9_][\w./+-]{0,199}$/;
export const COMMIT = /^[0-9a-f]{40}$/;

/** Whether this is meant as a name of the hub: a "/" in it, and no path. */
export function isHubName(name: string): boolean {
  return name.includes('/') && !/^[./~]/.test(name);
}

/** USAGE for what no repository can be called. */
export function parseHubName(text: string): HubName {
  const at = text.indexOf('@');
  const [repository, revision] = at === -1 ? [text, undefined] : [text.slice(0, at), text.slice(at + 1)];
  const parts = repository.split('/');
  if (parts.length !== 2 || repository.length > MOST_CHARACTERS || !parts.every((part) => PART.test(part)))
    throw new ShoalError(
      'USAGE',
      `${JSON.stringify(text)} is no name of the hub: ORG/NAME or ORG/NAME@REVISION, such as ` +
        'intfloat/multilingual-e5-small@main. A folder is brought in with shoal model import',
      { name: text },
    );
  if (revision !== undefined && !REVISION.test(revision))
    throw new ShoalError(
      'USAGE',
      `${JSON.stringify(revision)} is no revision of ${repository}: a commit, a branch or a tag goes there`,
      { name: text },
    );
  return { repository, revision };
}

/** What the model is called in the store and, unchanged, in queue names. `task`: whose adapter is merged into it. */
export function storeNameOf({ repository }: Pick<HubName, 'repository'>, task?: string): string {
  return modelSlug(task === undefined ? repository : `${repository}-${task}`);
}

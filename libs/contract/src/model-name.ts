// Models as formats name them: name@revision, or the name alone where nobody knows the revision. A person may say a name
// of the hub, whose revisions are others: ORG/NAME is the model that the store calls org--name.

import { modelSlug } from './keys.ts';

/** A name without a revision is the model of any. */
export function isSameModel(a: string, b: string): boolean {
  const [nameA, revisionA] = partsOf(a);
  const [nameB, revisionB] = partsOf(b);
  return nameA === nameB && (revisionA === undefined || revisionB === undefined || revisionA === revisionB);
}

function partsOf(text: string): readonly (string | undefined)[] {
  return text.includes('/') ? [modelSlug(text)] : text.split('@');
}

// Models as formats name them: name@revision, or the name alone where nobody knows the revision. A person may say a name
// of the hub, whose revisions are others: ORG/NAME is the model that the store calls org--name.

import { modelSlug } from './keys.ts';

/**
 * What the store and the workers call a model: of ORG/NAME org--name, of any other name the same. A name of the hub with
 * a revision stays as it is: workers tell revisions of the weights, not those of the hub.
 */
export function storedName(name: string): string {
  return name.includes('/') && !name.includes('@') ? modelSlug(name) : name;
}

/** A name without a revision is the model of any. */
export function isSameModel(a: string, b: string): boolean {
  const [nameA, revisionA] = partsOf(a);
  const [nameB, revisionB] = partsOf(b);
  return nameA === nameB && (revisionA === undefined || revisionB === undefined || revisionA === revisionB);
}

function partsOf(text: string): readonly (string | undefined)[] {
  return text.includes('/') ? [modelSlug(text)] : text.split('@');
}

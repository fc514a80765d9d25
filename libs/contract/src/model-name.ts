// Models as formats name them: name@revision, or the name alone where nobody knows the revision.

/** A name without a revision is the model of any. */
export function isSameModel(a: string, b: string): boolean {
  const [nameA, revisionA] = a.split('@');
  const [nameB, revisionB] = b.split('@');
  return nameA === nameB && (revisionA === undefined || revisionB === undefined || revisionA === revisionB);
}

// Which rows a call compared its queries with, as the workers' return values tell it, and whether that may be: vectors
// of two models have cosines, and they mean nothing. Widths do not tell models from each other, so names do. Where a
// collection does not know its model nothing can be refused; the answer says so.

import { ShoalError, isSameModel, type SimilarityReturn } from '@shoal/contract';

export interface Searched {
  /** name@version of the collection that was searched. */
  readonly collection: string;
  /**
   * name@revision of the model that made its rows. Undefined: not known, so nobody checked whether texts that were
   * asked with come from the same one.
   */
  readonly collectionModel: string | undefined;
}

/** Queries that were texts. */
export interface Texts {
  /** name@revision of what embedded them. */
  readonly model: string;
}

/** Whether the newest version is asked for. */
export function isNewest(collection: string): boolean {
  return !collection.includes('@');
}

/**
 * `found`: of each job of the call. Throws COLLECTION_MODEL_MISMATCH where texts and rows come from two models, or the
 * workers have rows of two models under one name; COLLECTION_GONE where the jobs met two versions.
 */
export function searchedOf(
  asked: string,
  found: readonly Pick<SimilarityReturn, 'collection' | 'model'>[],
  texts: Texts | undefined,
): Searched {
  const collections = new Set(found.flatMap((each) => each.collection ?? []));
  if (collections.size > 1)
    throw new ShoalError(
      'COLLECTION_GONE',
      `${asked} became another version while the call went on: its jobs were answered from ` +
        `${[...collections].join(' and ')}; ask again, or for one version`,
      { collections: [...collections] },
    );
  const [collection = asked] = collections;
  const models = found.flatMap(({ model }) => model ?? []);
  const [model] = models;
  const other = models.find((each) => !isSameModel(each, model!));
  if (model !== undefined && other !== undefined)
    throw new ShoalError(
      'COLLECTION_MODEL_MISMATCH',
      `workers answered from different collections called ${collection}: the rows of one come from ${model}, those of ` +
        `another from ${other}; give workers of one queue the same collections`,
      { collection, models: [model, other] },
    );
  const stranger = texts === undefined ? undefined : models.find((each) => !isSameModel(each, texts.model));
  if (texts !== undefined && stranger !== undefined)
    throw new ShoalError(
      'COLLECTION_MODEL_MISMATCH',
      `the texts were embedded by ${texts.model}, and the rows of ${collection} by ${stranger}: vectors of two models ` +
        `cannot be compared. Ask with ${stranger}, or build the collection again with ${texts.model}; queries that are ` +
        'vectors are compared as they are',
      { collection, collectionModel: stranger, model: texts.model },
    );
  return { collection, collectionModel: models.length === found.length ? model : undefined };
}

/** The first jobs have answers, and others are to ask for the same version: it has to be known which that was. */
export function refuseUntold(collection: string): void {
  if (!isNewest(collection)) return;
  throw new ShoalError(
    'COLLECTION_GONE',
    `the first queries were answered and nobody tells any more from which version of ${collection}; ask again, or for ` +
      'one version',
    { collection },
  );
}

/** The same rankings with what was searched. Not enumerable: they are compared and sent as the list that they are. */
export function withSearched<List extends readonly unknown[]>(rankings: List, searched: Searched): List & Searched {
  const { collection, collectionModel } = searched;
  return Object.defineProperties(rankings, {
    collection: { value: collection },
    collectionModel: { value: collectionModel },
  }) as List & Searched;
}

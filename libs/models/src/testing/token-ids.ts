// Ids against the official package over many texts, in groups of a thousand whose hash an earlier run may have kept.

import { expect } from 'vitest';
import type { Tokenizer } from '@shoal/core';
import { hashOf, type Golden } from './golden.ts';
import type { ReferenceTokenizer } from './reference-tokenizer.ts';

export interface SameIdsOptions {
  /** What the official package gave in an earlier run, as a hash of all ids of a thousand texts. */
  readonly golden?: Golden<string>;
  /**
   * The package stops reading at a full row: without tokens around a text it does not know whether it cut one of just
   * that length.
   */
  readonly comparesTruncation?: boolean;
}

/** Fails with the first texts whose ids differ; returns how many ids were compared. */
export async function expectSameIds(
  ours: Tokenizer,
  theirs: ReferenceTokenizer,
  texts: readonly string[],
  { golden, comparesTruncation = true }: SameIdsOptions = {},
): Promise<number> {
  const digestOf = (encoded: readonly Encoded[]): string =>
    hashOf(
      ...encoded.map(
        ({ ids, isTruncated }) => `${String(comparesTruncation && isTruncated)} ${Array.from(ids).join(' ')}`,
      ),
    );
  const differing: unknown[] = [];
  let compared = 0;
  for (let start = 0; start < texts.length; start += 1_000) {
    const group = texts.slice(start, start + 1_000);
    const encoded = group.map((text) => ours.encode(text));
    compared += encoded.reduce((sum, { ids }) => sum + ids.length, 0);
    const compute = async (): Promise<string> => digestOf(await theirs.encode(group));
    const known = await (golden === undefined
      ? compute()
      : golden.get(hashOf(theirs.about, String(comparesTruncation), ...group), compute));
    if (digestOf(encoded) === known) continue;
    const expected = await theirs.encode(group);
    for (const [at, text] of group.entries()) {
      const [found, wanted] = [encoded[at]!, expected[at]!];
      const isSame = digestOf([found]) === digestOf([wanted]);
      if (!isSame && differing.length < 3) differing.push({ text, found, wanted });
    }
  }
  expect(differing).toEqual([]);
  return compared;
}

interface Encoded {
  readonly ids: ArrayLike<number>;
  readonly isTruncated: boolean;
}

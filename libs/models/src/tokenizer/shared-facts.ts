// What every kind of tokenizer.json has beside its model: the tokens found in the text itself, and those put around it.

import type { CheckedJson } from '../checked-json.ts';
import { readAddedTokens, type AddedToken, type Vocabulary } from './added-tokens.ts';
import { readEnds, type Ends } from './ends.ts';

export interface SharedFacts {
  /** Tokens that are recognised in the text itself, such as [SEP]. */
  readonly addedTokens: readonly AddedToken[];
  readonly ends: Ends;
  /** Ids run from 0 to one below this. */
  readonly vocabularySize: number;
}

/** What every kind reads in the same way, once it knows its vocabulary; `largestId` is that of the vocabulary. */
export function readShared(root: CheckedJson, vocabulary: Vocabulary, largestId: number): SharedFacts {
  const addedTokens = readAddedTokens(root, vocabulary);
  const added = new Map(addedTokens.map(({ content, id }) => [content, id]));
  return {
    addedTokens,
    ends: readEnds(root, (token) => vocabulary.idOf(token) ?? added.get(token)),
    vocabularySize: 1 + addedTokens.reduce((largest, { id }) => Math.max(largest, id), largestId),
  };
}

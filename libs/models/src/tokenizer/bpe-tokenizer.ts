// Texts into token ids by a byte pair encoding: exactly those of the official `tokenizers` package. A text is parted at
// its added tokens, each part normalized and cut into words, and each word looked up in a cache or merged. Stops when a
// row is full. Refuses nothing: every string has ids.

import type { Encoded } from '@shoal/core';
import { AddedTokens } from './added-tokens.ts';
import type { BpeFacts, CharacterWords, WordCut } from './bpe-facts.ts';
import { BpeMerges } from './bpe-merges.ts';
import { byteSpelling, characterSpelling } from './bpe-spelling.ts';
import { BpeWords } from './bpe-words.ts';
import type { Ends } from './ends.ts';
import { wordsOf } from './metaspace.ts';
import { nfc } from './nfc.ts';
import { normalized, type NormalizerStep } from './normalizer-steps.ts';
import { endedRow, roomBefore, type RowOptions } from './row-options.ts';
import type { TextTokenizer } from './text-tokenizer.ts';

/** Appends the ids of a normalized text without added tokens until there are more than `most`. */
type AppendText = (text: string, isFirst: boolean, ids: number[], most: number) => void;

export class BpeTokenizer implements TextTokenizer {
  readonly hash: string;
  readonly maxTokens: number;
  readonly vocabularySize: number;
  readonly #ends: Ends;
  readonly #added: AddedTokens;
  /** Looked for in normalized text. */
  readonly #normalizedAdded: AddedTokens;
  readonly #normalize: (text: string) => string;
  readonly #appendText: AppendText;

  constructor(facts: BpeFacts, options: RowOptions) {
    this.hash = options.hash;
    this.maxTokens = options.maxTokens;
    this.vocabularySize = facts.vocabularySize;
    this.#ends = facts.ends;
    this.#normalize = normalizerOf(facts.normalizer);
    const patterns = (isNormalized: boolean, pattern: (content: string) => string): AddedTokens =>
      new AddedTokens(
        facts.addedTokens
          .filter((token) => token.isNormalized === isNormalized)
          .map((token) => [pattern(token.content), token]),
      );
    this.#added = patterns(false, (content) => content);
    this.#normalizedAdded = patterns(true, this.#normalize);
    this.#appendText = textAppender(facts);
  }

  encode(text: string): Encoded {
    const ids = [...this.#ends.before];
    const most = roomBefore(this.#ends, this.maxTokens);
    this.appendText(text.toWellFormed(), ids, most);
    return endedRow(ids, this.#ends, most);
  }

  /** Appends the ids of `text` until there are more than `most`. */
  appendText(text: string, ids: number[], most: number): void {
    eachPiece(text, this.#added, (piece, start, id) => {
      if (id === undefined) this.#appendPiece(piece, start === 0, ids, most);
      else ids.push(id);
      return ids.length <= most;
    });
  }

  /** Of text between two added tokens that are looked for in raw text. */
  #appendPiece(piece: string, isFirst: boolean, ids: number[], most: number): void {
    eachPiece(this.#normalize(piece), this.#normalizedAdded, (part, start, id) => {
      if (id === undefined) this.#appendText(part, isFirst && start === 0, ids, most);
      else ids.push(id);
      return ids.length <= most;
    });
  }
}

/** The parts of a text that is not empty, with an id where an added token takes them; until `visit` has enough. */
function eachPiece(
  text: string,
  added: AddedTokens,
  visit: (piece: string, start: number, id: number | undefined) => boolean,
): void {
  if (text === '') return;
  if (added.isEmpty) visit(text, 0, undefined);
  else added.split(text, (start, end, id) => visit(text.slice(start, end), start, id));
}

function normalizerOf(steps: readonly NormalizerStep[]): (text: string) => string {
  if (steps.length === 0) return (text) => text;
  return steps.every(({ type }) => type === 'NFC') ? nfc : (text) => normalized(steps, text);
}

function textAppender({ model, words }: BpeFacts): AppendText {
  const merges = new BpeMerges(model.mergeIds);
  if (words.spelling === 'bytes') {
    const made = new BpeWords({ merges, ...byteSpelling(model) });
    return byteWordAppender(words.cuts, (word, ids, most) => made.append(word, ids, most));
  }
  const made = new BpeWords({ merges, ...characterSpelling(model) });
  return (text, isFirst, ids, most) => {
    for (const word of characterWords(words, text, isFirst)) {
      made.append(word, ids, most);
      if (ids.length > most) return;
    }
  };
}

type AppendWord = (word: string, ids: number[], most: number) => void;

function byteWordAppender(cuts: readonly WordCut[], appendWord: AppendWord): AppendText {
  // from the last cut to the first
  return cuts.reduceRight<AppendText>(
    (appendPart, { prefixesBlank, scanner }) =>
      (text, isFirst, ids, most) => {
        const whole = prefixesBlank && !text.startsWith(' ') ? ` ${text}` : text;
        if (scanner === undefined) return appendPart(whole, isFirst, ids, most);
        for (let start = 0; start < whole.length && ids.length <= most;) {
          const end = scanner(whole, start);
          appendPart(whole.slice(start, end), isFirst, ids, most);
          start = end;
        }
      },
    (word, _, ids, most) => appendWord(word, ids, most),
  );
}

function characterWords({ steps, endsWords }: CharacterWords, text: string, isFirst: boolean): readonly string[] {
  if (endsWords !== undefined && text.includes(endsWords)) return endedWords(text, endsWords);
  return steps.length === 0 ? [text] : wordsOf(steps, text, isFirst);
}

/** The behaviour MergedWithPrevious: of several in a row only the first belongs to the word before it. */
function endedWords(text: string, end: string): readonly string[] {
  const words: string[] = [];
  let start = 0;
  for (let at = text.indexOf(end); at >= 0; at = text.indexOf(end, start)) {
    words.push(text.slice(start, at + end.length));
    start = at + end.length;
  }
  if (start < text.length) words.push(text.slice(start));
  return words;
}

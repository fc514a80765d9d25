// A normalized text without added tokens into ids, by a byte pair encoding: cut into words as the model's file says, each
// word looked up in a cache or merged. In one go, or in steps for a text that is long.

import type { BpeFacts, CharacterWords, WordCut } from './bpe-facts.ts';
import { BpeMerges } from './bpe-merges.ts';
import { byteSpelling, characterSpelling } from './bpe-spelling.ts';
import { BpeWords } from './bpe-words.ts';
import { wordsOf } from './metaspace.ts';
import { STEP_UNITS } from './steps.ts';

/** Both append the ids of a text until there are more than `most`. `isFirst`: the row begins with it. */
export interface BpeText {
  append(text: string, isFirst: boolean, ids: number[], most: number): void;
  steps(text: string, isFirst: boolean, ids: number[], most: number): Generator<void, void, undefined>;
}

export function bpeText({ model, words }: BpeFacts): BpeText {
  const merges = new BpeMerges(model.mergeIds);
  return words.spelling === 'bytes'
    ? new ByteText(words.cuts, new BpeWords({ merges, ...byteSpelling(model) }))
    : new CharacterText(words, new BpeWords({ merges, ...characterSpelling(model) }));
}

type AppendText = (text: string, ids: number[], most: number) => void;

class ByteText implements BpeText {
  readonly #cuts: readonly WordCut[];
  readonly #words: BpeWords;
  /** By cut: appends what is to be cut by it and by those behind it. */
  readonly #appenders: readonly AppendText[];

  constructor(cuts: readonly WordCut[], words: BpeWords) {
    this.#cuts = cuts;
    this.#words = words;
    const appenders: AppendText[] = [(word, ids, most) => words.append(word, ids, most)];
    for (const cut of cuts.toReversed()) appenders.unshift(appenderOf(cut, appenders[0]!));
    this.#appenders = appenders;
  }

  append(text: string, _: boolean, ids: number[], most: number): void {
    this.#appenders[0]!(text, ids, most);
  }

  steps(text: string, _: boolean, ids: number[], most: number): Generator<void, void, undefined> {
    return this.#steps(text, 0, ids, most);
  }

  /** Of a text that is to be cut by the cuts from `at` on. */
  *#steps(text: string, at: number, ids: number[], most: number): Generator<void, void, undefined> {
    const cut = this.#cuts[at];
    if (cut === undefined) return yield* this.#words.appendSteps(text, ids, most);
    const whole = withBlank(cut, text);
    if (cut.scanner === undefined) return yield* this.#steps(whole, at + 1, ids, most);
    let paused = 0; // where the last step ended
    for (let start = 0; start < whole.length && ids.length <= most;) {
      const end = cut.scanner(whole, start);
      const part = whole.slice(start, end);
      if (part.length > STEP_UNITS) yield* this.#steps(part, at + 1, ids, most);
      else this.#appenders[at + 1]!(part, ids, most);
      start = end;
      if (end - paused < STEP_UNITS) continue;
      paused = end;
      yield;
    }
  }
}

function withBlank({ prefixesBlank }: WordCut, text: string): string {
  return prefixesBlank && !text.startsWith(' ') ? ` ${text}` : text;
}

function appenderOf(cut: WordCut, appendPart: AppendText): AppendText {
  const { scanner } = cut;
  return (text, ids, most) => {
    const whole = withBlank(cut, text);
    if (scanner === undefined) return appendPart(whole, ids, most);
    for (let start = 0; start < whole.length && ids.length <= most;) {
      const end = scanner(whole, start);
      appendPart(whole.slice(start, end), ids, most);
      start = end;
    }
  };
}

class CharacterText implements BpeText {
  readonly #facts: CharacterWords;
  readonly #words: BpeWords;

  constructor(facts: CharacterWords, words: BpeWords) {
    this.#facts = facts;
    this.#words = words;
  }

  append(text: string, isFirst: boolean, ids: number[], most: number): void {
    for (const word of characterWords(this.#facts, text, isFirst)) {
      this.#words.append(word, ids, most);
      if (ids.length > most) return;
    }
  }

  *steps(text: string, isFirst: boolean, ids: number[], most: number): Generator<void, void, undefined> {
    let units = 0; // since the last step
    for (const word of characterWords(this.#facts, text, isFirst)) {
      if (word.length > STEP_UNITS) yield* this.#words.appendSteps(word, ids, most);
      else this.#words.append(word, ids, most);
      if (ids.length > most) return;
      units += word.length;
      if (units < STEP_UNITS) continue;
      units = 0;
      yield;
    }
  }
}

function characterWords({ steps, endsWords }: CharacterWords, text: string, isFirst: boolean): Iterable<string> {
  if (endsWords !== undefined && text.includes(endsWords)) return endedWords(text, endsWords);
  return steps.length === 0 ? [text] : wordsOf(steps, text, isFirst);
}

/** The behaviour MergedWithPrevious: of several in a row only the first belongs to the word before it. */
function* endedWords(text: string, end: string): Generator<string, void, undefined> {
  let start = 0;
  for (let at = text.indexOf(end); at >= 0; at = text.indexOf(end, start)) {
    yield text.slice(start, at + end.length);
    start = at + end.length;
  }
  if (start < text.length) yield text.slice(start);
}

// A long text into pieces that a model reads whole: at the ends of sentences, else between words, else between what a
// reader takes for characters. Works in every script, and leaves nothing out but white space at the ends of pieces.

/** Letters of Latin scripts and digits, which a tokenizer joins to pieces of words; everything else by itself. */
const UNITS = /[\p{Script=Latin}\p{Mn}0-9]+|\S/gu;
/** A word of that many letters is one of a language; longer runs are keys, hashes and addresses. */
const LONGEST_WORD = 14;

/**
 * About how many tokens a model makes of a text, rather too many than too few, whichever model it is: a third of the
 * letters of a Latin word, and each character of other scripts. Compared with minilm's own tokenizer in the test.
 */
export function weightOf(text: string): number {
  let weight = 0;
  for (const [unit] of text.matchAll(UNITS)) weight += weightOfUnit(unit);
  return weight;
}

function weightOfUnit(unit: string): number {
  if (/^[\p{Script=Latin}\p{Mn}0-9]/u.test(unit))
    return unit.length <= LONGEST_WORD && !/\d/.test(unit)
      ? Math.max(1, unit.length / 3)
      : Math.max(1, unit.length / 1.6);
  const code = unit.codePointAt(0)!;
  return code >= 0xac_00 && code <= 0xd7_a3 ? 3 : 1; // a syllable of Hangul is up to three letters
}

export interface CutLimits {
  /** Pieces of a text that has to be cut are filled up to this. */
  readonly aim: number;
  /** A text up to this stays whole. */
  readonly most: number;
}

const SENTENCES = new Intl.Segmenter('en', { granularity: 'sentence' });
const WORDS = new Intl.Segmenter('en', { granularity: 'word' });
const CHARACTERS = new Intl.Segmenter('en', { granularity: 'grapheme' });

/** The pieces of a text, in order, without white space at their ends. */
export function cutText(text: string, limits: CutLimits): readonly string[] {
  const whole =
    weightOf(text) <= limits.most
      ? [text]
      : cut(text, limits, [segments(SENTENCES), segments(WORDS), segments(CHARACTERS), codePoints]);
  return whole.map((piece) => piece.trim()).filter((piece) => piece !== '');
}

type Split = (text: string) => Iterable<string>;

/** Greedy: parts of one kind are joined up to the aim, and a part that is too long is cut into the next finer kind. */
function cut(text: string, { aim, most }: CutLimits, [split, ...finer]: readonly Split[]): string[] {
  const pieces: string[] = [];
  let open = '';
  let openWeight = 0;
  const end = (): void => {
    if (open !== '') pieces.push(open);
    open = '';
    openWeight = 0;
  };
  for (const part of split!(text)) {
    const weight = weightOf(part);
    if (openWeight + weight > aim) end();
    if (weight > most && finer.length > 0) {
      const parts = cut(part, { aim, most }, finer);
      open = parts.pop() ?? '';
      openWeight = weightOf(open);
      pieces.push(...parts);
    } else {
      open += part;
      openWeight += weight;
    }
  }
  end();
  return pieces;
}

function segments(segmenter: Intl.Segmenter): Split {
  return function* parts(text) {
    for (const { segment } of segmenter.segment(text)) yield segment;
  };
}

/** A character under thousands of marks, which somebody made on purpose. */
function codePoints(text: string): Iterable<string> {
  return text;
}

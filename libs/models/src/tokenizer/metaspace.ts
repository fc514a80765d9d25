// "pre_tokenizer" of a SentencePiece-like tokenizer.json: WhitespaceSplit and Metaspace, alone or one after the other.
// Refuses others by name.

import { ShoalError } from '@shoal/contract';
import { quoted, type CheckedJson } from '../checked-json.ts';
import { sequenceParts, type SequenceKind } from './sequence-parts.ts';
import { isSpace } from './unicode-sets.ts';

export type PreTokenizerStep = { readonly type: 'WhitespaceSplit' } | MetaspaceStep;

export interface MetaspaceStep {
  readonly type: 'Metaspace';
  /** Stands for a blank, and is put before words: usually U+2581. One character. */
  readonly mark: string;
  readonly prepends: 'always' | 'first' | 'never';
  /** Whether every mark begins a word. */
  readonly splits: boolean;
}

export const PRE_TOKENIZERS: SequenceKind = { key: 'pretokenizers', unknown: 'what it does to words neither' };

/** MODEL_CORRUPT, by name, for what is not known here. No pre-tokenizer at all is no step: a text is one word. */
export function readPreTokenizerSteps(root: CheckedJson): readonly PreTokenizerStep[] {
  const parts = root.has('pre_tokenizer') ? sequenceParts(root.object('pre_tokenizer'), PRE_TOKENIZERS) : [];
  const steps = parts.map(stepOf);
  // of several words that came of one character, as of U+FDFA, each is the first one there
  if (steps.slice(1).some((step) => step.type === 'Metaspace' && step.prepends === 'first'))
    refuse(root.object('pre_tokenizer'), '"prepend_scheme" is "first" behind another step');
  return steps;
}

function stepOf(json: CheckedJson): PreTokenizerStep {
  const type = json.string('type');
  switch (type) {
    case 'WhitespaceSplit':
      json.expectKeys(['type'], PRE_TOKENIZERS.unknown);
      return { type };
    case 'Metaspace':
      return readMetaspace(json);
    default:
      return refuse(
        json,
        `type ${quoted(type)} is not supported, only WhitespaceSplit, Metaspace and Sequence of them`,
      );
  }
}

const KEYS = ['type', 'replacement', 'add_prefix_space', 'prepend_scheme', 'split', 'str_rep'];

/** Files older than tokenizers 0.15 have "add_prefix_space" for "prepend_scheme"; later ones have both, or the latter. */
export function readMetaspace(json: CheckedJson): MetaspaceStep {
  json.expectKeys(KEYS, PRE_TOKENIZERS.unknown);
  const mark = json.string('replacement');
  if ([...mark].length !== 1 || !mark.isWellFormed()) refuse(json, '"replacement" should be one character');
  const scheme = json.has('prepend_scheme') ? json.string('prepend_scheme') : 'always';
  if (scheme !== 'always' && scheme !== 'first' && scheme !== 'never')
    return refuse(json, `"prepend_scheme" is ${quoted(scheme)}, which is not known here`);
  const prefixes = !json.has('add_prefix_space') || json.boolean('add_prefix_space');
  if (!prefixes && json.has('prepend_scheme') && scheme !== 'never')
    return refuse(json, '"add_prefix_space" is false beside another "prepend_scheme" than never');
  return {
    type: 'Metaspace',
    mark,
    prepends: prefixes ? scheme : 'never',
    splits: !json.has('split') || json.boolean('split'),
  };
}

/** The words of a normalized text. `isFirst`: it begins where the whole row begins, which only the scheme "first" asks. */
export function wordsOf(steps: readonly PreTokenizerStep[], text: string, isFirst: boolean): readonly string[] {
  let words: readonly string[] = text === '' ? [] : [text];
  for (const step of steps)
    words = words.flatMap(
      step.type === 'WhitespaceSplit' ? splitAtSpaces : (word, at) => marked(step, word, isFirst && at === 0),
    );
  return words;
}

function splitAtSpaces(text: string): readonly string[] {
  const words: string[] = [];
  let start = 0;
  for (let at = 0; at < text.length; at++) {
    if (!isSpace(text.charCodeAt(at))) continue;
    if (start < at) words.push(text.slice(start, at));
    start = at + 1;
  }
  if (start < text.length) words.push(text.slice(start));
  return words;
}

function marked({ mark, prepends, splits }: MetaspaceStep, word: string, isFirst: boolean): readonly string[] {
  let text = word.includes(' ') ? word.replaceAll(' ', mark) : word;
  if (!text.startsWith(mark) && (prepends === 'always' || (prepends === 'first' && isFirst))) text = mark + text;
  if (!splits) return [text];
  const words: string[] = [];
  let start = 0;
  for (let at = text.indexOf(mark, 1); at >= 0; at = text.indexOf(mark, at + 1)) {
    words.push(text.slice(start, at));
    start = at;
  }
  words.push(text.slice(start));
  return words;
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem}`, { where: json.where });
}

// "normalizer" of tokenizer.json, for other models than BERT's, as steps in order, and what they make of a text. Refuses
// steps, keys and regular expressions that it does not know.

import { ShoalError } from '@shoal/contract';
import { quoted, type CheckedJson } from '../checked-json.ts';
import { Charsmap } from './charsmap.ts';
import { normalForm, type NormalForm } from './normal-forms.ts';
import { sequenceParts, type SequenceKind } from './sequence-parts.ts';
import { hasPoint, isSpace, setOf } from './unicode-sets.ts';
import { TABLE_RANGES } from './unicode-tables.ts';

export type NormalizerStep =
  | { readonly type: 'Precompiled'; readonly charsmap: Charsmap }
  | { readonly type: 'Replace'; readonly pattern: string | RegExp; readonly content: string }
  | { readonly type: NormalForm | 'Lowercase' | 'StripAccents' | 'Nmt' }
  | { readonly type: 'Strip'; readonly left: boolean; readonly right: boolean }
  | { readonly type: 'Prepend'; readonly content: string };

/** Where a text lies in the stretch between two added tokens, which is what the official package normalizes at once. */
export interface Place {
  readonly isStart: boolean;
  readonly isEnd: boolean;
}

export const WHOLE: Place = { isStart: true, isEnd: true };

const KEYS: Readonly<Record<NormalizerStep['type'], readonly string[]>> = {
  Precompiled: ['type', 'precompiled_charsmap'],
  Replace: ['type', 'pattern', 'content'],
  NFC: ['type'],
  NFD: ['type'],
  NFKC: ['type'],
  NFKD: ['type'],
  Lowercase: ['type'],
  StripAccents: ['type'],
  Nmt: ['type'],
  Strip: ['type', 'strip_left', 'strip_right'],
  Prepend: ['type', 'prepend'],
};
const KNOWN: ReadonlyMap<string, readonly string[]> = new Map(Object.entries(KEYS));

/** MODEL_CORRUPT, by name, for what is not known here. No normalizer at all is no step. */
export function readNormalizerSteps(root: CheckedJson): readonly NormalizerStep[] {
  return root.has('normalizer') ? sequenceParts(root.object('normalizer'), NORMALIZERS).map(readStep) : [];
}

const NORMALIZERS: SequenceKind = { key: 'normalizers', unknown: 'what it does to texts neither' };

function readStep(json: CheckedJson): NormalizerStep {
  const type = json.string('type') as NormalizerStep['type'];
  const keys = KNOWN.get(type);
  if (keys === undefined)
    return refuse(json, `type ${quoted(type)} is not supported, only ${[...KNOWN.keys(), 'Sequence'].join(', ')}`);
  json.expectKeys(keys, NORMALIZERS.unknown);
  switch (type) {
    case 'Precompiled': {
      const problem = (what: string): never => refuse(json, `"precompiled_charsmap" ${what}`);
      return { type, charsmap: new Charsmap(json.string('precompiled_charsmap'), problem) };
    }
    case 'Replace':
      return { type, pattern: patternOf(json), content: wellFormed(json, 'content') };
    case 'Strip':
      return { type, left: json.boolean('strip_left'), right: json.boolean('strip_right') };
    case 'Prepend':
      return { type, content: wellFormed(json, 'prepend') };
    default:
      return { type };
  }
}

/** { String } for itself, { Regex } for one of a few that Oniguruma and JavaScript read alike. */
function patternOf(json: CheckedJson): string | RegExp {
  const pattern = json.object('pattern');
  pattern.expectKeys(['String', 'Regex'], 'what it matches neither');
  if (pattern.keys().length !== 1) return refuse(pattern, 'it should be a String or a Regex');
  if (pattern.has('Regex')) {
    const source = pattern.string('Regex');
    const known = KNOWN_REGEXES.get(source);
    return known ?? refuse(pattern, `the Regex ${quoted(source)} is not known here`);
  }
  const text = wellFormed(pattern, 'String');
  return text === '' ? refuse(pattern, 'the String is empty') : text;
}

/** \s of Oniguruma is White_Space: U+0085 is one and U+FEFF is none, unlike in JavaScript. */
const SPACE = '\\t-\\r\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';

const KNOWN_REGEXES: ReadonlyMap<string, RegExp> = new Map([
  [' {2,}', / {2,}/g],
  [' +', / +/g],
  ['\\s+', new RegExp(`[${SPACE}]+`, 'g')],
  ['\\s{2,}', new RegExp(`[${SPACE}]{2,}`, 'g')],
  ['\\s', new RegExp(`[${SPACE}]`, 'g')],
  ['\\s{2,}|[\\n\\r\\t]', new RegExp(`[${SPACE}]{2,}|[\\n\\r\\t]`, 'g')],
  ['[\\n\\r\\t]', /[\n\r\t]/g],
  ['\\n', /\n/g],
]);

/** Whether a replacement looks at blanks only. */
export function replacesBlanksOnly({ pattern }: { readonly pattern: string | RegExp }): boolean {
  return typeof pattern !== 'string' || [...pattern].every((char) => isSpace(char.codePointAt(0)!));
}

function wellFormed(json: CheckedJson, key: string): string {
  const text = json.string(key);
  return text.isWellFormed() ? text : refuse(json, `"${key}" has half a character`);
}

/** What the steps make of a text, which must be well-formed. */
export function normalized(steps: readonly NormalizerStep[], text: string, place: Place = WHOLE): string {
  return steps.reduce((before, step) => applied(step, before, place), text);
}

function applied(step: NormalizerStep, text: string, { isStart, isEnd }: Place): string {
  switch (step.type) {
    case 'Precompiled':
      return step.charsmap.normalize(text);
    case 'Replace':
      return text.replaceAll(step.pattern, () => step.content);
    case 'Lowercase':
      // per character in the original: a sigma at the end of a word stays σ, which toLowerCase() alone would make ς
      return text.replaceAll('Σ', 'σ').toLowerCase();
    case 'StripAccents':
      return withoutMarks(text);
    case 'Nmt':
      return text.replaceAll(NMT_DROPPED, '').replaceAll(NMT_BLANK, ' ');
    case 'Strip':
      return stripped(text, step.left && isStart, step.right && isEnd);
    case 'Prepend':
      return isStart && text !== '' ? step.content + text : text;
    default:
      return normalForm(text, step.type);
  }
}

/* oxlint-disable-next-line no-control-regex -- these are what is removed */
const NMT_DROPPED = /[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]/g;
const NMT_BLANK = /[\t\n\f\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]/g;

let marks: Uint8Array | undefined;

function withoutMarks(text: string): string {
  if (/^[\0-\u02ff]*$/.test(text)) return text;
  marks ??= setOf(TABLE_RANGES.COMBINING);
  let made = '';
  for (const char of text) if (!hasPoint(marks, char.codePointAt(0)!)) made += char;
  return made;
}

function stripped(text: string, left: boolean, right: boolean): string {
  let [start, end] = [0, text.length];
  if (left) while (start < end && isSpace(text.charCodeAt(start))) start++;
  if (right) while (end > start && isSpace(text.charCodeAt(end - 1))) end--;
  return text.slice(start, end);
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem}`, { where: json.where });
}

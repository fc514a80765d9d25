// The facts of a tokenizer whose model is a byte pair encoding. Over bytes (RoBERTa, ModernBERT, Qwen, Llama 3), where the
// pre-tokenizer ends with ByteLevel; over characters (Gemma, Llama 2, Mistral) elsewhere. Takes the regexes that are
// scanned by hand and no others: a regex engine of another library would read some texts otherwise.

import { ShoalError } from '@shoal/contract';
import { quoted, type CheckedJson } from '../checked-json.ts';
import { readBpeModel, type BpeModel } from './bpe-model.ts';
import { cl100kScanner, digitsScanner, gpt2Scanner, type Scanner } from './byte-bpe-scanners.ts';
import { PRE_TOKENIZERS, readPreTokenizerSteps, type PreTokenizerStep } from './metaspace.ts';
import { readNormalizerSteps, type NormalizerStep } from './normalizer-steps.ts';
import { sequenceParts } from './sequence-parts.ts';
import { readShared, type SharedFacts } from './shared-facts.ts';

export interface BpeFacts extends SharedFacts {
  readonly kind: 'BPE';
  readonly normalizer: readonly NormalizerStep[];
  readonly words: ByteWords | CharacterWords;
  readonly model: BpeModel;
}

/** Texts are cut into words by each step in turn, and words are spelled by their bytes. */
export interface ByteWords {
  readonly spelling: 'bytes';
  readonly cuts: readonly WordCut[];
}

export interface WordCut {
  /** Puts a blank before what does not begin with one, before it is cut. */
  readonly prefixesBlank: boolean;
  /** A regex that is known here, "Digits", or undefined, which cuts nothing. */
  readonly pattern: string | undefined;
  /** What cuts by the pattern. */
  readonly scanner: Scanner | undefined;
}

/** Texts are words as they are, or as Metaspace makes them, and words are spelled by their characters. */
export interface CharacterWords {
  readonly spelling: 'characters';
  readonly steps: readonly PreTokenizerStep[];
  /** A string that ends words, and belongs to the word before it. */
  readonly endsWords: string | undefined;
}

/** MODEL_CORRUPT for what this tokenizer would read otherwise than the official package. */
export function readBpe(root: CheckedJson): BpeFacts {
  const model = readBpeModel(root.object('model'));
  const vocabulary = {
    size: model.vocabulary.size,
    idOf: (token: string): number | undefined => model.vocabulary.get(token),
  };
  return {
    kind: 'BPE',
    normalizer: readNormalizerSteps(root),
    words: isByteLevel(root) ? readByteWords(root.object('pre_tokenizer')) : readCharacterWords(root),
    model,
    ...readShared(root, vocabulary, model.largestId),
  };
}

function isByteLevel(root: CheckedJson): boolean {
  if (!root.has('pre_tokenizer')) return false;
  return sequenceParts(root.object('pre_tokenizer'), PRE_TOKENIZERS).some(
    (step) => step.string('type') === 'ByteLevel',
  );
}

function readByteWords(json: CheckedJson): ByteWords {
  const steps = sequenceParts(json, PRE_TOKENIZERS);
  const at = steps.findIndex((step) => step.string('type') === 'ByteLevel');
  const behind = steps[at + 1];
  if (behind !== undefined)
    refuse(behind, `${behind.string('type')} behind ByteLevel would see bytes in place of characters`);
  return { spelling: 'bytes', cuts: steps.map(wordCut).filter((cut) => cut.prefixesBlank || cut.scanner) };
}

function wordCut(json: CheckedJson): WordCut {
  const type = json.string('type');
  switch (type) {
    case 'ByteLevel': {
      // trim_offsets is about places in the text, which nobody asks here
      json.expectKeys(['type', 'add_prefix_space', 'trim_offsets', 'use_regex'], PRE_TOKENIZERS.unknown);
      const usesRegex = !json.has('use_regex') || json.boolean('use_regex');
      return {
        prefixesBlank: json.boolean('add_prefix_space'),
        pattern: usesRegex ? GPT2_PATTERN : undefined,
        scanner: usesRegex ? gpt2Scanner() : undefined,
      };
    }
    case 'Digits':
      json.expectKeys(['type', 'individual_digits'], PRE_TOKENIZERS.unknown);
      return { prefixesBlank: false, pattern: type, scanner: digitsScanner(json.boolean('individual_digits')) };
    case 'Split':
      return { prefixesBlank: false, ...readSplit(json) };
    default:
      return refuse(json, `type ${quoted(type)} is not supported beside ByteLevel, only Split and Digits`);
  }
}

const CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const WORDS = '[^\\r\\n\\p{L}\\p{N}]?\\p{L}+';
const OTHERS = ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

export const GPT2_PATTERN = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
export const QWEN_PATTERN = `${CONTRACTIONS}|${WORDS}|\\p{N}|${OTHERS}`;

/** All of these find every character of a text: what lies between two words is nothing. */
const SCANNERS: ReadonlyMap<string, () => Scanner> = new Map([
  [GPT2_PATTERN, gpt2Scanner],
  [QWEN_PATTERN, () => cl100kScanner(1)],
  [`${CONTRACTIONS}|${WORDS}|\\p{N}{1,3}|${OTHERS}`, () => cl100kScanner(3)],
  [`${CONTRACTIONS}|${WORDS}|\\p{N}+|${OTHERS}`, () => cl100kScanner(Number.POSITIVE_INFINITY)],
]);

function readSplit(json: CheckedJson): { readonly pattern: string; readonly scanner: Scanner } {
  json.expectKeys(['type', 'pattern', 'behavior', 'invert'], PRE_TOKENIZERS.unknown);
  const pattern = json.object('pattern');
  pattern.expectKeys(['String', 'Regex'], 'what it matches neither');
  if (!pattern.has('Regex') || pattern.has('String'))
    return refuse(pattern, 'only a Regex is supported before ByteLevel');
  const source = pattern.string('Regex');
  const scanner = SCANNERS.get(source);
  if (scanner === undefined) return refuse(pattern, `the Regex ${quoted(source)} is not known here`);
  const [behavior, invert] = [json.string('behavior'), json.boolean('invert')];
  // "Removed" and "invert" drop what no word has, and every character is in one
  if (behavior !== 'Isolated' && !(behavior === 'Removed' && invert))
    return refuse(json, `"behavior" is ${quoted(behavior)}; only "Isolated" is supported for this pattern`);
  return { pattern: source, scanner: scanner() };
}

function readCharacterWords(root: CheckedJson): CharacterWords {
  const isSplit = root.has('pre_tokenizer') && root.object('pre_tokenizer').string('type') === 'Split';
  if (!isSplit) return { spelling: 'characters', steps: readPreTokenizerSteps(root), endsWords: undefined };
  const json = root.object('pre_tokenizer');
  json.expectKeys(['type', 'pattern', 'behavior', 'invert'], PRE_TOKENIZERS.unknown);
  const pattern = json.object('pattern');
  pattern.expectKeys(['String', 'Regex'], 'what it matches neither');
  if (!pattern.has('String') || pattern.has('Regex') || pattern.string('String') === '')
    return refuse(pattern, 'only a String that is not empty is supported without ByteLevel');
  if (json.string('behavior') !== 'MergedWithPrevious' || json.boolean('invert'))
    return refuse(json, 'only "behavior": "MergedWithPrevious" with "invert": false is supported for a String');
  return { spelling: 'characters', steps: [], endsWords: pattern.string('String') };
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem}`, { where: json.where });
}

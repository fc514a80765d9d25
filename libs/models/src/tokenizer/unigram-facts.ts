// The facts of a Unigram tokenizer (SentencePiece: XLM-R, multilingual E5, BGE-M3, T5): pieces with scores, steps that
// normalize, steps that cut words. Refuses what the official package would read otherwise, or not at all.

import { ShoalError } from '@shoal/contract';
import type { CheckedJson } from '../checked-json.ts';
import { readPreTokenizerSteps, type PreTokenizerStep } from './metaspace.ts';
import { readNormalizerSteps, type NormalizerStep } from './normalizer-steps.ts';
import { readShared, type SharedFacts } from './shared-facts.ts';

export interface UnigramOptions {
  /** By id. Of pieces that are there twice, the last one counts. */
  readonly pieces: readonly string[];
  readonly scores: Float64Array;
  readonly unknownId: number;
  /** Whether what is unknown becomes the pieces <0x00> to <0xFF> of its bytes, where all are there. */
  readonly hasByteFallback: boolean;
}

export interface UnigramFacts extends SharedFacts {
  readonly kind: 'Unigram';
  readonly normalizer: readonly NormalizerStep[];
  readonly preTokenizer: readonly PreTokenizerStep[];
  readonly model: UnigramOptions;
}

/** MODEL_CORRUPT, naming key and value, for what is not known here. */
export function readUnigram(root: CheckedJson): UnigramFacts {
  const model = readModel(root.object('model'));
  const { pieces } = model;
  const normalizer = readNormalizerSteps(root);
  const preTokenizer = readPreTokenizerSteps(root);
  // where a text begins is counted in the original text by that scheme
  if (
    preTokenizer.some((step) => step.type === 'Metaspace' && step.prepends === 'first') &&
    normalizer.some((step) => step.type === 'Strip' && step.left)
  )
    refuse(root, 'pre_tokenizer: "prepend_scheme" is "first" behind a normalizer that strips on the left');
  const ids = new Map<string, number>();
  const asked = new Set<string>();
  const idOf = (token: string): number | undefined => {
    // a map of all pieces would be made for a handful of names
    if (!asked.has(token)) {
      asked.add(token);
      const id = pieces.lastIndexOf(token);
      if (id >= 0) ids.set(token, id);
    }
    return ids.get(token);
  };
  return {
    kind: 'Unigram',
    normalizer,
    preTokenizer,
    model,
    ...readShared(root, { size: pieces.length, idOf }, pieces.length - 1),
  };
}

function readModel(json: CheckedJson): UnigramOptions {
  json.expectKeys(['type', 'unk_id', 'vocab', 'byte_fallback'], 'what it does to words neither');
  const list = json.list('vocab');
  const pieces = Array.from<string>({ length: list.length });
  const scores = new Float64Array(list.length);
  for (let id = 0; id < list.length; id++) {
    const entry = list[id];
    const [piece, score] = Array.isArray(entry) && entry.length === 2 ? (entry as unknown[]) : [];
    if (typeof piece !== 'string' || typeof score !== 'number' || !Number.isFinite(score) || !piece.isWellFormed())
      return refuse(json, `"vocab" should be a list of [piece, score], and is not at ${id}`);
    pieces[id] = piece;
    scores[id] = score;
  }
  const unknownId = json.integer('unk_id');
  if (unknownId >= pieces.length)
    refuse(json, `"unk_id" is ${unknownId}, and "vocab" has only ${pieces.length} pieces`);
  return {
    pieces,
    scores,
    unknownId,
    hasByteFallback: json.has('byte_fallback') && json.boolean('byte_fallback'),
  };
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem}`, { where: json.where });
}

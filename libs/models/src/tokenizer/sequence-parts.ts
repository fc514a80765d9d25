// What tokenizer.json has in Sequences (normalizers, pre-tokenizers, post-processors): Sequences in Sequences as one list,
// in order. What each part is, and may be, is for whoever reads it.

import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';

const MOST_DEPTH = 8;

export interface SequenceKind {
  /** The key that a Sequence has its parts under. */
  readonly key: 'normalizers' | 'pretokenizers' | 'processors';
  /** Of a key that is not known, as the end of a sentence. */
  readonly unknown: string;
}

/** A part that is no Sequence is a list of itself. MODEL_CORRUPT for Sequences without end, and with keys unknown here. */
export function sequenceParts(json: CheckedJson, kind: SequenceKind, depth = 0): readonly CheckedJson[] {
  if (json.string('type') !== 'Sequence') return [json];
  json.expectKeys(['type', kind.key], kind.unknown);
  if (depth > MOST_DEPTH)
    throw new ShoalError('MODEL_CORRUPT', `${json.where}: Sequences lie in Sequences without end`, {
      where: json.where,
    });
  const where = `${json.where}: ${kind.key}`;
  return json
    .list(kind.key)
    .flatMap((value, index) => sequenceParts(CheckedJson.of(value, `${where}[${index}]`), kind, depth + 1));
}

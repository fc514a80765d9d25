// Which kinds of graph an encoder cannot be had in, and why: what would be computed wrongly, or not at all, is refused
// before anything is built. Who may choose takes the next kind.

import type { EncoderDescription } from '../encoder/encoder-description.ts';
import { bertConfigOf } from './bert-config.ts';
import { FORMS, type GraphKind } from './graph-kind.ts';

/** Why this encoder has no graph of this kind; undefined where it has one. */
export function kindProblem(encoder: EncoderDescription, kind: GraphKind): string | undefined {
  if (bertConfigOf(encoder) !== undefined) return undefined;
  const form = FORMS[kind];
  if (encoder.table !== undefined && (form.floats !== 'fp32' || form.words !== undefined || form.encoder === 'int8'))
    return 'the rows of a static model are added up in fp32, whatever they are stored in';
  if (form.floats === 'fp16' && encoder.norm.placement === 'around')
    return 'what its layers add up leaves the range of fp16';
  return undefined;
}

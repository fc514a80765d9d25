// What is written down of a model that was made of another one by keeping its weights smaller (derived-model.ts): of
// which, in which form, by which version of what made it, and how near its vectors came. In import.json it stands under
// the name of the form.

import { ShoalError } from '@shoal/contract';
import type { CheckedJson } from '../checked-json.ts';
import { DERIVED_FORMS, WEIGHT_DTYPES, type WeightDtype } from './derived-forms.ts';

export interface DerivedFacts {
  readonly dtype: WeightDtype;
  /** The model that it was made of, by its name in the store, and that model's revision. */
  readonly base: string;
  readonly baseRevision: string;
  readonly quantizer: number;
  /** Texts that it was compared with the model on, none of them a calibration text. */
  readonly passages: number;
  readonly meanCosine: number;
  readonly leastCosine: number;
  /** Of each passage's ten nearest others by the model, how many are among its ten nearest here: 0 to 1. */
  readonly recallAt10: number;
}

/** As they stand in import.json. */
export function derivedEntry({ dtype, ...facts }: DerivedFacts): object {
  return { [dtype]: facts };
}

/**
 * Those of an import.json; undefined where it is of no such model. MODEL_CORRUPT where another version of what makes the
 * form made it: the same weights would give other vectors under its revision.
 */
export function parseDerived(manifest: CheckedJson, name: string): DerivedFacts | undefined {
  const dtype = WEIGHT_DTYPES.find((known) => manifest.has(known));
  if (dtype === undefined) return undefined;
  const json = manifest.object(dtype);
  const facts = {
    dtype,
    base: json.string('base'),
    baseRevision: json.string('baseRevision'),
    quantizer: json.integer('quantizer'),
    passages: json.integer('passages', 1),
    meanCosine: json.share('meanCosine'),
    leastCosine: json.share('leastCosine'),
    recallAt10: json.share('recallAt10'),
  };
  const { quantizer } = DERIVED_FORMS[dtype];
  if (facts.quantizer === quantizer) return facts;
  throw new ShoalError(
    'MODEL_CORRUPT',
    `${json.where}: ${name} was made by version ${facts.quantizer} of the quantizer, and this is version ` +
      `${quantizer}, which gives other vectors: shoal model pull ${facts.base} --dtype ${dtype} makes it again`,
    { name, base: facts.base },
  );
}

/** What to say to whoever would fetch the files of such a model: they are another one's, which has other vectors. */
export function derivedIsMade(name: string, { base, dtype }: DerivedFacts): ShoalError {
  return new ShoalError(
    'USAGE',
    `${name} is made of ${base} and cannot be fetched: fetch that one with --dtype ${dtype}, which makes ${name} again`,
    { name, base },
  );
}

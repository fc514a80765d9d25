// What is written down of a model that was made of another one by quantizing it (int8-model.ts): of which, by which
// version of the quantizer, and how near its vectors came.

import { ShoalError } from '@shoal/contract';
import type { CheckedJson } from '../checked-json.ts';
import { QUANTIZER_VERSION } from '../graph/quantize.ts';

/** Beside the weights. */
export const CALIBRATION_FILE = 'calibration.json';

export interface Int8Facts {
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

/** MODEL_CORRUPT where another quantizer made it: the same weights would give other vectors under its revision. */
export function parseInt8(json: CheckedJson, name: string): Int8Facts {
  const facts = {
    base: json.string('base'),
    baseRevision: json.string('baseRevision'),
    quantizer: json.integer('quantizer'),
    passages: json.integer('passages', 1),
    meanCosine: json.share('meanCosine'),
    leastCosine: json.share('leastCosine'),
    recallAt10: json.share('recallAt10'),
  };
  if (facts.quantizer === QUANTIZER_VERSION) return facts;
  throw new ShoalError(
    'MODEL_CORRUPT',
    `${json.where}: ${name} was made by version ${facts.quantizer} of the quantizer, and this is version ` +
      `${QUANTIZER_VERSION}, which gives other vectors: shoal model pull ${facts.base} --dtype int8 makes it again`,
    { name, base: facts.base },
  );
}

/** What to say to whoever would fetch the files of such a model: they are another one's, which has other vectors. */
export function int8IsMade(name: string, { base }: Int8Facts): ShoalError {
  return new ShoalError(
    'USAGE',
    `${name} is made of ${base} and cannot be fetched: fetch that one with --dtype int8, which makes ${name} again`,
    { name, base },
  );
}

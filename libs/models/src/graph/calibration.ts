// Calibration maxima of a model: for each linear layer that is smoothed, the largest |activation| of every input over
// the calibration texts. minilm's lie in libs/models/calibration, which says how they are made, those of an imported
// model beside its weights (store/int8-calibration.ts). Refuses maxima of another model.

import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';

/**
 * Linear layers of an encoder's layer by what they take in: the attention's projections, its output, the first of the
 * feed-forward part and its last. Inputs are smoothed, but for those of the last where they come out of a GELU or ReLU.
 */
export type QuantizedLinear = 'qkv' | 'out' | 'ff1' | 'ff2';

export class Calibration {
  readonly #maxima: CheckedJson;

  private constructor(maxima: CheckedJson) {
    this.#maxima = maxima;
  }

  /** `text`: of a calibration file, found at `where`. */
  static parse(text: string, where: string, weightsSha256: string): Calibration {
    const json = CheckedJson.parse(text, where);
    const made = json.string('weightsSha256');
    if (made !== weightsSha256)
      throw new ShoalError('MODEL_CORRUPT', `${where} was made for weights with sha256 ${made}, not ${weightsSha256}`, {
        where,
      });
    return new Calibration(json.object('maxima'));
  }

  maxima(layer: number, linear: QuantizedLinear, channels: number): Float32Array {
    const found = Float32Array.from(this.#maxima.list(`${layer}.${linear}`), Number);
    if (found.length === channels && found.every((most) => most >= 0 && Number.isFinite(most))) return found;
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${this.#maxima.where}: "${layer}.${linear}" should be ${channels} numbers ≥ 0`,
      { where: this.#maxima.where },
    );
  }
}

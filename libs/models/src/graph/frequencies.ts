// Frequencies of turned queries and keys, and their cosines and sines by place. Each step is rounded to fp32 where torch
// rounds it in transformers 5.24 (modeling_rope_utils.py): at place 8,000 one bit of a frequency is 5e-4 of an angle.

import type { AngleScaling } from '../encoder/encoder-description.ts';

const { fround } = Math;

/** Frequencies [half], in radians a token, of a head of 2 × half values. */
export function frequenciesOf(theta: number, half: number, scaling: AngleScaling | undefined): Float32Array {
  const powers = Float32Array.from({ length: half }, (_, at) => fround(theta) ** fround(at / half));
  const plain = powers.map((power) => 1 / power);
  switch (scaling?.kind) {
    case undefined:
      return plain;
    case 'divided':
      return plain.map((frequency) => frequency / fround(scaling.factor));
    case 'llama3':
      return plain.map((frequency) => llama3Frequency(frequency, scaling));
    case 'yarn':
      return yarnFrequencies(theta, powers, scaling);
  }
}

/** What cosines and sines are multiplied by. */
function magnitudeOf(scaling: AngleScaling | undefined): number {
  return scaling?.kind === 'yarn' ? fround(scaling.magnitude) : 1;
}

/** `of` (a cosine or a sine) of the angle at each place for each frequency: [places, half]. */
export function turnTable(
  frequencies: Float32Array,
  places: number,
  of: (angle: number) => number,
  scaling: AngleScaling | undefined,
): Float32Array {
  const [half, magnitude] = [frequencies.length, magnitudeOf(scaling)];
  return Float32Array.from({ length: places * half }, (_, at) => {
    const angle = fround(Math.floor(at / half) * frequencies[at % half]!);
    return fround(of(angle)) * magnitude;
  });
}

type ScalingOf<Kind extends AngleScaling['kind']> = Extract<AngleScaling, { kind: Kind }>;

function llama3Frequency(frequency: number, scaling: ScalingOf<'llama3'>): number {
  const { factor, lowTurns, highTurns, trainedRows } = scaling;
  // torch divides a number by a tensor as the number times the tensor's reciprocal
  const wave = fround(fround(1 / frequency) * fround(2 * Math.PI));
  const divided = fround(frequency / fround(factor));
  if (wave > fround(trainedRows / lowTurns)) return divided;
  if (wave < fround(trainedRows / highTurns)) return frequency;
  const turns = fround(fround(1 / wave) * fround(trainedRows));
  const kept = fround(fround(turns - fround(lowTurns)) / fround(highTurns - lowTurns));
  const slow = fround(fround(fround(1 - kept) * frequency) / fround(factor));
  return fround(slow + fround(kept * frequency));
}

function yarnFrequencies(theta: number, powers: Float32Array, scaling: ScalingOf<'yarn'>): Float32Array {
  const [low, high] = rampOf(theta, 2 * powers.length, scaling);
  return powers.map((power, at) => {
    const [fast, slow] = [fround(1 / power), fround(1 / fround(fround(scaling.factor) * power))];
    const ramp = fround(fround(at - fround(low)) / fround(high - low));
    const kept = fround(1 - Math.min(Math.max(ramp, 0), 1));
    return fround(slow * fround(1 - kept)) + fround(fast * kept);
  });
}

/** Between which places of a head of this size values go from fast to slow. */
function rampOf(
  theta: number,
  headSize: number,
  { fastTurns, slowTurns, trainedRows, isRampWhole }: ScalingOf<'yarn'>,
): readonly [low: number, high: number] {
  const place = (turns: number): number =>
    (headSize * Math.log(trainedRows / (turns * 2 * Math.PI))) / (2 * Math.log(theta));
  const [first, last] = [place(fastTurns), place(slowTurns)];
  const low = Math.max(isRampWhole ? Math.floor(first) : first, 0);
  const high = Math.min(isRampWhole ? Math.ceil(last) : last, headSize - 1);
  return [low, low === high ? high + 0.001 : high];
}

// Frequencies against torch: libs/models/fixtures/frequencies.json has their bits as transformers 5.24 computes them.

import { readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { CheckedJson } from '../checked-json.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import { frequenciesOf, turnTable } from './frequencies.ts';

interface TorchFrequencies {
  readonly config: { readonly rope_parameters: object };
  readonly magnitude: number;
  /** Bits of fp32. */
  readonly frequencies: readonly number[];
}

const FIXTURE = new URL('../../fixtures/frequencies.json', import.meta.url);
const cases = JSON.parse(await readFile(FIXTURE, 'utf8')) as readonly TorchFrequencies[];

/** The last bit of a power is another one on other processors, and what is computed from it moves by as much. */
const MOST_ULPS = 2;

test.each(cases.map((torch) => [JSON.stringify(torch.config.rope_parameters), torch] as const))(
  'frequencies of %s',
  (_, { config, magnitude, frequencies }) => {
    const { attentionPositions, headSize } = describeEncoder(CheckedJson.of(config, 'config.json'));
    if (attentionPositions.kind !== 'rope') throw new TypeError('queries and keys are turned');
    const { thetas, scalings } = attentionPositions;
    const half = headSize / 2;
    const found = frequenciesOf(thetas[0]!, half, scalings[0]);
    const bits = [...new Uint32Array(found.buffer)];
    expect(bits).toHaveLength(frequencies.length);
    const apart = bits.map((value, at) => Math.abs(value - frequencies[at]!));
    expect(Math.max(...apart)).toBeLessThanOrEqual(MOST_ULPS);
    const [cosine] = turnTable(found, 1, Math.cos, scalings[0]);
    expect(cosine).toBe(Math.fround(magnitude));
  },
);

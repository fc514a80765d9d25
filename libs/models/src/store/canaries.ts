// One text whose ids and vector are known for a model: what a device gives for it, before it serves, has to be that.
// Those of the models that Shoal knows are frozen in canaries/canaries.json (minilm's from sentence-transformers, see
// fixtures/README.md); that of an imported model is computed once, at its import, and stands in its import.json.

import { readFileSync } from 'node:fs';
import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';

/** Words, a capital, digits and a sign beyond ASCII; one of fixtures/texts.json, whose vectors others computed. */
export const CANARY_TEXT = 'Preheat the oven to 200 °C, grease the tin, and whisk three';

export interface Canary {
  /** Of the text, as the model takes them: special tokens in. */
  readonly ids: readonly number[];
  /** Of length 1. */
  readonly vector: Float32Array;
}

const FILE = new URL('../../canaries/canaries.json', import.meta.url);
let known: CheckedJson | undefined;

/** Undefined for another revision than the one it was computed with. */
export function knownCanary(name: string, revision: string): Canary | undefined {
  known ??= CheckedJson.parse(readFileSync(FILE, 'utf8'), FILE.pathname);
  const key = `${name}@${revision}`;
  return known.has(key) ? parseCanary(known.object(key)) : undefined;
}

export function parseCanary(json: CheckedJson): Canary {
  const bytes = Buffer.from(json.string('vector'), 'base64');
  if (bytes.length === 0 || bytes.length % 4 !== 0)
    throw new ShoalError('MODEL_CORRUPT', `${json.where}: "vector" is no list of 32-bit floats`, { where: json.where });
  return { ids: json.integers('ids'), vector: new Float32Array(Uint8Array.from(bytes).buffer) };
}

/** As it is written: floats to the bit. */
export function canaryText({ ids, vector }: Canary): { readonly ids: readonly number[]; readonly vector: string } {
  return { ids, vector: Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64') };
}

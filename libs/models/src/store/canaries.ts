// One text whose ids and vector are known for a model: what a device gives for it, before it serves, has to be that.
// Those of the models that Shoal knows are frozen in canaries/canaries.json (minilm's from sentence-transformers, see
// fixtures/README.md); that of an imported model is computed once, at its import, and stands in its import.json.

import { readFileSync } from 'node:fs';
import { ShoalError } from '@shoal/contract';
import type { Encoded, Tokenizer } from '@shoal/core';
import { CheckedJson } from '../checked-json.ts';
import { encodePairs } from '../tokenizer/open-tokenizer.ts';
import type { StoredModel } from './stored-model.ts';

/** Words, a capital, digits and a sign beyond ASCII; one of fixtures/texts.json, whose vectors others computed. */
export const CANARY_TEXT = 'Preheat the oven to 200 °C, grease the tin, and whisk three';

export interface Canary {
  /** Of the text, or of query and text, as the model takes them: special tokens in. */
  readonly ids: readonly number[];
  /** Of a reranker: at which id the text begins. */
  readonly second?: number | undefined;
  /** Of length 1, of a model that normalizes; of a reranker its one score. */
  readonly vector: Float32Array;
}

/** What the known text is weighed against by a reranker. */
export const CANARY_QUERY = 'How hot should the oven be for this cake?';

/** The row of the known text, and of a reranker that of the query with it. */
export function encodeCanary(
  { kind }: Pick<StoredModel, 'kind'>,
  tokenizer: Pick<Tokenizer, 'encode' | 'encodePair'>,
): Encoded & { readonly second?: number } {
  return kind === 'reranker' ? encodePairs(tokenizer, CANARY_QUERY, [CANARY_TEXT])[0]! : tokenizer.encode(CANARY_TEXT);
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
  const second = json.has('second') ? { second: json.integer('second') } : {};
  return { ids: json.integers('ids'), ...second, vector: new Float32Array(Uint8Array.from(bytes).buffer) };
}

/** As it is written: floats to the bit. */
export function canaryText({ vector, ...row }: Canary): Omit<Canary, 'vector'> & { readonly vector: string } {
  return { ...row, vector: Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64') };
}

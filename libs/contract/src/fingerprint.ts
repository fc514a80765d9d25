// The identity of what a job asks for: the same id with the same fingerprint is the same request again, with another it
// is a conflict. Made alike by producers and workers, so that either side can tell.

import { createHash } from 'node:crypto';
import { invariant } from './invariant.ts';
import type { OutputOptions } from './embed-job.ts';
import { encodeComparands, type Comparands } from './vectors-format.ts';
import type { SeedSet, SimilarityRequest } from './similarity-job.ts';

export interface FingerprintFacts {
  /** name@revision of the model. */
  readonly model: string;
  readonly prompt: string | undefined;
  readonly truncate: 'end' | 'error';
  readonly output: OutputOptions;
}

/**
 * First 16 hex digits of sha256 over one line of JSON and the input as SHI1 bytes:
 * `["minilm@53aa51172d14",null,"end","f32",null]\n` ‖ SHI1. Inline texts count as the SHI1 form 0 of themselves. Of a job
 * that asks for length 1 (`normalize`) the list ends with "normalize".
 */
export function fingerprintOf(facts: FingerprintFacts, input: Uint8Array): string {
  const { model, prompt, truncate, output } = facts;
  const { dtype, dimensions = null, normalize = false } = output;
  const head = JSON.stringify([
    model,
    prompt ?? null,
    truncate,
    dtype,
    dimensions,
    ...(normalize ? ['normalize'] : []),
  ]);
  return createHash('sha256').update(`${head}\n`).update(input).digest('hex').slice(0, 16);
}

/**
 * The same of a rerank job: `["rerank","bge-reranker@8c2f9a417d03","end"]\n` ‖ SHI1. A query and texts inside the job
 * count as the SHI1 form 3 of themselves.
 */
export function rerankFingerprint(facts: Pick<FingerprintFacts, 'model' | 'truncate'>, input: Uint8Array): string {
  const head = JSON.stringify(['rerank', facts.model, facts.truncate]);
  return createHash('sha256').update(`${head}\n`).update(input).digest('hex').slice(0, 16);
}

/**
 * The same of a similarity job: sha256 over one line of JSON and what is compared, as SHQ1 bytes:
 * `["topk","docs@3","cosine",10]\n` ‖ SHQ1. Of a spread: `["spread","links",3,0.5,0,10,[[7],[1,2]]]\n`, seeds at the
 * end. `encoded`: the SHQ1 bytes, where they are at hand.
 */
export function similarityFingerprint(
  request: SimilarityRequest,
  compared: Comparands | readonly SeedSet[],
  encoded?: Uint8Array,
): string {
  const hash = createHash('sha256');
  if (request.kind === 'spread') {
    const { kind, graph, steps, decay, threshold, k } = request;
    return hash
      .update(`${JSON.stringify([kind, graph, steps, decay, threshold, k, compared])}\n`)
      .digest('hex')
      .slice(0, 16);
  }
  invariant('queries' in compared, 'only a spread begins at seeds');
  const { kind, collection = null, metric } = request;
  const size = 'k' in request ? request.k : compared.queries.rows;
  const isNamed = 'names' in request && request.names === true;
  const head = JSON.stringify([kind, collection, metric, size, ...(isNamed ? ['names'] : [])]);
  return hash
    .update(`${head}\n`)
    .update(encoded ?? encodeComparands(compared))
    .digest('hex')
    .slice(0, 16);
}

/** `tokenizer` of a job with token ids: first 16 hex digits of sha256 of the bytes of tokenizer.json. */
export function tokenizerHash(tokenizerJson: Uint8Array): string {
  return createHash('sha256').update(tokenizerJson).digest('hex').slice(0, 16);
}

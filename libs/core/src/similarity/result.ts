// What a similarity job gives back: its result (SHL1) and its return value. Pure.

import { encodeResult, invariant, MAX_RESULT_BYTES, type ResultHeader, type SimilarityReturn } from '@shoal/contract';
import type { SimilarityOrder } from '../protocol.ts';
import type { DeviceUse, SimilarityDevice } from './device.ts';
import type { Searched, Work } from './fill.ts';
import type { Computed } from './run.ts';

/**
 * Hits of one run, all queries together: the kernels hold up to 76 bytes for each while they run (workBytes in
 * libs/similarity).
 */
const MAX_HITS = 1 << 20;

/** Most rows of one run that begins with this job: its result may not become too large, nor its hits too many. */
export function mostRows(
  { order: { request }, work }: { readonly order: SimilarityOrder; readonly work: Work },
  maxRows: number,
): number {
  if (request.kind !== 'cosine') return Math.min(maxRows, Math.floor(MAX_HITS / request.k));
  return work.kind === 'rows' ? Math.min(maxRows, Math.floor(MAX_RESULT_BYTES / 4 / work.collection.source.rows)) : 1;
}

/** Which rows a job is compared with; undefined where it names no collection. */
export function searchedBy(work: Work): Searched | undefined {
  if (work.kind !== 'rows') return undefined;
  const { name, model } = work.collection.source;
  return { collection: name, model };
}

/** Header and body (SHL1). */
export function similarityResult(
  { fingerprint, rows }: { readonly fingerprint: string; readonly rows: number },
  result: Extract<Computed, { ok: true }> | undefined,
): Buffer {
  invariant(result !== undefined, 'what is committed has been computed');
  const { dtype, dims, body } = result;
  return encodeResult({ dtype, rows, dims, fingerprint, isTruncated: false }, body);
}

/** What a completed job returns; `ran`: how it was computed, of a result that was there before nothing. */
export function similarityValue(
  { device, resultKey }: { readonly device: SimilarityDevice; readonly resultKey: (resultId: string) => string },
  { jobId, resultId = jobId, queuedMs, rows, request }: SimilarityOrder,
  { dtype, dims }: Pick<ResultHeader, 'dtype' | 'dims'>,
  {
    splits,
    runMs,
    use,
    searched,
  }: {
    readonly splits: number;
    readonly runMs: number;
    readonly use: DeviceUse | undefined;
    readonly searched: Searched | undefined;
  },
): SimilarityReturn {
  const collection = request.kind === 'spread' ? request.graph : searched?.collection;
  return {
    v: 1,
    key: resultKey(resultId),
    kind: request.kind,
    ...(collection === undefined ? {} : { collection }),
    ...(searched?.model === undefined ? {} : { model: searched.model }),
    rows,
    dims,
    dtype: dtype === 'ranking' ? 'ranking' : 'f32',
    device: use?.device ?? device.device,
    ...(use?.fellBack === undefined ? {} : { fellBack: use.fellBack }),
    splits,
    ms: { queued: Math.round(queuedMs), run: Math.round(runMs) },
  };
}

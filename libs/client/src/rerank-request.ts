// Turns a query and some texts into one rerank job: both travel as text, inside the job where they are small, and the
// worker tokenizes. Checks by the format's own schema before anything is sent.

import { checkJobId, encodeQueryTexts, parseRerankJob, rerankFingerprint, type RerankJobData } from '@shoal/contract';
import { MAX_INLINE_TEXT_BYTES, termFieldsOf, type CallTerms, type RowsRequest } from './job-request.ts';

/** Throws JOB_INVALID for an id or terms that cannot be. `texts`: 1 to 1,024. */
export function rerankRequest(jobId: string, query: string, texts: readonly string[], terms: CallTerms): RowsRequest {
  checkJobId(jobId);
  const input = encodeQueryTexts(query, texts);
  const isInline = input.length <= MAX_INLINE_TEXT_BYTES;
  const fingerprint = rerankFingerprint(terms, input);
  const data: RerankJobData = {
    v: 2,
    fingerprint,
    ...termFieldsOf(terms),
    ...(isInline ? { query, texts: [...texts] } : { input: { form: 'texts', rows: texts.length } }),
  };
  const parsed = parseRerankJob(jobId, 'rerank', data);
  return {
    jobId,
    requestId: terms.requestId,
    rows: texts.length,
    fingerprint,
    job: { jobId, name: 'rerank', data, input: isInline ? undefined : input, parsed },
    tokens: undefined,
    truncated: undefined,
  };
}

// What whoever speaks to Shoal needs and nothing more: job and binary formats, key names, error codes. It imports no
// package of the workspace, so a producer that loads it loads no engine.

export {
  ERROR_CODES,
  type ErrorCode,
  failedReason,
  type Failure,
  isShoalError,
  parseFailedReason,
  ShoalError,
  toFailure,
} from './errors.ts';
export { invariant, unreachable } from './invariant.ts';
export {
  checkJobId,
  checkQueuedJobId,
  cpuLaneOf,
  cpuQueue,
  DEFAULT_PREFIX,
  isGeneratedJobId,
  isReservedJobId,
  JOB_KEY_PARTS,
  keySpace,
  type KeySpace,
  mainQueue,
  type ModelKind,
  modelSlug,
  QUEUE_KEY_NAMES,
  queueOf,
  REPLY_CHANNEL,
  rerankQueue,
  resultIdOf,
  SIMILARITY_CPU_QUEUE,
  SIMILARITY_QUEUE,
} from './keys.ts';
export { type Lane } from './lanes.ts';
export {
  NO_PROMPT,
  askablePrompts,
  hasPrompts,
  missingPrompt,
  notAskable,
  promptText,
  sidePrompt,
  type Prompts,
} from './prompts.ts';
export {
  DEFAULT_TENANT,
  INTERACTIVE_ROWS,
  type JobTerms,
  LIVE_RESULT_TTL_MS,
  MAX_INLINE_BYTES,
  MAX_META_BYTES,
  MAX_ROWS_PER_JOB,
  type Meta,
  ROWS_EVERY_WORKER_TAKES,
  SUBMITTED_RESULT_TTL_MS,
  needsInputKey,
} from './job-terms.ts';
export {
  EMBED_JOB_VERSIONS,
  type EmbedJob,
  type EmbedJobData,
  type EmbedReturn,
  type JobInput,
  MAX_RETURNED_BYTES,
  MAX_RETURNED_ROWS,
  type OutputDtype,
  type OutputOptions,
  parseJob,
} from './embed-job.ts';
export {
  activationOf,
  checkValues,
  dimensionsMismatch,
  dimsOf,
  isSimilarityKind,
  MAX_DIMS,
  MAX_RESULT_BYTES,
  nodeOf,
  parseSimilarityJob,
  resultTooLarge,
  rowsOf,
  searchedIn,
  type Seed,
  type SeedSet,
  SIMILARITY_JOB_VERSIONS,
  SIMILARITY_KINDS,
  type SimilarityInput,
  type SimilarityJob,
  type SimilarityJobData,
  type SimilarityKind,
  type SimilarityMetric,
  type SimilarityRequest,
  type SimilarityReturn,
  type VectorInput,
} from './similarity-job.ts';
export { jobSchema, jobSchemaFile } from './job-schema.ts';
export { parseRerankJob, type RerankInput, type RerankJob, type RerankJobData } from './rerank-job.ts';
export {
  MAX_PARTS,
  MAX_ROWS_PER_PART,
  type Part,
  PART_JOB,
  partCheckpoint,
  partFingerprint,
  partId,
  type PartJob,
  type PartJobData,
  partJobData,
  partName,
  type PartOutput,
  type PartRange,
  partRows,
  parsePart,
  type PartSource,
  partsQueue,
  partTemporary,
  runId,
} from './part.ts';
export {
  decodePartResult,
  decodeRunEntry,
  encodePartResult,
  encodeRunEntry,
  manifestName,
  manifestOf,
  MAX_TOLD_REFUSALS,
  type PartResult,
  RUN_TTL_MS,
  type RunEntry,
} from './part-result.ts';
export { isWithin, nameOfSource, placesOf } from './part-places.ts';
export { isSameModel, storedName } from './model-name.ts';
export { type HandOver, type JobReturn } from './job-return.ts';
export { mainTenant, MAX_USER_CHARACTERS, userTenant } from './tenants.ts';
export { readableTrace, REQUEST_ID, requestIdIn, type Trace, traceField } from './trace.ts';
export {
  type DecodedInput,
  decodeInput,
  encodeTexts,
  encodeTokens,
  hasAtLeast,
  type TokenIds,
} from './input-format.ts';
export { type DecodedPairs, decodePairs, encodePairs, encodeQueryTexts, type TokenPair } from './pairs-format.ts';
export {
  type Comparands,
  decodeComparands,
  encodeComparands,
  firstIncomparable,
  type Matrix,
  MAX_VALUE,
} from './vectors-format.ts';
export {
  bodyBytes,
  decodeRankings,
  encodeRankings,
  encodeResult,
  openResult,
  type Ranking,
  bufferForBody,
} from './result-format.ts';
export {
  RESULT_FLAG,
  RESULT_HEADER_BYTES,
  decodeResultHeader,
  type ResultDtype,
  type ResultHeader,
} from './result-header.ts';
export { decodePointer, elsewhere, encodePointer, type ResultPointer } from './result-pointer.ts';
export { lost, pointedResult } from './pointed-result.ts';
export { encodeBody } from './output-encoding.ts';
export { fromHalves, toHalves, type ToHalves } from './half.ts';
export {
  type FingerprintFacts,
  fingerprintOf,
  rerankFingerprint,
  similarityFingerprint,
  tokenizerHash,
} from './fingerprint.ts';
export {
  ADVISED_SERVERS,
  isBelowAdvised,
  isOlder,
  isTooOld,
  OLDEST_REDIS,
  series,
  type ServerName,
} from './server-versions.ts';

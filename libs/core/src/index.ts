export { invariant, unreachable } from './invariant.ts';
export {
  ERROR_CODES,
  ShoalError,
  failedReason,
  isShoalError,
  parseFailedReason,
  toFailure,
  type ErrorCode,
  type Failure,
} from './errors.ts';
export {
  DEFAULT_PREFIX,
  REPLY_CHANNEL,
  SIMILARITY_CPU_QUEUE,
  SIMILARITY_QUEUE,
  checkJobId,
  cpuLaneOf,
  cpuQueue,
  keySpace,
  mainQueue,
  modelSlug,
  type KeySpace,
} from './keys.ts';
export {
  INTERACTIVE_ROWS,
  LIVE_RESULT_TTL_MS,
  MAX_INLINE_BYTES,
  MAX_ROWS_PER_JOB,
  SUBMITTED_RESULT_TTL_MS,
  type JobTerms,
} from './job-terms.ts';
export {
  parseJob,
  type EmbedJob,
  type EmbedJobData,
  type EmbedReturn,
  type JobInput,
  type OutputDtype,
  type OutputOptions,
} from './job-schema.ts';
export {
  decodeInput,
  encodeTexts,
  encodeTokens,
  hasAtLeast,
  type DecodedInput,
  type RoomFor,
  type TokenIds,
} from './input-format.ts';
export {
  BodyRooms,
  RESULT_FLAG,
  RESULT_HEADER_BYTES,
  SMALLEST_KEPT_BYTES,
  bodyBytes,
  decodeRankings,
  decodeResultHeader,
  encodeRankings,
  encodeResult,
  openResult,
  type Ranking,
  type ResultDtype,
  type ResultHeader,
} from './result-format.ts';
export { fingerprintOf, similarityFingerprint, tokenizerHash, type FingerprintFacts } from './fingerprint.ts';
export { cacheFolder } from './cache-folder.ts';
export {
  environmentName,
  flagName,
  redactSettings,
  resolveSettings,
  settingValues,
  settingsSchema,
  sizesOf,
  type SettingKey,
  type SettingSources,
  type Settings,
  type Sizes,
} from './config.ts';
export type {
  AnyOrder,
  FromExecutor,
  JobOrder,
  JobOutcome,
  JobReturn,
  SimilarityOrder,
  ToExecutor,
} from './protocol.ts';
export { readEmbedJob, readSimilarityJob, type QueuedJob, type ReadJob } from './queued-job.ts';
export {
  MAX_RESULT_BYTES,
  SIMILARITY_KINDS,
  activationOf,
  isSimilarityKind,
  nodeOf,
  parseSimilarityJob,
  type Seed,
  type SeedSet,
  type SimilarityInput,
  type SimilarityJob,
  type SimilarityJobData,
  type SimilarityKind,
  type SimilarityMetric,
  type SimilarityRequest,
  type SimilarityReturn,
  type VectorInput,
} from './similarity-schema.ts';
export {
  MAX_VALUE,
  decodeComparands,
  encodeComparands,
  firstIncomparable,
  type Comparands,
  type Matrix,
} from './similarity-input.ts';
export type {
  Announcement,
  Announcer,
  BatchTokenizer,
  Clock,
  CommitRequest,
  CommitResult,
  Encoded,
  ExecutorLink,
  InferenceBackend,
  MemoryReading,
  RunShape,
  RunOptions,
  BatchBudget,
  BudgetState,
  HandOver,
  InputRead,
  JobSource,
  Logger,
  KnownEnding,
  Lane,
  MemoryProbe,
  Metrics,
  PayloadStore,
  Precision,
  RawClaim,
  RunResult,
  SettleResult,
  SettledJob,
  Settlement,
  Slot,
  SweepFindings,
  Tokenizer,
} from './ports.ts';
export { systemClock } from './clock.ts';
export {
  LANE_REASONS,
  chooseLane,
  type Hybrid,
  type LaneChoice,
  type LaneReason,
  type LaneView,
} from './lane-choice.ts';
export {
  LENGTH_CLASSES,
  LoadMeter,
  type ByLength,
  type LengthClass,
  type WorkerFacts,
  type WorkerLoad,
} from './worker-facts.ts';
export { noLog } from './no-log.ts';
export { noMetrics } from './metrics.ts';
export { LEAD_TOKENS } from './flows.ts';
export { fewRowsAtMost, fewWidths } from './run-shapes.ts';
export { KEPT_SLOTS, rowsWithin } from './slots.ts';
export { newSlots } from './slot-buffers.ts';
export { Pool, batchOf, halve, type CutLimits, type MicroBatch, type PoolRow } from './pool.ts';
export { encodeBody } from './output-encoding.ts';
export { fromHalves, toHalves, type ToHalves } from './half.ts';
export { faultPointsFrom, noFaults, type FaultPoint, type FaultPoints } from './fault-points.ts';
export { fixedBudget, type FixedLimits } from './fixed-budget.ts';
export { Executor, type ExecutorLimits, type ExecutorParts } from './executor.ts';
export { SimilarityExecutor, type SimilarityExecutorParts } from './similarity-executor.ts';
export {
  RunTimes,
  SIDES,
  decodeBreakEvenProfile,
  encodeBreakEvenProfile,
  type BreakEven,
  type BreakEvenProfile,
  type Side,
  type TimeTables,
  type TimedSize,
} from './break-even.ts';
export type { LedgerFacts, SimilarityFacts } from './similarity-facts.ts';
export { Residents, type Resident } from './residents.ts';
export type {
  DeviceUse,
  Fitted,
  GraphSource,
  Held,
  HeldGraph,
  HeldRows,
  RankOptions,
  RowSource,
  SimilarityDevice,
  SpreadTerms,
} from './similarity-device.ts';
export { Pipeline, type PipelineLimits, type PipelineParts } from './pipeline.ts';
export { settingsPage } from './settings-page.ts';
export { lowerQuartile, median } from './median.ts';
export { risingZero } from './rising-zero.ts';
export {
  MOST_HELD,
  fitMemoryModel,
  fitShapes,
  footprintBytes,
  lawOfSessions,
  liveBytes,
  memoryLawSchema,
  type MemoryLaw,
  type MemoryPoint,
} from './memory-model.ts';
export {
  decodeDeviceProfile,
  deviceProfileSchema,
  encodeDeviceProfile,
  type DeviceProfile,
  type DeviceProfileKey,
  type ReadProfile,
} from './device-profile.ts';
export {
  createBudget,
  DEFAULT_LATENCY_TARGET_MS,
  DEFAULT_MEMORY_FRACTION,
  type Budget,
  type BudgetOptions,
  type LearnedBudget,
} from './budget.ts';
export { RunTimeModel, type RunTimeLaw } from './run-time-model.ts';
export { presetFor, type ModelSizes, type Preset, type PresetQuestion } from './presets.ts';

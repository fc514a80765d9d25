export { cacheFolder } from './settings/cache-folder.ts';
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
} from './settings/config.ts';
export type { AnyOrder, FromExecutor, JobOrder, JobOutcome, SimilarityOrder, ToExecutor } from './protocol.ts';
export { readEmbedJob, readSimilarityJob, type QueuedJob, type ReadJob } from './claimer/queued-job.ts';
export type {
  Announcement,
  Announcer,
  JobSource,
  KnownEnding,
  RawClaim,
  SettleResult,
  Settlement,
} from './ports/queue.ts';
export type { BatchTokenizer, Encoded, Tokenizer } from './ports/tokenizer.ts';
export { type Clock, systemClock } from './ports/clock.ts';
export type { CommitRequest, CommitResult, InputRead, PayloadStore } from './ports/payload.ts';
export type { ExecutorLink } from './ports/link.ts';
export type {
  InferenceBackend,
  MemoryReading,
  RunShape,
  RunOptions,
  BatchBudget,
  BudgetState,
  MemoryProbe,
  Precision,
  RunResult,
  Slot,
} from './ports/device.ts';
export { type Logger, noLog } from './ports/logger.ts';
export { type Metrics, type SettledJob, type SweepFindings, noMetrics } from './ports/metrics.ts';
export {
  LANE_REASONS,
  chooseLane,
  type Hybrid,
  type LaneChoice,
  type LaneReason,
  type LaneView,
} from './claimer/lane-choice.ts';
export {
  LENGTH_CLASSES,
  LoadMeter,
  type ByLength,
  type LengthClass,
  type WorkerFacts,
  type WorkerLoad,
} from './claimer/worker-facts.ts';
export { LEAD_TOKENS } from './executor/fair-share.ts';
export { fewRowsAtMost, fewWidths } from './executor/run-shapes.ts';
export { KEPT_SLOTS, rowsWithin } from './executor/slots.ts';
export { newSlots } from './executor/slot-buffers.ts';
export type { PoolRow } from './executor/buckets.ts';
export type { CutLimits } from './executor/cut-plan.ts';
export { Pool, batchOf, halve, type MicroBatch } from './executor/pool.ts';
export { faultPointsFrom, noFaults, type FaultPoint, type FaultPoints } from './base/fault-points.ts';
export { fixedBudget, type FixedLimits } from './budget/fixed-budget.ts';
export { Executor, type ExecutorLimits, type ExecutorParts } from './executor/executor.ts';
export { SimilarityExecutor, type SimilarityExecutorParts } from './similarity/executor.ts';
export {
  SIDES,
  Thresholds,
  decodeThresholdProfile,
  encodeThresholdProfile,
  type MeasuredThresholds,
  type Side,
  type Threshold,
  type ThresholdProfile,
} from './similarity/thresholds.ts';
export type { LedgerFacts, SimilarityFacts } from './similarity/facts.ts';
export { Residents, type Resident } from './similarity/ledger.ts';
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
} from './similarity/device.ts';
export { Pipeline, type PipelineLimits, type PipelineParts } from './claimer/pipeline.ts';
export { settingsPage } from './settings/settings-page.ts';
export { lowerQuartile, median } from './base/median.ts';
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
} from './budget/memory-model.ts';
export {
  decodeDeviceProfile,
  deviceProfileSchema,
  encodeDeviceProfile,
  type DeviceProfile,
  type DeviceProfileKey,
  type ReadProfile,
} from './budget/device-profile.ts';
export {
  createBudget,
  DEFAULT_LATENCY_TARGET_MS,
  DEFAULT_MEMORY_FRACTION,
  type Budget,
  type BudgetOptions,
  type LearnedBudget,
} from './budget/budget.ts';
export { RunTimeModel, type RunTimeLaw } from './budget/run-time-model.ts';
export { presetFor, type ModelSizes, type Preset, type PresetQuestion } from './budget/presets.ts';

export {
  DASHBOARD_SCOPES,
  DEFAULT_SCOPES,
  MASTER_KEY_VARIABLE,
  SCOPES,
  apiKeyId,
  digestOf,
  isDigestOf,
  makeApiKey,
  readApiKey,
  type ApiKey,
  type KeyLimits,
  type NewApiKey,
  type Scope,
} from './access/api-key.ts';
export { cacheFolder, storeFolders, type StoreFolders } from './settings/cache-folder.ts';
export {
  droppedVariables,
  strayVariables,
  environmentName,
  flagName,
  redactSettings,
  resolveSettings,
  saidOfFolder,
  servedModels,
  settingValues,
  type SettingSources,
} from './settings/config.ts';
export { settingsSchema, type Settings } from './settings/schema.ts';
export { redactMessage, redactText, redactUrl } from './settings/redact-url.ts';
export {
  cellsFile,
  cellsIn,
  checkCells,
  homeCell,
  placeOfCell,
  readCells,
  unreadable,
  withHome,
  type Cell,
  type ListedCell,
} from './settings/cells.ts';
export { sizesOf } from './settings/sizes.ts';
export type {
  AnyOrder,
  FromExecutor,
  JobOrder,
  JobOutcome,
  PartOrder,
  SimilarityOrder,
  ToExecutor,
} from './protocol.ts';
export { READ_JOBS, readRerankJob, readSimilarityJob } from './claimer/queued-job.ts';
export {
  CANCELLED_WHILE_CLAIMED,
  type Announcement,
  type Announcer,
  type JobSource,
  type KnownEnding,
  type OtherCell,
  type RawClaim,
  type SettleResult,
  type Settlement,
} from './ports/queue.ts';
export type { BatchTokenizer, Encoded, EncodedPair, Tokenizer } from './ports/tokenizer.ts';
export { type Clock, systemClock } from './ports/clock.ts';
export type { CommitRequest, CommitResult, InputRead, PayloadStore, WantedPayload } from './ports/payload.ts';
export type { ExecutorLink } from './ports/link.ts';
export type { MemoryPlan, MemoryPlanOf, MemoryProbe } from './ports/memory-plan.ts';
export type {
  InferenceBackend,
  MemoryReading,
  RunShape,
  RunOptions,
  BatchBudget,
  Precision,
  RunResult,
  Slot,
} from './ports/device.ts';
export { type Logger, noLog } from './ports/logger.ts';
export {
  noTracer,
  type Span,
  type SpanFacts,
  type SpanOptions,
  type TraceContext,
  type Tracer,
} from './ports/tracer.ts';
export type { Traced } from './claimer/job-spans.ts';
export {
  LOSS_REASONS,
  SPLIT_CODES,
  STAGES,
  noMetrics,
  type LossReason,
  type Metrics,
  type SplitCode,
  type Stage,
  type SweepFindings,
} from './ports/metrics.ts';
export { LANE_REASONS, chooseLane, type Hybrid, type LaneChoice } from './claimer/lane-choice.ts';
export { LoadMeter } from './claimer/load-meter.ts';
export {
  LENGTH_CLASSES,
  type ByLength,
  type CardFacts,
  type LengthClass,
  type BodyCounts,
  type PayloadServerFacts,
  type WorkerFacts,
  type WorkerLoad,
} from './fleet/worker-facts.ts';
export {
  HISTORY_EVENTS,
  HistoryMeter,
  type HistoryEvent,
  type HistoryStep,
  type RanBatch,
} from './fleet/worker-history.ts';
export {
  WORKER_STATES,
  standingOf,
  type StandingSeen,
  type WorkerStanding,
  type WorkerState,
} from './fleet/worker-state.ts';
export { LEAD_TOKENS } from './executor/fair-share.ts';
export { fewRowsAtMost, fewWidths } from './executor/run-shapes.ts';
export { KEPT_SLOTS, rowsWithin } from './executor/slots.ts';
export { newSlots } from './executor/slot-buffers.ts';
export { Pool } from './executor/pool.ts';
export { fixedBudget } from './budget/fixed-budget.ts';
export { Executor } from './executor/executor.ts';
export { Pipeline } from './claimer/pipeline.ts';
export {
  fitMemoryModel,
  fitShapes,
  lawOfSessions,
  liveBytes,
  type MemoryLaw,
  type MemoryPoint,
} from './budget/memory-model.ts';
export {
  decodeDeviceProfile,
  encodeDeviceProfile,
  type DeviceProfile,
  type DeviceProfileKey,
} from './budget/device-profile.ts';
export { createBudget, type Budget, type BudgetOptions, type LearnedBudget } from './budget/budget.ts';
export { presetFor, type ModelSizes, type Preset } from './budget/presets.ts';

export {
  Admission,
  DEFAULT_LIMITS,
  admissionRefused,
  readAdmission,
  recountAdmission,
  releaseAdmission,
  type AdmissionLimits,
  type AdmissionLoad,
  type RecountOptions,
} from './admission/admission.ts';
export { AccessLink, type AccessLinkOptions } from './access/access-link.ts';
export { FileApiKeys, type ApiKeyStore } from './access/api-key-store.ts';
export type { Allowance, LimitedKey, Use } from './access/key-allowance.ts';
export {
  BoardQueues,
  UNREADABLE_JOB,
  type BoardJob,
  type BoardQueue,
  type BoardQueuesOptions,
} from './upkeep/board-queues.ts';
export { QueueLook, whyOfJob, type JobAnswer, type QueueLookOptions } from './look/queue-look.ts';
export { bucketOutputs, type BucketOutput } from './look/part-outputs.ts';
export { readTenants, type TenantLoad, type Tenants } from './look/tenants.ts';
export { whyJob, whyUnknown, type JobSighting, type SightedState, type SeenWorker } from './look/why-job.ts';
export { knownQueues, mainLanes } from './lanes/known-queues.ts';
export { orderWaiting, type FairOrderOptions, type WaitingOrder } from './worker/fair-order.ts';
export { notedQueues } from './lanes/noted-queues.ts';
export { parkedJobs, totalOf, type ParkedJobs } from './worker/parking.ts';
export { RedisAnnouncer, type AnnouncerOptions } from './worker/announcer.ts';
export {
  AuditLog,
  whoIsHere,
  writeAudit,
  type AuditEntry,
  type AuditLogOptions,
  type AuditQuestion,
  type NewAuditEntry,
} from './audit/audit-log.ts';
export { BullJobSource } from './worker/bull-job-source.ts';
export type { BullJobSourceOptions } from './worker/source-parts.ts';
export { BULLMQ_VERSION, openTransaction, queueAdd, type QueuedJob, type Transaction } from './bullmq/internals.ts';
export {
  closeConnection,
  isConnectionFault,
  isPassingFault,
  isServerFull,
  openConnection,
  untilReady,
  type ConnectionOptions,
  type Redis,
} from './redis/connection.ts';
export type { GivenConnection, ServerAddress } from './redis/given-connection.ts';
export { Canceller, type CancelOptions, type CancelResult } from './producer/cancel.ts';
export { Janitor, type JanitorOptions } from './upkeep/janitor.ts';
export {
  QueueAdmin,
  type CleanOptions,
  type LaneCounts,
  type QueueAdminOptions,
  type QueueCounts,
  type QueueRepair,
  type RetriedJob,
} from './upkeep/queue-admin.ts';
export { findWrongKeys, isWrongType, queueDamaged, type QueuePlace, type WrongKey } from './upkeep/queue-keys.ts';
export { findJobs, type FindJobsLimits, type FoundJob, type FoundJobs } from './upkeep/find-jobs.ts';
export { repairQueue, type RepairOptions, type RepairReport } from './upkeep/repair.ts';
export { Quarantine, type QuarantineOptions, type QuarantinedJob } from './upkeep/quarantine.ts';
export { quarantineQueue } from './lanes/quarantine-queue.ts';
export { defaultWorkerName } from './worker/worker-identity.ts';
export { checkServer, type ServerFacts, type ServerReport } from './redis/server-check.ts';
export { readServerHealth, type ReplicaHealth, type ServerHealth } from './redis/server-health.ts';
export { processCounts, type ProcessCounts, type RefusalReason } from './redis/process-counts.ts';
export { ServerWatch, type ServerWatchOptions } from './redis/server-watch.ts';
export { writeRefusal } from './redis/write-refusal.ts';
export { JobProducer, type JobEnding, type JobState, type ServingWorker } from './producer/job-producer.ts';
export type { AddOptions, AddResult, NewJob } from './producer/new-job.ts';
export type { ProducerOptions } from './producer/open-queue.ts';
export type { Again } from './producer/job-verdict.ts';
export type { OldestWaiting } from './producer/waiting-jobs.ts';
export { QueueGauge, type QueueDepth, type QueueGaugeOptions, type QueueReadiness } from './producer/queue-depth.ts';
export { CellList, type CellListOptions } from './cells/cell-list.ts';
export { PartsElsewhere, isPartWithin } from './cells/parts-elsewhere.ts';
export { chooseCell, type CellLoad } from './cells/choose-cell.ts';
export { PerCell } from './cells/per-cell.ts';
export { sameCells } from './cells/same-cells.ts';
export { CellsSource, type CellsSourceOptions } from './cells/cells-source.ts';
export { Helping, type Helped, type HelpingOptions } from './cells/helping.ts';
export {
  PayloadServers,
  payloadSetOf,
  serversIn,
  type PayloadServersOptions,
  type TriedServer,
} from './payload/payload-servers.ts';
export { remarksOnRules, type LeftOvers } from './payload/bucket-rules.ts';
export { PayloadWatch, type PayloadsHere, type PayloadWatchOptions } from './payload/payload-watch.ts';
export { payloadsSeen, type PayloadServerSeen, type PayloadSet, type PayloadsSeen } from './lanes/payloads-seen.ts';
export { ResultReader, type Peeked, type ReaderOptions } from './producer/result-reader.ts';
export { claimingOf, lackingPlaces, mostJobRows, notSharing, type LackingWorker } from './producer/serving-workers.ts';
export { whyWaiting, type Waiting, type WaitingReason } from './lanes/why-waiting.ts';
export {
  WorkerPresence,
  liveWorkers,
  serverClock,
  type PresenceOptions,
  type StartingFacts,
  type ServerClock,
} from './lanes/worker-presence.ts';
export {
  LATELY_MS,
  latelyOf,
  lossesIn,
  readLately,
  reasonsText,
  successorOf,
  type AbsentWorker,
  type ExecutorLosses,
  type Lately,
  type LatelyRead,
} from './lanes/fleet-lately.ts';
export {
  readHistory,
  workersWithHistory,
  type HistoryOwner,
  type ReadStep,
  type WorkerHistory,
} from './lanes/worker-history.ts';
export {
  Fleet,
  type FleetOptions,
  type FleetView,
  type LaneDepth,
  type LiveWorker,
  type StartingWorker,
} from './lanes/fleet.ts';
export {
  nameOf,
  planRestart,
  rollingRestart,
  type RestartedWorker,
  type RollingOptions,
  type RollingPlan,
  type RollingStep,
} from './lanes/rolling-restart.ts';
export {
  FleetSurvey,
  MOST_BACKLOG_SECONDS,
  backlogOf,
  type Backlog,
  type FleetSurveyOptions,
  type FleetSurveyed,
  type SurveyedQueue,
  type UnreadQueue,
} from './lanes/fleet-survey.ts';
export { enterService, isSimulated, queueService, type QueueService } from './lanes/queue-service.ts';
export { FleetWatch, HybridGate, alarmOfCpuLane } from './lanes/hybrid-gate.ts';
export { PartsSource } from './lanes/parts-source.ts';
export { LanesSource, type LaneSource, type MainLaneGate } from './lanes/lanes-source.ts';

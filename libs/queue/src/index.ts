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
} from './admission.ts';
export {
  BoardQueues,
  UNREADABLE_JOB,
  type BoardJob,
  type BoardQueue,
  type BoardQueuesOptions,
} from './board-queues.ts';
export { orderWaiting, type FairOrderOptions, type Line } from './fair-order.ts';
export { BullJobSource, type BullJobSourceOptions } from './bull-job-source.ts';
export { BULLMQ_VERSION, openTransaction, queueAdd, type QueuedJob, type Transaction } from './bullmq-internals.ts';
export {
  closeConnection,
  isConnectionFault,
  isPassingFault,
  isServerFull,
  openConnection,
  redactUrl,
  untilReady,
  type ConnectionOptions,
  type Redis,
} from './connection.ts';
export { Canceller, type CancelOptions, type CancelResult } from './cancel.ts';
export { Janitor, type JanitorOptions } from './janitor.ts';
export {
  QueueAdmin,
  type CleanOptions,
  type LaneCounts,
  type QueueAdminOptions,
  type QueueCounts,
  type RetriedJob,
} from './queue-admin.ts';
export { repairQueue, type RepairOptions, type RepairReport } from './repair.ts';
export { Quarantine, quarantineQueue, type QuarantineOptions, type QuarantinedJob } from './quarantine.ts';
export { defaultWorkerName } from './worker-identity.ts';
export { checkServer, type ServerFacts, type ServerReport } from './server-check.ts';
export {
  JobProducer,
  type AddOptions,
  type AddResult,
  type JobEnding,
  type JobState,
  type NewJob,
  type ProducerOptions,
} from './job-producer.ts';
export type { Again } from './job-verdict.ts';
export { QueueGauge, type QueueDepth, type QueueGaugeOptions } from './queue-depth.ts';
export { ResultReader, type ReaderOptions } from './result-reader.ts';
export { WorkerPresence, liveWorkers, serverClock, type PresenceOptions } from './worker-presence.ts';
export { DrainableSource } from './drainable-source.ts';
export { Fleet, type FleetOptions, type FleetView, type LaneDepth, type LiveWorker } from './fleet.ts';
export { FleetWatch, HybridGate, alarmOfCpuLane } from './hybrid-gate.ts';
export { LanesSource, type LaneSource, type MainLaneGate } from './lanes-source.ts';

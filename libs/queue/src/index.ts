export { BullJobSource, type BullJobSourceOptions } from './bull-job-source.ts';
export { BULLMQ_VERSION, openTransaction, queueAdd, type QueuedJob, type Transaction } from './bullmq-internals.ts';
export { closeConnection, isConnectionFault, isPassingFault, isServerFull, openConnection, redactUrl, untilReady, type ConnectionOptions, type Redis } from './connection.ts';
export { checkServer, type ServerFacts, type ServerReport } from './server-check.ts';
export { JobProducer, type AddOptions, type AddResult, type JobState, type NewJob, type ProducerOptions } from './job-producer.ts';
export type { Again } from './job-verdict.ts';
export { ResultReader, type ReaderOptions } from './result-reader.ts';

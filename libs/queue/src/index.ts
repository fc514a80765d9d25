export { BULLMQ_VERSION, openTransaction, queueAdd, type QueuedJob, type Transaction } from './bullmq-internals.ts';
export { closeConnection, isConnectionFault, isPassingFault, isServerFull, openConnection, redactUrl, untilReady, type ConnectionOptions, type Redis } from './connection.ts';

// @shoal/queue/payload: inputs and results as binary keys, for executors and readers. Carries no bullmq.

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
export { acknowledge, type Acknowledged } from './payload/acknowledge.ts';
export { RedisPayloadStore, type PayloadStoreOptions } from './payload/payload-store.ts';
export { CellStores, type CellStoresOptions } from './payload/cell-stores.ts';
export { CellLedgers, type CellLedgersOptions } from './payload/cell-ledgers.ts';
export { PartLedger, type PartLedgerOptions } from './payload/part-ledger.ts';
export { PayloadServers, type PayloadServersOptions } from './payload/payload-servers.ts';
export { processCounts, type ProcessCounts } from './redis/process-counts.ts';
export { parseReply, type ReplyMessage } from './payload/reply-message.ts';

export { ShoalError, isShoalError, type ErrorCode } from '@shoal/contract';
export type { Waiting, WaitingReason } from '@shoal/queue';
export { ShoalClient } from './shoal-client.ts';
export type { Searched } from './searched.ts';
export type { CosineOptions, Queries, RankingOptions, RowIds, Scores, SpreadOptions } from './similarity-calls.ts';
export type {
  ClientCounts,
  ClientModel,
  ClientOptions,
  EmbedOptions,
  EmbedResult,
  EmbeddedBlock,
  RerankModel,
  RerankOptions,
  RerankResult,
  SkippedBlock,
  StreamBlock,
  StreamOptions,
  StreamProgress,
  Vectors,
} from './embedding.ts';

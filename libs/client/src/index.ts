export { ShoalError, isShoalError, type ErrorCode, type Meta, type OutputDtype, type Trace } from '@shoal/contract';
export type { CancelResult, Waiting, WaitingReason } from '@shoal/queue';
export type { Cell, ListedCell } from '@shoal/core';
export { firstRowOf } from './chunks.ts';
export { ShoalClient } from './shoal-client.ts';
export type { Searched } from './searched.ts';
export type { SearchHit, SearchResult } from './search.ts';
export type { TextItem } from './embed-many.ts';
export type {
  ComparisonOptions,
  CosineOptions,
  Queries,
  RankingOptions,
  RowIds,
  Scores,
  SearchOptions,
  SpreadOptions,
} from './similarity-calls.ts';
export type {
  ClientCounts,
  ClientModel,
  ClientOptions,
  EmbedOptions,
  EmbedResult,
  EmbeddedBlock,
  EmbeddedRow,
  JobHandle,
  JobOptions,
  JobState,
  JobStatus,
  RequestHandle,
  RerankHandle,
  RerankJobOptions,
  RerankModel,
  RerankOptions,
  RerankResult,
  SkippedBlock,
  SkippedRow,
  StoredForms,
  StreamBlock,
  StreamOptions,
  StreamProgress,
  SubmitOptions,
  SubmitRerankOptions,
  SubmittedScores,
  SubmittedResult,
  Vectors,
  WaitOptions,
} from './embedding.ts';

// What compares: of interest to those who make a device for it or run it, and loaded by nobody else.

export { SimilarityExecutor } from './executor.ts';
export {
  SIDES,
  Thresholds,
  decodeThresholdProfile,
  encodeThresholdProfile,
  type MeasuredThresholds,
  type Side,
  type Threshold,
  type ThresholdProfile,
} from './thresholds.ts';
export type { CollectionFacts, LedgerFacts, SimilarityFacts } from './facts.ts';
export { Residents, type Resident } from './ledger.ts';
export type { DeviceUse, Fitted, GraphSource, HeldGraph, HeldRows, RowSource, SimilarityDevice } from './device.ts';

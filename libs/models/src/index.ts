export {
  listModels,
  openHubModel,
  openModel,
  pullModel,
  queueOfNamed,
  verifyModel,
  type HubOptions,
  type ModelListing,
  type OpenOptions,
  type PullOptions,
  type StoreOptions,
  type VerifiedModel,
} from './store/model-store.ts';
export { showModel, type ModelDetails } from './store/show-model.ts';
export { removeModel, type RemovedModel } from './store/remove-model.ts';
export { isHubName } from './hub/hub-name.ts';
export type { HubOrigin } from './hub/hub-origin.ts';
export type { FetchedFacts } from './hub/pull-hub-model.ts';
export { CANARY_QUERY, CANARY_TEXT, encodeCanary, type Canary } from './store/canaries.ts';
export type { ProveModel } from './store/import-files.ts';
export { checkModelName } from './store/imported-models.ts';
export { digestProblem, keepDigest } from './store/kept-digest.ts';
export { importModel, type ImportOptions, type ImportReport } from './store/import-model.ts';
export { importDerived, type DerivedReport } from './store/derived-model.ts';
export type { DerivedFacts } from './store/derived-facts.ts';
export { DERIVED_FORMS, WEIGHT_DTYPES, type WeightDtype } from './store/derived-forms.ts';
export type { RunGraph } from './store/int8-calibration.ts';
export { likenessOf, nearnessOf } from './store/likeness.ts';
export {
  expectEmbedder,
  expectReranker,
  type StoredEmbedder,
  type StoredModel,
  type StoredReranker,
} from './store/stored-model.ts';
export { writeTinyModel, type TinyModelOptions } from './store/tiny-model.ts';
export { openGraph, type GraphOptions, type KeptGraph } from './graph/open-graph.ts';
export { readEncoder, type EncoderModel } from './graph/encoder-weights.ts';
export { GRAPH_KINDS, type GraphKind } from './graph/graph-kind.ts';
export {
  POOLINGS,
  givesUnitVectors,
  headInWords,
  plainHead,
  type Pooling,
  type SentenceHead,
} from './graph/sentence-head.ts';
export { openDecoder, type Decoder } from './tokenizer/decoder.ts';
export { encodePairs, openTokenizer, type TokenizerOptions } from './tokenizer/open-tokenizer.ts';

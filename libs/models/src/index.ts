export {
  listModels, openModel, pullModel, verifyModel,
  type ModelListing, type OpenOptions, type PullOptions, type StoreOptions, type VerifiedModel,
} from './store/model-store.ts';
export type { StoredModel } from './store/stored-model.ts';
export { writeTinyModel, type TinyModelOptions } from './store/tiny-model.ts';
export { openGraph, type GraphKind, type GraphOptions } from './graph/open-graph.ts';
export type { Pooling } from './graph/bert-graph.ts';
export { openTokenizer, type TokenizerOptions } from './tokenizer/open-tokenizer.ts';

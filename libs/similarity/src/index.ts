// Similarity: collections of vectors, exact top-k, cosine, re-scoring and activation spreading, on native code or plain
// code.

export {
  cpuEngine,
  kernelsOn,
  openKernels,
  type KernelOptions,
  type Kernels,
  type MatrixOptions,
  type SearchOptions,
} from './engines/kernels.ts';
export { hitsOf, type TopK } from './engines/best-rows.ts';
export { ISAS, type Engine, type EngineName, type Isa, type SpreadOptions, type Stoppable } from './engines/engine.ts';
export type { Seeds } from './engines/checks.ts';
export {
  checkDims,
  checkValues,
  idOfRow,
  matrixOf,
  METRICS,
  ROW_TYPES,
  rowOfId,
  rowsOf,
  sliceRows,
  type Matrix,
  type Metric,
  type RowBlock,
  type RowType,
} from './engines/vectors.ts';
export {
  appendToCollection,
  checkCollection,
  collectionInfo,
  collectionsFolder,
  createCollection,
  listCollections,
  openCollection,
  removeCollection,
  type CollectionInfo,
  type CreateOptions,
  type DamagedCollection,
  type RowBatch,
  type RowSource,
  type WriteOptions,
} from './collections/collections.ts';
export { CollectionsSeen } from './collections/describe-collections.ts';
export type { CollectionAbout } from './collections/collection-file.ts';
export { residentBytes, type Collection, type OpenOptions } from './collections/open-collection.ts';
export { openCollectionRows, type CollectionRows } from './collections/collection-rows.ts';
export { workBytes, type SearchSize } from './engines/work-bytes.ts';
export { checkGraph, graphFromEdges, type Edges, type Graph } from './graphs/graph.ts';
export { graphInfo, listGraphs, openGraph, removeGraph, saveGraph, type GraphInfo } from './graphs/graph-file.ts';
export {
  readVectors,
  VECTOR_FORMATS,
  vectorFileCure,
  vectorFormat,
  type VectorFileOptions,
  type VectorFormat,
} from './collections/vector-files.ts';
export { soundRows } from './collections/sound-rows.ts';
export { MODEL_KEY, modelText } from './collections/vectors-model.ts';
export { CUDA_LIBRARY } from './engines/native-addon.ts';
export { cudaLibraryProblem, openCuda, type CudaFound, type OpenedCuda } from './engines/cuda-library.ts';
export { CudaEngine, type CudaEngineOptions } from './engines/cuda-engine.ts';
export type { CudaTimes } from './engines/cuda-calls.ts';
export { proveEngine } from './engines/prove-engine.ts';
export { HybridEngine, type HybridEngineOptions, type Usage } from './engines/hybrid-engine.ts';
export { measureThresholds, type MeasureOptions } from './measure/thresholds.ts';
export { nativeProblem } from './engines/native-addon.ts';
export {
  buildCandidates,
  canFindCandidates,
  checkRecall,
  openCandidates,
  searchCandidates,
  type BuildOptions,
  type Candidates,
  type Recall,
} from './collections/candidates.ts';
export { readNpy } from './collections/npy-file.ts';

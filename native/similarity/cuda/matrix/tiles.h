// A part of a matrix of scores, as its kernels make it.
#pragma once
#include "../search/rows.cuh"

namespace shoal_cuda {

/** Queries of a block: of the wide kernel, and of the thin one for few queries. */
constexpr uint32_t WIDE_QUERIES = 64, THIN_QUERIES = 8;

/** `deep` queries with their lengths, times the rows [first, first + wide): deep × wide scores. All on the device. */
struct Tile {
  const float *queries;
  const double *norms;
  uint32_t deep, first, wide;
  float *scores;
};

/** Launches the kernel of one tile. */
void score_tile(const Rows &rows, enum shoal_metric metric, const Tile &tile, bool is_thin, cudaStream_t stream);

} // namespace shoal_cuda

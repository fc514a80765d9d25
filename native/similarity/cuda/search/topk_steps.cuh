// The steps of a top-k that run on the device beside coarse scores; search.cu says how they follow each other.
#pragma once
#include "coarse.cuh"

namespace shoal_cuda {

/** `found` of a query that the host must do. */
constexpr uint32_t NOT_PROVEN = 0xffffffffu;

/**
 * Queries as the steps want them, all on the device. `found` counts what is listed for each, and is NOT_PROVEN where
 * nothing can be.
 */
struct Prepared {
  float *padded; // chunk × padded dims
  double *norms; // chunk
  char *half;    // tiles of 128 × padded dims
  float *bias_scale, *threshold, *margin;
  uint32_t *found;
};

struct Finish {
  Rows rows;
  const Summary *summary;
  Prepared prepared;
  const Candidate *list;
  uint32_t room, kept, sort_size;
  /** Exact scores of every row, which then are all candidates; null: of none. */
  const double *all;
  /** Of query q: `found[q]` of them from q × kept on. In device memory or pinned. */
  uint32_t *best;
  double *scores;
  uint32_t *found;
};

/** Fills `to` from `raw` (count × dims, in device memory or pinned), for `padded` queries. */
void prepare_queries(const float *raw, uint32_t count, uint32_t padded, uint32_t dims, enum shoal_metric metric,
                     const Summary *summary, const Prepared &to, cudaStream_t stream);
/** Threshold of each query: the `rank`-th best of a sample's groups, less the margin. */
void find_thresholds(const float *maxima, uint32_t groups, uint32_t rank, uint32_t count, const Prepared &prepared,
                     int device, cudaStream_t stream);
/** Proves, scores in fp64 and sorts what was listed. */
void finish_queries(const Finish &finish, enum shoal_metric metric, uint32_t count, int device, cudaStream_t stream);

} // namespace shoal_cuda

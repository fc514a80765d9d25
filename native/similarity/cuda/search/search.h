// Exact top-k of one set of rows that lies on a device: see search.cu.
#pragma once
#include "rows.cuh"

namespace shoal_cuda {

/** Best rows of one part: of query q from q × k on. */
struct Best {
  uint32_t *rows;
  double *scores;
  uint32_t *found;
};

struct Query {
  const float *values;
  uint64_t count;
  enum shoal_metric metric;
  uint32_t k;
};

/** Work memory that a search likes best. */
size_t search_bytes(uint32_t rows, uint32_t dims, uint64_t queries, uint32_t k);
/** Waits until `best` is filled; adds to `times`. */
void search(Workspace &workspace, const Rows &rows, const Summary *summary, const Query &query,
            const shoal_cuda_terms &terms, const Best &best, shoal_cuda_times &times);

} // namespace shoal_cuda

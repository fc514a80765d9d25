// Every score of queries × rows, and scores of chosen rows.
#include <algorithm>
#include "rows.h"
#include "threads.h"

namespace shoal {
const Kernels &kernels_of(int isa);
}

void shoal_matrix(int isa, int threads, const float *queries, uint64_t query_count, const shoal_rows *rows, enum shoal_metric metric, float *scores) {
  using namespace shoal;
  const Kernels &kernels = kernels_of(isa);
  const uint32_t dims = rows->dims;
  const size_t tile_rows = kernels.tile_rows, panel = kernels.tile_queries;
  const std::vector<float> scales = query_scales(queries, query_count, dims, metric);
  const std::vector<float> packed_queries = pack_queries(kernels, queries, query_count, dims, scales.empty() ? nullptr : scales.data());
  const auto tile = metric == SHOAL_L2 ? kernels.l2_tile : kernels.dot_tile;
  const float sign = metric == SHOAL_L2 ? -1.0f : 1.0f;
  const uint64_t tiles = (rows->count + tile_rows - 1) / tile_rows;
  in_parallel(threads, [&](int part) {
    std::vector<float> packed(tile_rows * dims), scratch(tile_rows * dims), out(panel * tile_rows);
    for (uint64_t t = tiles * part / threads; t < tiles * (part + 1) / threads; t++) {
      const uint64_t row = t * tile_rows;
      const size_t count = std::min<uint64_t>(tile_rows, rows->count - row);
      pack_block(kernels, *rows, row, row + count, packed.data(), scratch.data());
      for (uint64_t q0 = 0; q0 < query_count; q0 += panel) {
        tile(packed_queries.data() + q0 * dims, packed.data(), dims, out.data());
        for (size_t q = 0; q < std::min<uint64_t>(panel, query_count - q0); q++)
          for (size_t r = 0; r < count; r++) scores[(q0 + q) * rows->count + row + r] = sign * out[q * tile_rows + r];
      }
    }
  });
}

void shoal_rescore(int threads, const float *queries, uint64_t query_count, const shoal_rows *rows, enum shoal_metric metric, const uint64_t *begin,
                   const uint64_t *candidates, float *scores) {
  using namespace shoal;
  const Kernels &kernels = kernels_of(0);
  // By candidates, not by queries: one query may have nearly all of them.
  const uint64_t total = begin[query_count];
  in_parallel(threads, [&](int part) {
    std::vector<float> scratch(rows->dims);
    const uint64_t first = total * part / threads, last = total * (part + 1) / threads;
    uint64_t query = std::upper_bound(begin, begin + query_count + 1, first) - begin - 1;
    double norm = -1;
    for (uint64_t i = first; i < last; i++) {
      while (begin[query + 1] <= i) query++, norm = -1;
      const float *values = queries + query * rows->dims;
      if (norm < 0) norm = norm_of(values, rows->dims);
      scores[i] = static_cast<float>(exact_score(kernels, *rows, metric, values, norm, stored_row(kernels, *rows, candidates[i], scratch.data()), candidates[i]));
    }
  });
}

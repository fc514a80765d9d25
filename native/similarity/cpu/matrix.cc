// Every score of queries × rows, scores of chosen rows, lengths of rows, whether values are small enough to be
// compared.
#include "in_place.h"
#include "threads.h"

namespace shoal {
namespace {

/** So many rows at a time, where they are compared in place. */
constexpr uint64_t BLOCK_IN_PLACE = 16 * ROWS_IN_PLACE;

void matrix_in_place(const Kernels &kernels, int threads, const Packed &queries, uint64_t query_count,
                     const shoal_rows &rows, enum shoal_metric metric, float *scores, shoal_stop stop) {
  const float sign = metric == SHOAL_L2 ? -1.0f : 1.0f;
  in_blocks(threads, (rows.count + BLOCK_IN_PLACE - 1) / BLOCK_IN_PLACE, [&](auto next) {
    Packed scratch(ROWS_IN_PLACE * rows.dims);
    for (uint64_t block; next(&block) && !is_stopped(stop);) {
      const uint64_t first = block * BLOCK_IN_PLACE, last = std::min(rows.count, first + BLOCK_IN_PLACE);
      compare_in_place(kernels, rows, metric, queries.data(), query_count, first, last, scratch.data(),
                       [&](uint64_t row, uint64_t q, float score) { scores[q * rows.count + row] = sign * score; });
    }
  });
}

void matrix_by_tiles(const Kernels &kernels, int threads, const Packed &packed_queries, uint64_t query_count,
                     const shoal_rows &rows, enum shoal_metric metric, float *scores, shoal_stop stop) {
  const uint32_t dims = rows.dims;
  const size_t tile_rows = kernels.tile_rows, panel = kernels.tile_queries;
  const auto tile = metric == SHOAL_L2 ? kernels.l2_tile : kernels.dot_tile;
  const float sign = metric == SHOAL_L2 ? -1.0f : 1.0f;
  in_blocks(threads, (rows.count + tile_rows - 1) / tile_rows, [&](auto next) {
    Packed packed(tile_rows * dims), scratch(tile_rows * dims), out(panel * tile_rows);
    for (uint64_t t; next(&t) && !is_stopped(stop);) {
      const uint64_t row = t * tile_rows;
      const size_t count = std::min<uint64_t>(tile_rows, rows.count - row);
      pack_block(kernels, rows, row, row + count, packed.data(), scratch.data());
      for (uint64_t q0 = 0; q0 < query_count; q0 += panel) {
        each_part(dims, CHAIN_DIMS, [&](size_t d, size_t length) {
          tile(packed_queries.data() + q0 * dims + d * panel, packed.data() + d * tile_rows, length, d > 0, nullptr,
               out.data());
        });
        for (size_t q = 0; q < std::min<uint64_t>(panel, query_count - q0); q++)
          for (size_t r = 0; r < count; r++) scores[(q0 + q) * rows.count + row + r] = sign * out[q * tile_rows + r];
      }
    }
  });
}

} // namespace
} // namespace shoal

/**
 * How it is done depends on the number of queries alone, so that a score has the same bits whatever rows are scored
 * beside it.
 */
void shoal_matrix(int isa, int threads, const float *queries, uint64_t query_count, const shoal_rows *rows,
                  enum shoal_metric metric, float *scores, shoal_stop stop) {
  using namespace shoal;
  const Kernels &kernels = kernels_of(isa);
  const std::vector<float> scales = query_scales(query_norms(kernels, queries, query_count, rows->dims), metric);
  if (query_count < MIN_PACKED_QUERIES)
    matrix_in_place(kernels, threads, scale_queries(queries, query_count, rows->dims, scales), query_count, *rows,
                    metric, scores, stop);
  else
    matrix_by_tiles(kernels, threads, pack_queries(kernels, queries, query_count, rows->dims, scales), query_count,
                    *rows, metric, scores, stop);
}

void shoal_rescore(int isa, int threads, const float *queries, uint64_t query_count, const shoal_rows *rows,
                   enum shoal_metric metric, const uint32_t *begin, const uint32_t *candidates, double *scores,
                   shoal_stop stop) {
  using namespace shoal;
  const Kernels &kernels = kernels_of(isa);
  const std::vector<double> norms = query_norms(kernels, queries, query_count, rows->dims);
  // By candidates, not by queries: one query may have nearly all of them.
  constexpr uint32_t BLOCK = 256;
  const uint32_t total = begin[query_count];
  in_blocks(threads, (total + BLOCK - 1) / BLOCK, [&](auto next) {
    std::vector<float> scratch(rows->dims);
    for (uint64_t block; next(&block) && !is_stopped(stop);) {
      const uint32_t first = static_cast<uint32_t>(block) * BLOCK, last = std::min(total, first + BLOCK);
      uint64_t query = std::upper_bound(begin, begin + query_count + 1, first) - begin - 1;
      for (uint32_t i = first; i < last; i++) {
        while (begin[query + 1] <= i) query++;
        if (i + 8 < last) __builtin_prefetch(row_at(*rows, candidates[i + 8])); // rows lie anywhere
        scores[i] = exact_score(kernels, *rows, metric, queries + query * rows->dims, norms[query],
                                stored_row(kernels, *rows, candidates[i], scratch.data()), candidates[i]);
      }
    }
  });
}

void shoal_lengths(int isa, int threads, const shoal_rows *rows, double *lengths) {
  using namespace shoal;
  const Kernels &kernels = kernels_of(isa);
  constexpr uint64_t BLOCK = 256;
  in_blocks(threads, (rows->count + BLOCK - 1) / BLOCK, [&](auto next) {
    std::vector<float> scratch(rows->dims);
    for (uint64_t block; next(&block);)
      for (uint64_t id = block * BLOCK; id < std::min(rows->count, (block + 1) * BLOCK); id++)
        lengths[id] = norm_of(kernels, stored_row(kernels, *rows, id, scratch.data()), rows->dims);
  });
}

int shoal_all_within(const float *values, uint64_t count, double most) {
  float limit = static_cast<float>(most);
  if (limit > most) limit = std::nextafter(limit, -INFINITY);
  int32_t outside = 0; // as wide as a value, or GCC 12 looks at one after the other
  for (uint64_t i = 0; i < count; i++) outside |= std::fabs(values[i]) <= limit ? 0 : 1;
  return outside == 0;
}

// Few queries compared with rows where they lie, a few at a time and without packing: what searches and whole matrices
// share.
//
// Why: docs/decisions/similarity-cpu.md#few-queries-meet-rows-where-they-lie
#pragma once
#include "rows.h"

namespace shoal {

/**
 * Below this the packing of a row costs more than it saves. A search among 10,000 × 384 on one core of an EPYC with
 * AVX2, in place and packed: 16 queries 2.0 to 2.8 and 2.9 to 3.2 ms, 24 3.7 to 5.0 and 3.4 to 3.8; of a Xeon with
 * AVX-512 1.7 to 2.3 and 2.6 to 3.1, 24 2.7 to 3.4 and 2.7 to 3.2 (2026-11-26).
 */
constexpr uint64_t MIN_PACKED_QUERIES = 20;
/** So many rows are compared at a time; `scratch` has room for them. Fewer than a tile has. */
constexpr uint64_t ROWS_IN_PLACE = 6;

/** Queries times their scales, for cosine, one after the other. */
inline Packed scale_queries(const float *queries, uint64_t count, uint32_t dims, const std::vector<float> &scales) {
  Packed scaled(queries, queries + count * dims);
  if (scales.empty()) return scaled;
  for (uint64_t q = 0; q < count; q++)
    for (uint32_t d = 0; d < dims; d++) scaled[q * dims + d] *= scales[q];
  return scaled;
}

/** take(row, query, score) for rows [first, last) and each query; the larger the better. */
template <class Take>
void compare_in_place(const Kernels &kernels, const shoal_rows &rows, enum shoal_metric metric,
                      const float *scaled_queries, uint64_t query_count, uint64_t first, uint64_t last, float *scratch,
                      const Take &take) {
  const uint32_t dims = rows.dims;
  const auto pairs = metric == SHOAL_L2 ? kernels.l2s : kernels.dots;
  float scores[ROWS_IN_PLACE * MIN_PACKED_QUERIES];
  // A dot product takes the row's scale afterwards; a distance needs the scaled row.
  const bool scale_after = metric != SHOAL_L2 && rows.scales != nullptr,
             is_stored = rows.dtype == SHOAL_F32 && (scale_after || rows.scales == nullptr);
  for (uint64_t id = first; id < last; id += ROWS_IN_PLACE) {
    const uint64_t count = std::min<uint64_t>(ROWS_IN_PLACE, last - id);
    const float *compared = is_stored ? reinterpret_cast<const float *>(row_at(rows, id)) : scratch;
    for (uint64_t r = 0; r < count && !is_stored; r++) {
      float *to = scratch + r * dims;
      if (scale_after)
        stored_row(kernels, rows, id + r, to);
      else
        scaled_row(kernels, rows, id + r, to);
    }
    pairs(scaled_queries, query_count, compared, count, is_stored ? rows.stride / sizeof(float) : dims, dims, scores);
    for (uint64_t r = 0; r < count; r++) {
      const float factor = scale_after ? rows.scales[id + r] : 1.0f;
      for (uint64_t q = 0; q < query_count; q++) take(id + r, q, factor * scores[r * query_count + q]);
    }
  }
}

} // namespace shoal

// Stored rows of any element type as fp32, a few at a time, in the form a tile wants; and one pair in fp64.
#pragma once
#include <algorithm>
#include <cmath>
#include <new>
#include <vector>
#include "../include/similarity.h"
#include "kernels.h"

namespace shoal {

const Kernels &kernels_of(int isa);

/**
 * Memory that begins on a cache line. What std::allocator gives begins 16 bytes behind one, so that each load of a
 * 64-byte vector takes two lines: the AVX-512 tile was 1.09 times slower (2026-11-22, 2-core Xeon beside others; 1.03
 * times alone).
 */
template <class T>
struct OnLines {
  typedef T value_type;
  static constexpr std::align_val_t LINE{64};
  OnLines() = default;
  template <class U>
  OnLines(const OnLines<U> &) {}
  T *allocate(size_t n) { return static_cast<T *>(::operator new(n * sizeof(T), LINE)); }
  void deallocate(T *at, size_t) { ::operator delete(at, LINE); }
  template <class U>
  bool operator==(const OnLines<U> &) const {
    return true;
  }
  template <class U>
  bool operator!=(const OnLines<U> &) const {
    return false;
  }
};

/** What tiles read and write. */
typedef std::vector<float, OnLines<float>> Packed;

inline bool is_stopped(shoal_stop stop) { return stop != nullptr && *stop != 0; }

inline const char *row_at(const shoal_rows &rows, uint64_t id) {
  return static_cast<const char *>(rows.data) + id * rows.stride;
}

/** The stored values of one row as floats, without its scale: in place for fp32, else in `scratch`. */
inline const float *stored_row(const Kernels &kernels, const shoal_rows &rows, uint64_t id, float *scratch) {
  const char *from = row_at(rows, id);
  switch (rows.dtype) {
    case SHOAL_F32:
      return reinterpret_cast<const float *>(from);
    case SHOAL_F16:
      kernels.decode_f16(reinterpret_cast<const uint16_t *>(from), scratch, rows.dims);
      break;
    case SHOAL_I8:
      kernels.decode_i8(reinterpret_cast<const int8_t *>(from), scratch, rows.dims);
      break;
  }
  return scratch;
}

/** One row as floats times its scale. */
inline const float *scaled_row(const Kernels &kernels, const shoal_rows &rows, uint64_t id, float *scratch) {
  const float *stored = stored_row(kernels, rows, id, scratch);
  if (rows.scales == nullptr) return stored;
  for (uint32_t d = 0; d < rows.dims; d++) scratch[d] = stored[d] * rows.scales[id];
  return scratch;
}

/** Rows [first, last) as consecutive packed tiles, times their scales. `scratch` holds the rows of one tile. */
inline void pack_block(const Kernels &kernels, const shoal_rows &rows, uint64_t first, uint64_t last, float *packed,
                       float *scratch) {
  const size_t tile_rows = kernels.tile_rows;
  for (uint64_t begin = first; begin < last; begin += tile_rows, packed += tile_rows * rows.dims) {
    const size_t count = std::min<uint64_t>(tile_rows, last - begin);
    const float *scales = rows.scales == nullptr ? nullptr : rows.scales + begin;
    if (rows.dtype == SHOAL_F32) {
      kernels.pack_rows(reinterpret_cast<const float *>(row_at(rows, begin)), count, rows.stride / sizeof(float),
                        rows.dims, scales, packed);
      continue;
    }
    for (size_t i = 0; i < count; i++) stored_row(kernels, rows, begin + i, scratch + i * rows.dims);
    kernels.pack_rows(scratch, count, rows.dims, rows.dims, scales, packed);
  }
}

/** Calls work(first, how many) for parts of nearly the same size, of at most `most` each. */
template <class Work>
inline void each_part(size_t all, size_t most, const Work &work) {
  const size_t parts = (all + most - 1) / most;
  for (size_t i = 0; i < parts; i++) work(all * i / parts, all * (i + 1) / parts - all * i / parts);
}

/** Queries packed by dimension in panels of `tile_queries`, missing ones 0. */
inline Packed pack_queries(const Kernels &kernels, const float *queries, uint64_t count, uint32_t dims,
                           const std::vector<float> &scales) {
  const size_t panel = kernels.tile_queries;
  Packed packed((count + panel - 1) / panel * panel * dims, 0.0f);
  for (uint64_t q = 0; q < count; q++) {
    float *to = packed.data() + q / panel * panel * dims + q % panel;
    for (uint32_t d = 0; d < dims; d++) to[d * panel] = queries[q * dims + d] * (scales.empty() ? 1.0f : scales[q]);
  }
  return packed;
}

inline double norm_of(const Kernels &kernels, const float *values, uint32_t dims) {
  double score, square;
  kernels.exact(values, values, dims, 1, false, &score, &square);
  return std::sqrt(square);
}

/** ‖q‖ of each query. */
inline std::vector<double> query_norms(const Kernels &kernels, const float *queries, uint64_t count, uint32_t dims) {
  std::vector<double> norms(count);
  for (uint64_t q = 0; q < count; q++) norms[q] = norm_of(kernels, queries + q * dims, dims);
  return norms;
}

/** 1/‖q‖ of each query for cosine, 0 for a query of length 0; empty for the other metrics. */
inline std::vector<float> query_scales(const std::vector<double> &norms, enum shoal_metric metric) {
  std::vector<float> scales(metric == SHOAL_COSINE ? norms.size() : 0);
  for (size_t q = 0; q < scales.size(); q++)
    scales[q] = norms[q] < SHOAL_MIN_LENGTH ? 0.0f : static_cast<float>(1 / norms[q]);
  return scales;
}

/** The score of one pair in fp64, as it is given to people: a distance for l2. */
inline double exact_score(const Kernels &kernels, const shoal_rows &rows, enum shoal_metric metric, const float *query,
                          double query_norm, const float *stored, uint64_t id) {
  const double scale = metric != SHOAL_COSINE && rows.scales != nullptr ? rows.scales[id] : 1.0;
  double score, square;
  kernels.exact(query, stored, rows.dims, scale, metric == SHOAL_L2, &score, &square);
  if (metric != SHOAL_COSINE) return score;
  if (rows.scales[id] == 0 || query_norm < SHOAL_MIN_LENGTH) return 0 * square; // NaN stays NaN
  return score / (query_norm * std::sqrt(square));
}

} // namespace shoal

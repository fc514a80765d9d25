// The innermost loops, one set for each instruction set; everything around them (packing, threads, selection) is written
// once in topk.cc and matrix.cc. See kernels.inl for how they work.
#pragma once
#include <cstddef>
#include <cstdint>

namespace shoal {

struct Kernels {
  const char *name;
  bool (*is_supported)();
  /** A tile has so many queries and so many rows. */
  size_t tile_queries, tile_rows;
  /** tile[q][r] = Σ_d queries[d][q] · rows[d][r]; both packed by dimension, `dims` of them. */
  void (*dot_tile)(const float *queries, const float *rows, size_t dims, float *tile);
  /** tile[q][r] = −Σ_d (queries[d][q] − rows[d][r])²: the larger the better, as with dot. */
  void (*l2_tile)(const float *queries, const float *rows, size_t dims, float *tile);
  /** Bit r is set where tile row value r > limit; of `tile_rows` values. */
  uint64_t (*above)(const float *values, float limit);
  /** The same for one pair that is not packed. */
  float (*dot)(const float *a, const float *b, size_t dims);
  float (*l2)(const float *a, const float *b, size_t dims);
  /** In fp64, with r = scale · row: Σ q·r or Σ (q − r)² to *score, Σ r² to *square. */
  void (*exact)(const float *query, const float *row, size_t dims, double scale, bool is_l2, double *score, double *square);
  /** y[i] += f · x[i] */
  void (*axpy)(float f, const float *x, float *y, size_t n);
  void (*decode_f16)(const uint16_t *from, float *to, size_t n);
  void (*decode_i8)(const int8_t *from, float *to, size_t n);
  /** `count` (≤ tile_rows) rows of `dims` floats, `stride` floats apart → packed[d][tile_rows], missing rows 0. */
  void (*pack_rows)(const float *rows, size_t count, size_t stride, size_t dims, float *packed);
};

extern const Kernels avx512_kernels, avx2_kernels, portable_kernels;

}  // namespace shoal

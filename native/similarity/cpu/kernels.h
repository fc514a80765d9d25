// The innermost loops, one set for each instruction set; everything around them (packing, threads, selection) is
// written once in topk.cc and matrix.cc. See kernels.inl for how they work.
#pragma once
#include <cstddef>
#include <cstdint>

namespace shoal {

/**
 * At most so many dimensions of scores that are given to people are summed in one chain of fp32 additions; the chains'
 * sums are added. One chain of 512 terms of equal sign was off by 1.1e-6 (2026-11-22).
 */
constexpr size_t CHAIN_DIMS = 192;
/**
 * A search only chooses by them what it scores in fp64, and knows how far they may be off. Its chains are as long as a
 * tile's rows stay in the first-level cache while queries pass: with AVX2 384 dimensions (on one thread 1.04 times as
 * fast as with 192; EPYC, 87 runs each in turns, 2026-11-26), with AVX-512 192.
 */
constexpr size_t SEARCH_CHAIN_DIMS = 384, SEARCH_CHAIN_BYTES = 24 * 1024;

struct Kernels {
  const char *name;
  bool (*is_supported)();
  /** A tile has so many queries and so many rows. */
  size_t tile_queries, tile_rows;
  /**
   * Packed rows of a block lie in the second-level cache while every query passes over them, beside a group of queries
   * and the rows that come next: processors with AVX-512 have 1 MB and more, others often half of that.
   */
  size_t block_bytes;
  /**
   * tile[q][r] = Σ_d queries[d][q] · rows[d][r], one chain; both packed by dimension, `dims` of them; `adds`: added to
   * what is in the tile. Bit q of what comes back is set where a row of query q is not at most limits[q]; 0 where
   * limits is null.
   */
  uint32_t (*dot_tile)(const float *queries, const float *rows, size_t dims, bool adds, const float *limits,
                       float *tile);
  /** tile[q][r] = −Σ_d (queries[d][q] − rows[d][r])²: the larger the better, as with dot. */
  uint32_t (*l2_tile)(const float *queries, const float *rows, size_t dims, bool adds, const float *limits,
                      float *tile);
  /**
   * Bit r is set where values[r] is not at most limit, of `tile_rows` values: above it, or one of the two is no number.
   */
  uint64_t (*above)(const float *values, float limit);
  /**
   * scores[r][q], the same of each of `row_count` rows that are not packed, `stride` floats apart, and each of `count`
   * queries, `dims` floats apart.
   */
  void (*dots)(const float *queries, size_t count, const float *rows, size_t row_count, size_t stride, size_t dims,
               float *scores);
  void (*l2s)(const float *queries, size_t count, const float *rows, size_t row_count, size_t stride, size_t dims,
              float *scores);
  /** In fp64, with r = scale · row: Σ q·r or Σ (q − r)² to *score, Σ r² to *square. */
  void (*exact)(const float *query, const float *row, size_t dims, double scale, bool is_l2, double *score,
                double *square);
  void (*decode_f16)(const uint16_t *from, float *to, size_t n);
  void (*decode_i8)(const int8_t *from, float *to, size_t n);
  /**
   * `count` (≤ tile_rows) rows of `dims` floats, `stride` floats apart, times their scale (null: 1) →
   * packed[d][tile_rows], missing rows 0.
   */
  void (*pack_rows)(const float *rows, size_t count, size_t stride, size_t dims, const float *scales, float *packed);
  /**
   * What arrives at nodes [first, last) from `given`, into `arriving` and added to `activation`; `columns` values a
   * node.
   */
  void (*gather)(const uint32_t *begin, const uint32_t *source, const float *weight, uint64_t first, uint64_t last,
                 size_t columns, const float *given, float *arriving, float *activation);
  /** `steps` × *flops multiply-adds' worth of operations, independent enough to keep the machine busy. */
  float (*peak)(long steps, long *flops);
};

extern const Kernels avx512_kernels, avx2_kernels, portable_kernels;

} // namespace shoal

// The kernels, written once with the compiler's vector types; a .cc file for each instruction set includes this with
// the width of its registers and is compiled with its flags. NEON comes from the portable one on arm64.
//
// A tile is the inner loop of a matrix product: rows and queries are packed by dimension, so that one step loads
// TILE_VECTORS vectors of rows, broadcasts TILE_QUERIES values and does their product in registers; nothing is reduced
// across lanes.
#include <cstring>
#include "kernels.h"

namespace shoal {
namespace {

constexpr size_t LANES = VECTOR_BYTES / 4;
constexpr size_t TILE_ROWS = TILE_VECTORS * LANES;
typedef float Vector __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t Mask __attribute__((vector_size(VECTOR_BYTES)));

inline Vector load(const float *from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float *to, Vector v) { std::memcpy(to, &v, sizeof v); }

#ifndef OWN_MASKS
/** Bit i is set where a[i] is not at most b[i]: also where one of them is no number. */
inline uint32_t above_bits(Vector a, Vector b) {
  const Mask mask = ~(a <= b);
  uint32_t bits = 0;
  for (size_t i = 0; i < LANES; i++) bits |= (mask[i] & 1u) << i;
  return bits;
}

/** Whether there was any such i among what was added. */
struct Marks {
  Mask above{};
  void add(Vector a, Vector b) { above |= ~(a <= b); }
  bool any() const {
    int32_t all = 0;
    for (size_t i = 0; i < LANES; i++) all |= above[i];
    return all != 0;
  }
};
#endif

struct Dot {
  template <class S, class A, class B>
  static S add(S sum, A a, B b) {
    return sum + a * b;
  }
};

struct L2 {
  template <class S, class A, class B>
  static S add(S sum, A a, B b) {
    const auto difference = a - b;
    return sum - difference * difference;
  }
};

uint64_t above(const float *values, float limit);

template <class Metric>
uint32_t tile(const float *queries, const float *rows, size_t dims, bool adds, const float *limits, float *tile) {
  Vector sum[TILE_QUERIES][TILE_VECTORS];
#pragma GCC unroll 16
  for (size_t q = 0; q < TILE_QUERIES; q++)
    for (size_t v = 0; v < TILE_VECTORS; v++) sum[q][v] = Vector{};
  const auto step = [&] {
    Vector row[TILE_VECTORS];
#pragma GCC unroll 4
    for (size_t v = 0; v < TILE_VECTORS; v++) row[v] = load(rows + v * LANES);
#pragma GCC unroll 16
    for (size_t q = 0; q < TILE_QUERIES; q++)
#pragma GCC unroll 4
      for (size_t v = 0; v < TILE_VECTORS; v++) sum[q][v] = Metric::add(sum[q][v], row[v], queries[q]);
    queries += TILE_QUERIES, rows += TILE_ROWS;
  };
  // Several steps at a time where the counting would else take a share of what the processor can begin.
  for (size_t left = dims / STEPS; left > 0; left--) {
    // they come from the second-level cache
    for (int line = 0; line < PREFETCH_LINES; line++) __builtin_prefetch(queries + 16 * TILE_QUERIES + 16 * line);
#pragma GCC unroll 4
    for (size_t i = 0; i < STEPS; i++) step();
  }
  for (size_t left = dims % STEPS; left > 0; left--) step();
  if (adds) {
#pragma GCC unroll 16
    for (size_t q = 0; q < TILE_QUERIES; q++)
#pragma GCC unroll 4
      for (size_t v = 0; v < TILE_VECTORS; v++) sum[q][v] += load(tile + q * TILE_ROWS + v * LANES);
  }
#pragma GCC unroll 16
  for (size_t q = 0; q < TILE_QUERIES; q++)
#pragma GCC unroll 4
    for (size_t v = 0; v < TILE_VECTORS; v++) store(tile + q * TILE_ROWS + v * LANES, sum[q][v]);
  if (limits == nullptr) return 0;
  Marks marks;
#pragma GCC unroll 16
  for (size_t q = 0; q < TILE_QUERIES; q++)
#pragma GCC unroll 4
    for (size_t v = 0; v < TILE_VECTORS; v++) marks.add(sum[q][v], Vector{} + limits[q]);
  if (!marks.any()) return 0; // nearly always, once the first rows have been seen
  uint32_t hot = 0;
  for (size_t q = 0; q < TILE_QUERIES; q++) hot |= (above(tile + q * TILE_ROWS, limits[q]) != 0 ? 1u : 0u) << q;
  return hot;
}

uint64_t above(const float *values, float limit) {
  uint64_t bits = 0;
  for (size_t v = 0; v < TILE_VECTORS; v++)
    bits |= static_cast<uint64_t>(above_bits(load(values + v * LANES), Vector{} + limit)) << (v * LANES);
  return bits;
}

#ifndef OWN_SUM
/** Halves added until two lanes are left. */
template <size_t BYTES>
struct Lanes {
  typedef float V __attribute__((vector_size(BYTES)));
  static float sum(V v) {
    typename Lanes<BYTES / 2>::V low, high;
    std::memcpy(&low, &v, BYTES / 2);
    std::memcpy(&high, reinterpret_cast<const char *>(&v) + BYTES / 2, BYTES / 2);
    return Lanes<BYTES / 2>::sum(low + high);
  }
};
template <>
struct Lanes<8> {
  typedef float V __attribute__((vector_size(8)));
  static float sum(V v) { return v[0] + v[1]; }
};

/** The sum of the lanes of each. */
inline void four_sums(Vector a, Vector b, Vector c, Vector d, float *sums) {
  typedef Lanes<VECTOR_BYTES> All;
  sums[0] = All::sum(a), sums[1] = All::sum(b), sums[2] = All::sum(c), sums[3] = All::sum(d);
}
#endif

/** One chain for each pair and lane, of at most so many additions: what is summed in CHAIN_DIMS is no longer. */
constexpr size_t PART_DIMS = CHAIN_DIMS * LANES;

constexpr size_t PAIR_ROWS = 3;
/**
 * So far ahead rows are asked for: several at a time are more than processors foresee. 8 × 20,000 × 384 took 184 ns a
 * row without, and 110 with it (EPYC, AVX2; one row at a time 141).
 */
constexpr size_t ROWS_AHEAD = 2 * PAIR_ROWS;

/**
 * ROWS × COUNT pairs at a time: each vector is loaded once for all it meets, and so many chains keep a core from
 * waiting for its own additions. A pair is summed in the same order whatever it lies beside.
 */
template <class Metric, size_t ROWS, size_t COUNT>
void pairs_of(const float *queries, const float *rows, size_t stride, size_t dims, size_t scores_stride,
              float *scores) {
  float total[ROWS][COUNT] = {};
  size_t d = 0;
  while (d + LANES <= dims) {
    Vector sum[ROWS][4] = {}; // those beyond COUNT stay 0
    for (const size_t end = dims - d < PART_DIMS ? dims : d + PART_DIMS; d + LANES <= end; d += LANES) {
      Vector row[ROWS];
#pragma GCC unroll 8
      for (size_t r = 0; r < ROWS; r++) row[r] = load(rows + r * stride + d);
      if (ROWS > 1) {
#pragma GCC unroll 8
        for (size_t r = 0; r < ROWS; r++) __builtin_prefetch(rows + (r + ROWS_AHEAD) * stride + d, 0, 2);
      }
#pragma GCC unroll 4
      for (size_t q = 0; q < COUNT; q++) {
        Vector query = load(queries + q * dims + d);
        IN_REGISTER(query);
#pragma GCC unroll 8
        for (size_t r = 0; r < ROWS; r++) sum[r][q] = Metric::add(sum[r][q], row[r], query);
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < ROWS; r++) {
      float sums[4];
      four_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3], sums);
      for (size_t q = 0; q < COUNT; q++) total[r][q] += sums[q];
    }
  }
  for (; d < dims; d++)
    for (size_t r = 0; r < ROWS; r++)
      for (size_t q = 0; q < COUNT; q++)
        total[r][q] = Metric::add(total[r][q], rows[r * stride + d], queries[q * dims + d]);
  for (size_t r = 0; r < ROWS; r++)
    for (size_t q = 0; q < COUNT; q++) scores[r * scores_stride + q] = total[r][q];
}

template <class Metric, size_t ROWS>
void pairs_of_rows(const float *queries, size_t count, const float *rows, size_t stride, size_t dims, float *scores) {
  size_t q = 0;
  for (; q + 4 <= count; q += 4) pairs_of<Metric, ROWS, 4>(queries + q * dims, rows, stride, dims, count, scores + q);
  switch (count - q) {
    case 3:
      return pairs_of<Metric, ROWS, 3>(queries + q * dims, rows, stride, dims, count, scores + q);
    case 2:
      return pairs_of<Metric, ROWS, 2>(queries + q * dims, rows, stride, dims, count, scores + q);
    case 1:
      return pairs_of<Metric, ROWS, 1>(queries + q * dims, rows, stride, dims, count, scores + q);
  }
}

template <class Metric>
void pairs(const float *queries, size_t count, const float *rows, size_t row_count, size_t stride, size_t dims,
           float *scores) {
  size_t r = 0;
  for (; r + PAIR_ROWS <= row_count; r += PAIR_ROWS)
    pairs_of_rows<Metric, PAIR_ROWS>(queries, count, rows + r * stride, stride, dims, scores + r * count);
  for (; r < row_count; r++)
    pairs_of_rows<Metric, 1>(queries, count, rows + r * stride, stride, dims, scores + r * count);
}

typedef double Wide __attribute__((vector_size(VECTOR_BYTES)));
constexpr size_t WIDE_LANES = VECTOR_BYTES / 8;

#ifndef OWN_WIDEN
inline Wide load_wide(const float *from) {
  Wide v;
  for (size_t i = 0; i < WIDE_LANES; i++) v[i] = from[i];
  return v;
}
#endif

inline double lanes_sum(Wide v) {
  double sum = 0;
  for (size_t i = 0; i < WIDE_LANES; i++) sum += v[i];
  return sum;
}

/** Four chains of each sum: more would leave the registers. */
template <bool IsL2>
void exact_of(const float *query, const float *row, size_t dims, double scale, double *score, double *square) {
  constexpr size_t CHAINS = 4, STEP = CHAINS * WIDE_LANES;
  Wide sum[CHAINS] = {}, norm[CHAINS] = {};
  size_t d = 0;
  for (; d + STEP <= dims; d += STEP)
#pragma GCC unroll 4
    for (size_t i = 0; i < CHAINS; i++) {
      const Wide r = load_wide(row + d + i * WIDE_LANES) * scale, q = load_wide(query + d + i * WIDE_LANES);
      sum[i] += IsL2 ? (q - r) * (q - r) : q * r;
      norm[i] += r * r;
    }
  double total = lanes_sum((sum[0] + sum[1]) + (sum[2] + sum[3])),
         length = lanes_sum((norm[0] + norm[1]) + (norm[2] + norm[3]));
  for (; d < dims; d++) {
    const double r = row[d] * scale, q = query[d];
    total += IsL2 ? (q - r) * (q - r) : q * r;
    length += r * r;
  }
  *score = total, *square = length;
}

void exact(const float *query, const float *row, size_t dims, double scale, bool is_l2, double *score, double *square) {
  if (is_l2)
    exact_of<true>(query, row, dims, scale, score, square);
  else
    exact_of<false>(query, row, dims, scale, score, square);
}

#ifndef OWN_DECODE
/**
 * The bits of a half, moved into place, are a float 2^112 times too small; the product makes denormals right as well.
 * What had the largest exponent (infinities, NaN) gets it back.
 */
void decode_f16(const uint16_t *from, float *to, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const uint32_t half = from[i];
    const uint32_t moved = (half & 0x7fff) << 13;
    float value;
    std::memcpy(&value, &moved, 4);
    value *= 5192296858534827628530496329220096.0f; // 2^112
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits |= ((half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u) | (half & 0x8000) << 16;
    std::memcpy(to + i, &bits, 4);
  }
}
#endif

void decode_i8(const int8_t *from, float *to, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = from[i];
}

#ifdef OWN_TRANSPOSE
/**
 * As many rows as a vector has lanes, and as many dimensions of them, are turned in registers: whole ones, or what
 * there is of them.
 */
template <bool IS_WHOLE>
inline void pack_square(const float *rows, size_t count, size_t stride, size_t wide, const float *scales,
                        float *packed) {
  Vector square[LANES];
#  pragma GCC unroll 16
  for (size_t i = 0; i < LANES; i++) {
    if (IS_WHOLE)
      square[i] = load(rows + i * stride);
    else
      square[i] = i < count ? load_some(rows + i * stride, wide) : Vector{};
    if (scales != nullptr && (IS_WHOLE || i < count)) square[i] *= scales[i];
  }
  transpose(square);
#  pragma GCC unroll 16
  for (size_t i = 0; i < LANES; i++)
    if (IS_WHOLE || i < wide) store(packed + i * TILE_ROWS, square[i]);
}

void pack_rows(const float *rows, size_t count, size_t stride, size_t dims, const float *scales, float *packed) {
  for (size_t r = 0; r < TILE_ROWS; r += LANES) {
    const float *from = rows + r * stride, *scale = scales == nullptr ? nullptr : scales + r;
    const size_t there = r < count ? count - r : 0;
    size_t d = 0;
    for (; there >= LANES && d + LANES <= dims; d += LANES) {
      // the next tile's
      for (size_t i = 0; i < LANES; i++) __builtin_prefetch(from + (TILE_ROWS + i) * stride + d, 0, 2);
      pack_square<true>(from + d, LANES, stride, LANES, scale, packed + d * TILE_ROWS + r);
    }
    for (; d < dims; d += LANES)
      pack_square<false>(from + d, there, stride, dims - d < LANES ? dims - d : LANES, scale,
                         packed + d * TILE_ROWS + r);
  }
}
#else
/** By blocks of 16 dimensions, so that each row gives whole cache lines. */
void pack_rows(const float *rows, size_t count, size_t stride, size_t dims, const float *scales, float *packed) {
  for (size_t d0 = 0; d0 < dims; d0 += 16) {
    const size_t d1 = d0 + 16 < dims ? d0 + 16 : dims;
    for (size_t r = 0; r < TILE_ROWS; r++) {
      const float scale = r < count && scales != nullptr ? scales[r] : 1.0f;
      for (size_t d = d0; d < d1; d++) packed[d * TILE_ROWS + r] = r < count ? rows[r * stride + d] * scale : 0;
    }
  }
}
#endif

/** So many columns in as few registers as hold them. As an array of floats GCC 12 would add them up one by one. */
template <size_t WIDTH>
struct ColumnSums {
  static constexpr size_t BYTES = WIDTH * sizeof(float) < VECTOR_BYTES ? WIDTH * sizeof(float) : VECTOR_BYTES,
                          COUNT = WIDTH * sizeof(float) / BYTES, EACH = BYTES / sizeof(float);
  typedef float V __attribute__((vector_size(BYTES)));
  V sum[COUNT] = {};

  void add(float weight, const float *from) {
#pragma GCC unroll 4
    for (size_t i = 0; i < COUNT; i++) {
      V value;
      std::memcpy(&value, from + i * EACH, sizeof value);
      sum[i] += weight * value;
    }
  }
  void store(float *arriving, float *activation) const {
#pragma GCC unroll 4
    for (size_t i = 0; i < COUNT; i++) {
      V total;
      std::memcpy(&total, activation + i * EACH, sizeof total);
      total += sum[i];
      std::memcpy(arriving + i * EACH, &sum[i], sizeof total);
      std::memcpy(activation + i * EACH, &total, sizeof total);
    }
  }
};
template <>
struct ColumnSums<1> {
  float sum = 0;
  void add(float weight, const float *from) { sum += weight * *from; }
  void store(float *arriving, float *activation) const { *arriving = sum, *activation += sum; }
};

/** `WIDTH` columns lie in registers while the edges of a node pass. */
template <size_t WIDTH>
void gather_columns(const uint32_t *begin, const uint32_t *source, const float *weight, uint64_t first, uint64_t last,
                    size_t columns, size_t column, const float *given, float *arriving, float *activation) {
  for (uint64_t node = first; node < last; node++) {
    ColumnSums<WIDTH> sums;
    for (uint32_t e = begin[node]; e < begin[node + 1]; e++) {
      if (e + 16 < begin[last]) __builtin_prefetch(given + static_cast<uint64_t>(source[e + 16]) * columns + column);
      sums.add(weight[e], given + static_cast<uint64_t>(source[e]) * columns + column);
    }
    sums.store(arriving + node * columns + column, activation + node * columns + column);
  }
}

void gather(const uint32_t *begin, const uint32_t *source, const float *weight, uint64_t first, uint64_t last,
            size_t columns, const float *given, float *arriving, float *activation) {
  size_t column = 0;
  for (; column + 16 <= columns; column += 16)
    gather_columns<16>(begin, source, weight, first, last, columns, column, given, arriving, activation);
  for (; column + 8 <= columns; column += 8)
    gather_columns<8>(begin, source, weight, first, last, columns, column, given, arriving, activation);
  for (; column + 4 <= columns; column += 4)
    gather_columns<4>(begin, source, weight, first, last, columns, column, given, arriving, activation);
  for (; column < columns; column++)
    gather_columns<1>(begin, source, weight, first, last, columns, column, given, arriving, activation);
}

float peak(long steps, long *flops) {
  constexpr int CHAINS = TILE_QUERIES * TILE_VECTORS;
  // Unknown to the compiler, which otherwise finds that a chain that begins with 1 stays there and leaves it out.
  volatile float factor = 0.999f, summand = 0.001f;
  Vector sum[CHAINS], a = Vector{} + factor, b = Vector{} + summand;
  for (int i = 0; i < CHAINS; i++) sum[i] = Vector{} + static_cast<float>(i);
  for (long s = 0; s < steps; s++)
#pragma GCC unroll 24
    for (int i = 0; i < CHAINS; i++) sum[i] = sum[i] * a + b;
  *flops = CHAINS * LANES * 2;
  Vector total{};
  for (int i = 0; i < CHAINS; i++) total += sum[i];
  float sums[4];
  four_sums(total, total, total, total, sums);
  return sums[0];
}

} // namespace
} // namespace shoal

#define SHOAL_KERNELS(NAME, IS_SUPPORTED)                                                       \
  {NAME,       IS_SUPPORTED, TILE_QUERIES, TILE_ROWS,  BLOCK_BYTES, tile<Dot>, tile<L2>, above, \
   pairs<Dot>, pairs<L2>,    exact,        decode_f16, decode_i8,   pack_rows, gather,   peak}

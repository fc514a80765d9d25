// The kernels, written once with the compiler's vector types; a .cc file for each instruction set includes this with the
// width of its registers and is compiled with its flags. NEON comes from the portable one on arm64.
//
// A tile is the inner loop of a matrix product: rows and queries are packed by dimension, so that one step loads
// TILE_VECTORS vectors of rows, broadcasts TILE_QUERIES values and does their product in registers; nothing is reduced
// across lanes. Sums run over chunks of 128 dimensions: one long chain of fp32 additions over 4,096 equal signs would be off
// by 2e-6, chunks of 128 keep it at 2e-7 (standard deviation).
#include <cstring>
#include "kernels.h"

namespace shoal {
namespace {

constexpr size_t LANES = VECTOR_BYTES / 4;
constexpr size_t TILE_ROWS = TILE_VECTORS * LANES;
constexpr size_t CHUNK_DIMS = 128;
typedef float Vector __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t Mask __attribute__((vector_size(VECTOR_BYTES)));

inline Vector load(const float *from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float *to, Vector v) { std::memcpy(to, &v, sizeof v); }

struct Dot {
  template <class S, class A, class B>
  static S add(S sum, A a, B b) { return sum + a * b; }
};

struct L2 {
  template <class S, class A, class B>
  static S add(S sum, A a, B b) {
    const auto difference = a - b;
    return sum - difference * difference;
  }
};

template <class Metric, bool IsFirst>
inline void tile_chunk(const float *queries, const float *rows, size_t dims, float *tile) {
  Vector sum[TILE_QUERIES][TILE_VECTORS];
#pragma GCC unroll 16
  for (size_t q = 0; q < TILE_QUERIES; q++)
    for (size_t v = 0; v < TILE_VECTORS; v++) sum[q][v] = Vector{};
  for (size_t d = 0; d < dims; d++) {
    Vector row[TILE_VECTORS];
    for (size_t v = 0; v < TILE_VECTORS; v++) row[v] = load(rows + d * TILE_ROWS + v * LANES);
#pragma GCC unroll 16
    for (size_t q = 0; q < TILE_QUERIES; q++)
#pragma GCC unroll 4
      for (size_t v = 0; v < TILE_VECTORS; v++) sum[q][v] = Metric::add(sum[q][v], row[v], queries[d * TILE_QUERIES + q]);
  }
#pragma GCC unroll 16
  for (size_t q = 0; q < TILE_QUERIES; q++)
#pragma GCC unroll 4
    for (size_t v = 0; v < TILE_VECTORS; v++) {
      float *to = tile + q * TILE_ROWS + v * LANES;
      store(to, IsFirst ? sum[q][v] : load(to) + sum[q][v]);
    }
}

template <class Metric>
void tile(const float *queries, const float *rows, size_t dims, float *out) {
  const size_t first = dims < CHUNK_DIMS ? dims : CHUNK_DIMS;
  tile_chunk<Metric, true>(queries, rows, first, out);
  for (size_t d = first; d < dims; d += CHUNK_DIMS) {
    const size_t chunk = dims - d < CHUNK_DIMS ? dims - d : CHUNK_DIMS;
    tile_chunk<Metric, false>(queries + d * TILE_QUERIES, rows + d * TILE_ROWS, chunk, out);
  }
}

uint64_t above(const float *values, float limit) {
  Mask any{};
  for (size_t v = 0; v < TILE_VECTORS; v++) any |= load(values + v * LANES) > limit;
  int32_t found = 0;
  for (size_t i = 0; i < LANES; i++) found |= any[i];
  if (__builtin_expect(found == 0, 1)) return 0; // nearly always, once the first rows have been seen
  uint64_t bits = 0;
  for (size_t i = 0; i < TILE_ROWS; i++) bits |= static_cast<uint64_t>(values[i] > limit) << i;
  return bits;
}

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

/** Four chains, because one would wait for its own additions. */
template <class Metric>
float pair(const float *a, const float *b, size_t dims) {
  Vector sum[4] = {};
  size_t d = 0;
  for (; d + 4 * LANES <= dims; d += 4 * LANES)
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) sum[i] = Metric::add(sum[i], load(a + d + i * LANES), load(b + d + i * LANES));
  for (; d + LANES <= dims; d += LANES) sum[0] = Metric::add(sum[0], load(a + d), load(b + d));
  float total = Lanes<VECTOR_BYTES>::sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  for (; d < dims; d++) total = Metric::add(total, a[d], b[d]);
  return total;
}

void exact(const float *query, const float *row, size_t dims, double scale, bool is_l2, double *score, double *square) {
  double sum[16] = {}, norm[16] = {};
  const auto step = [&](size_t d, size_t n) {
    for (size_t i = 0; i < n; i++) {
      const double r = row[d + i] * scale, q = query[d + i];
      sum[i] += is_l2 ? (q - r) * (q - r) : q * r;
      norm[i] += r * r;
    }
  };
  size_t d = 0;
  for (; d + 16 <= dims; d += 16) step(d, 16);
  step(d, dims - d);
  *score = *square = 0;
  for (int i = 0; i < 16; i++) *score += sum[i], *square += norm[i];
}

void axpy(float f, const float *x, float *y, size_t n) {
  for (size_t i = 0; i < n; i++) y[i] += f * x[i];
}

/**
 * The bits of a half, moved into place, are a float 2^112 times too small; the product makes denormals right as well. What had
 * the largest exponent (infinities, NaN) gets it back.
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

void decode_i8(const int8_t *from, float *to, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = from[i];
}

/** By blocks of 16 dimensions, so that each row gives whole cache lines. */
void pack_rows(const float *rows, size_t count, size_t stride, size_t dims, float *packed) {
  for (size_t d0 = 0; d0 < dims; d0 += 16) {
    const size_t d1 = d0 + 16 < dims ? d0 + 16 : dims;
    for (size_t r = 0; r < TILE_ROWS; r++)
      for (size_t d = d0; d < d1; d++) packed[d * TILE_ROWS + r] = r < count ? rows[r * stride + d] : 0;
  }
}

}  // namespace
}  // namespace shoal

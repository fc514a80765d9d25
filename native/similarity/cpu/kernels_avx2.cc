// Flags: -mavx2 -mfma -mf16c. 6 queries × 2 vectors: 12 of the 16 registers hold sums.
#include <cpuid.h>
#include <immintrin.h>
#include <cstring>
#define VECTOR_BYTES 32
#define TILE_VECTORS 2
#define TILE_QUERIES 6
#define STEPS 4
#define IN_REGISTER(v) __asm__("" : "+x"(v))
#define PREFETCH_LINES 0
#define BLOCK_BYTES (192 * 1024)
#define OWN_MASKS
#define OWN_SUM
#define OWN_WIDEN
#define OWN_DECODE
#define OWN_TRANSPOSE
#include "kernels.h"

namespace shoal {
namespace {
inline uint32_t above_bits(__m256 a, __m256 b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ)));
}

struct Marks {
  __m256 above = _mm256_setzero_ps();
  void add(__m256 a, __m256 b) { above = _mm256_or_ps(above, _mm256_cmp_ps(a, b, _CMP_NLE_UQ)); }
  bool any() const { return _mm256_movemask_ps(above) != 0; }
};

void decode_f16(const uint16_t *from, float *to, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i))));
  if (i == n) return;
  uint16_t rest[8] = {};
  float values[8];
  std::memcpy(rest, from + i, (n - i) * sizeof *from);
  _mm256_storeu_ps(values, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(rest))));
  std::memcpy(to + i, values, (n - i) * sizeof *to);
}

/** 8 × 8 floats turned: pairs, then fours, then halves of a register. */
inline void transpose(__m256 *r) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) r[i] = t[i];
}

inline void four_sums(__m256 a, __m256 b, __m256 c, __m256 d, float *sums) {
  const __m256 fours = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
}

/** GCC 12 takes a conversion of vectors of its own apart, through memory. */
inline __m256d load_wide(const float *from) { return _mm256_cvtps_pd(_mm_loadu_ps(from)); }

/** The first `count` of 8 floats, then zeros. */
inline __m256 load_some(const float *from, size_t count) {
  return _mm256_maskload_ps(
      from, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
} // namespace
} // namespace shoal

#include "kernels.inl"

namespace shoal {
static bool is_supported() {
  unsigned a, b, c, d; // GCC 10 does not know "f16c"
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
         (c & bit_F16C) != 0;
}
const Kernels avx2_kernels = SHOAL_KERNELS("avx2", is_supported);
} // namespace shoal

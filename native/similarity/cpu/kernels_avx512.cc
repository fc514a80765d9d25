// Flags: -mavx512f -mavx512dq -mfma. 12 queries × 2 vectors: 24 of the 32 registers hold sums.
#include <immintrin.h>
#include <cstring>
#include "kernels.h"
#define VECTOR_BYTES 64
#define TILE_VECTORS 2
#define TILE_QUERIES 12
#define STEPS 1
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#define PREFETCH_LINES 1
#define BLOCK_BYTES (384 * 1024)
#define OWN_MASKS
#define OWN_SUM
#define OWN_WIDEN
#define OWN_DECODE
#define OWN_TRANSPOSE

namespace shoal {
namespace {

inline uint32_t above_bits(__m512 a, __m512 b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }

struct Marks {
  __mmask16 above = 0;
  void add(__m512 a, __m512 b) { above |= _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
  bool any() const { return above != 0; }
};

void decode_f16(const uint16_t *from, float *to, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + i))));
  if (i == n) return;
  uint16_t rest[16] = {};
  std::memcpy(rest, from + i, (n - i) * 2);
  _mm512_mask_storeu_ps(to + i, static_cast<__mmask16>((1u << (n - i)) - 1),
                        _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(rest))));
}

/**
 * 16 × 16 floats turned: pairs, then fours, then quarters of a register. 64 shuffles; value by value it took four times
 * as long.
 */
inline void transpose(__m512 *r) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

inline __m256 halves_sum(__m512 v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }

/** Taken apart by address, sums of vectors stay in memory while they are summed (GCC 12). */
inline void four_sums(__m512 a, __m512 b, __m512 c, __m512 d, float *sums) {
  const __m256 fours =
      _mm256_hadd_ps(_mm256_hadd_ps(halves_sum(a), halves_sum(b)), _mm256_hadd_ps(halves_sum(c), halves_sum(d)));
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
}

/** GCC 12 takes a conversion of vectors of its own apart, through memory. */
inline __m512d load_wide(const float *from) { return _mm512_cvtps_pd(_mm256_loadu_ps(from)); }

/** The first `count` of 16 floats, then zeros. */
inline __m512 load_some(const float *from, size_t count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
}

} // namespace
} // namespace shoal

#include "kernels.inl"

namespace shoal {
static bool is_supported() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"); }
const Kernels avx512_kernels = SHOAL_KERNELS("avx512", is_supported);
} // namespace shoal

// f32 to binary16, rounded to nearest, ties to even, by the processor's own instruction: what results as f16 are made
// of.
#pragma once
#include <cstddef>
#include <cstdint>
#if defined(__x86_64__)
#  include <immintrin.h>
#elif defined(__aarch64__)
#  include <cstring>
#endif

namespace shoal {

#if defined(__x86_64__)

inline bool has_halves() { return __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c"); }

__attribute__((target("avx,f16c"))) inline void to_halves(const float *values, uint16_t *halves, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i *>(halves + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < count; i++) halves[i] = static_cast<uint16_t>(_cvtss_sh(values[i], _MM_FROUND_TO_NEAREST_INT));
}

#elif defined(__aarch64__)

inline bool has_halves() { return true; }

inline void to_halves(const float *values, uint16_t *halves, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const __fp16 half = static_cast<__fp16>(values[i]);
    std::memcpy(halves + i, &half, sizeof half);
  }
}

#else

inline bool has_halves() { return false; }
inline void to_halves(const float *, uint16_t *, size_t) {}

#endif

} // namespace shoal

// Flags: -mavx2 -mfma. 6 queries × 2 vectors: 12 of the 16 registers hold sums.
#include <immintrin.h>
#define VECTOR_BYTES 32
#define TILE_VECTORS 2
#define TILE_QUERIES 6
#define PREFETCH_STEPS 32
#define OWN_MASKS
#include "kernels.h"

namespace shoal {
namespace {
inline uint32_t above_bits(__m256 a, __m256 b) { return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ))); }
}  // namespace
}  // namespace shoal

#include "kernels.inl"

namespace shoal {
static bool is_supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
const Kernels avx2_kernels = SHOAL_KERNELS("avx2", is_supported);
}  // namespace shoal

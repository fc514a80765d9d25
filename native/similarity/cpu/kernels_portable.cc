// No flags: SSE2 on x64, NEON on arm64. 6 queries × 2 vectors fit both.
#define VECTOR_BYTES 16
#define TILE_VECTORS 2
#define TILE_QUERIES 6
#define STEPS 4
#define IN_REGISTER(v)
#define PREFETCH_LINES 0
#define BLOCK_BYTES (192 * 1024)
#include "kernels.inl"

namespace shoal {
static bool is_supported() { return true; }
const Kernels portable_kernels = SHOAL_KERNELS(
#if defined(__aarch64__)
    "neon",
#else
    "portable",
#endif
    is_supported);
} // namespace shoal

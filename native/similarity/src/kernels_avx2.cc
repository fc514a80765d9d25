// Flags: -mavx2 -mfma. 6 queries × 2 vectors: 12 of the 16 registers hold sums.
#define VECTOR_BYTES 32
#define TILE_VECTORS 2
#define TILE_QUERIES 6
#include "kernels.inl"

namespace shoal {
static bool is_supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
const Kernels avx2_kernels = {"avx2", is_supported, TILE_QUERIES, TILE_ROWS, tile<Dot>, tile<L2>, above, pair<Dot>, pair<L2>, exact, axpy, decode_f16, decode_i8, pack_rows};
}  // namespace shoal

// Flags: -mavx512f -mavx512dq -mfma. 12 queries × 2 vectors: 24 of the 32 registers hold sums.
#define VECTOR_BYTES 64
#define TILE_VECTORS 2
#define TILE_QUERIES 12
#include "kernels.inl"

namespace shoal {
static bool is_supported() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"); }
const Kernels avx512_kernels = {"avx512", is_supported, TILE_QUERIES, TILE_ROWS, tile<Dot>, tile<L2>, above, pair<Dot>, pair<L2>, exact, axpy, decode_f16, decode_i8, pack_rows};
}  // namespace shoal

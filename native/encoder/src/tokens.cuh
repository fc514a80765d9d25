// What the encoder's own kernels share; matrix products are cuBLASLt's. All work on packed tokens: row r of a
// micro-batch is the tokens starts[r] to starts[r + 1], and nothing of its padding is here. Values are fp16, sums and
// statistics fp32. Rows never meet: what one row holds, NaN included, cannot reach another. How many tokens, rows and
// tiles there are is read from device memory (Counts), so that one recorded graph serves every run that fits it.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace shoal {

struct Counts {
  int32_t tokens, rows, tiles, unused;
};

/** Up to 32 queries of one row, for one warp and one head. */
struct Tile {
  int32_t start, length, first_query, unused;
};

constexpr int WARP = 32;
constexpr unsigned EVERYONE = 0xffffffffu;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(EVERYONE, value, offset);
  return value;
}

} // namespace shoal

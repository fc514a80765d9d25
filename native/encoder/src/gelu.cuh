// GELU by the error function; its form with tanh is part of the product. Included by run.cu alone.
#pragma once
#include "tokens.cuh"

namespace shoal {

/** x · (1 + erf(x ÷ √2)) ÷ 2 in place, eight values a thread. */
__global__ void __launch_bounds__(256) exact_gelu_kernel(__half *wide, size_t size, const Counts *__restrict__ counts) {
  const size_t eights = size * static_cast<size_t>(counts->tokens) / 8;
  for (size_t at = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; at < eights;
       at += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint4 eight = reinterpret_cast<uint4 *>(wide)[at];
    __half2 *two = reinterpret_cast<__half2 *>(&eight);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 x = __half22float2(two[i]);
      two[i] = __floats2half2_rn(0.5f * x.x * (1.0f + erff(x.x * 0.70710678f)),
                                 0.5f * x.y * (1.0f + erff(x.y * 0.70710678f)));
    }
    reinterpret_cast<uint4 *>(wide)[at] = eight;
  }
}

} // namespace shoal

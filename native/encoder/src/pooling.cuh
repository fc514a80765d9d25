// From tokens to one vector a row. Included by run.cu alone.
#pragma once
#include "tokens.cuh"

namespace shoal {

constexpr int POOL_THREADS = 512;

/**
 * One block a row: the mean of its tokens (or the first), divided by its length. Threads of a group take eight values
 * each of one token, groups take tokens in turn; shared memory: groups × size floats.
 */
__global__ void __launch_bounds__(POOL_THREADS)
    pool_kernel(const __half *__restrict__ hidden, const int32_t *__restrict__ starts, int size, int is_first,
                int is_normal, float *__restrict__ embeddings, const Counts *__restrict__ counts) {
  extern __shared__ float partial[];
  __shared__ float squares[POOL_THREADS / WARP];
  const int row = blockIdx.x;
  if (row >= counts->rows) return;
  const int eights = size / 8, groups = max(1, POOL_THREADS / eights), start = starts[row],
            tokens = is_first ? 1 : starts[row + 1] - start;
  for (int place = threadIdx.x; place < groups * eights; place += POOL_THREADS) {
    const int group = place / eights, at = place % eights;
    float sum[8] = {};
    const uint4 *from = reinterpret_cast<const uint4 *>(hidden + static_cast<size_t>(start) * size) + at;
#pragma unroll 4
    for (int token = group; token < tokens; token += groups) {
      const uint4 eight = __ldg(from + static_cast<size_t>(token) * eights);
      const __half2 *two = reinterpret_cast<const __half2 *>(&eight);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 x = __half22float2(two[i]);
        sum[2 * i] += x.x, sum[2 * i + 1] += x.y;
      }
    }
    for (int i = 0; i < 8; i++) partial[group * size + at * 8 + i] = sum[i];
  }
  __syncthreads();
  float square = 0;
  for (int at = threadIdx.x; at < size; at += POOL_THREADS) {
    float sum = 0;
    for (int group = 0; group < groups; group++) sum += partial[group * size + at];
    sum /= tokens;
    partial[at] = sum; // the first group's, which nobody but this thread reads here
    square += sum * sum;
  }
  square = warp_sum(square);
  if (threadIdx.x % WARP == 0) squares[threadIdx.x / WARP] = square;
  __syncthreads();
  float all = 0;
  for (int warp = 0; warp < POOL_THREADS / WARP; warp++) all += squares[warp];
  const float factor = is_normal ? 1.0f / fmaxf(sqrtf(all), 1e-12f) : 1.0f;
  for (int at = threadIdx.x; at < size; at += POOL_THREADS)
    embeddings[static_cast<size_t>(row) * size + at] = partial[at] * factor;
}

} // namespace shoal

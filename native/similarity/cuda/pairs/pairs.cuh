// Exact scores of chosen pairs.
#pragma once
#include <type_traits>
#include "../search/rows.cuh"

namespace shoal_cuda {

/** So many pairs are scored together, each of them by PAIR_LANES lanes. */
constexpr uint32_t TOGETHER = 4;
/** In `Pairs::query_of`: the pairs belong to several queries. */
constexpr uint32_t SEVERAL = 0x80000000u;

/**
 * scores[i] of pair i: row candidates[i] and the query whose range [begin[q], begin[q + 1]) holds i; query_of[i /
 * TOGETHER] is that of the first of TOGETHER pairs, with SEVERAL where the others have not the same. Without
 * candidates: query i / each and row first + i % each. Queries are padded_dims(…) floats apart.
 */
struct Pairs {
  const float *queries;
  const double *norms;
  const uint32_t *begin, *candidates, *query_of;
  uint32_t first, each;
  uint64_t count;
};

/** In memory of the device or pinned: as they are, or rounded. */
struct PairScores {
  double *exact;
  float *rounded;
};

void score_pairs(const Rows &rows, enum shoal_metric metric, const Pairs &pairs, const PairScores &scores, int device,
                 cudaStream_t stream);

/** Queries (in device memory or pinned) as floats, padded with zeros, and ‖q‖ of each. */
void pad_queries(const float *raw, uint32_t count, uint32_t dims, float *padded, double *norms, cudaStream_t stream);

/** Calls work(type, metric) with both as compile-time constants. */
template <class Work>
void with_kind(enum shoal_dtype type, enum shoal_metric metric, const Work &work) {
  const auto with_metric = [&](auto known) {
    if (metric == SHOAL_DOT)
      work(known, std::integral_constant<enum shoal_metric, SHOAL_DOT>{});
    else if (metric == SHOAL_L2)
      work(known, std::integral_constant<enum shoal_metric, SHOAL_L2>{});
    else
      work(known, std::integral_constant<enum shoal_metric, SHOAL_COSINE>{});
  };
  if (type == SHOAL_F32)
    with_metric(std::integral_constant<enum shoal_dtype, SHOAL_F32>{});
  else if (type == SHOAL_F16)
    with_metric(std::integral_constant<enum shoal_dtype, SHOAL_F16>{});
  else
    with_metric(std::integral_constant<enum shoal_dtype, SHOAL_I8>{});
}

/** Sum over a block of at most 1,024 threads, in a fixed order, in every thread. */
__device__ __forceinline__ double block_sum(double value) {
  __shared__ double sums[32];
  for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (uint32_t warp = 0; warp < blockDim.x / 32; warp++) sum += sums[warp];
  return sum;
}

} // namespace shoal_cuda

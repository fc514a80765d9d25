// Exact scores of chosen pairs: 16 lanes of a warp have four pairs, gathered rows read by 16 bytes, fp64 sums. Bound by
// memory: bytes of the rows. Shapes: Pairs and PairScores in pairs.cuh. Memory: none but what these point to.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <type_traits>
#include <algorithm>
#include "../device/launch.cuh"
#include "pairs.cuh"

namespace shoal_cuda {
namespace {

constexpr uint32_t THREADS = 256, FEW_THREADS = 64, BLOCKS_EACH = 2;

constexpr uint32_t pairs_of(uint32_t threads) { return threads / PAIR_LANES * TOGETHER; }

/** TOGETHER pairs; those behind the end are the last one again. `query` as in Pairs::query_of. */
struct Group {
  uint32_t numbers[TOGETHER], query;
};

__device__ __forceinline__ uint32_t count_at(const Pairs &pairs, uint64_t pair) {
  return static_cast<uint32_t>(min(static_cast<uint64_t>(TOGETHER), pairs.count - pair));
}

__device__ __forceinline__ Group load(const Pairs &pairs, uint64_t pair) {
  Group group;
  const uint32_t last = count_at(pairs, pair) - 1;
  if (pairs.candidates == nullptr) {
    group.query = static_cast<uint32_t>(pair / pairs.each) | (pair % pairs.each + last < pairs.each ? 0 : SEVERAL);
#pragma unroll
    for (uint32_t n = 0; n < TOGETHER; n++)
      group.numbers[n] = pairs.first + static_cast<uint32_t>((pair + min(n, last)) % pairs.each);
  } else {
    group.query = __ldg(pairs.query_of + pair / TOGETHER);
#pragma unroll
    for (uint32_t n = 0; n < TOGETHER; n++) group.numbers[n] = __ldg(pairs.candidates + pair + min(n, last));
  }
  return group;
}

__device__ __forceinline__ void put(const PairScores &scores, uint64_t pair, double score) {
  if (scores.exact != nullptr)
    scores.exact[pair] = score;
  else
    scores.rounded[pair] = static_cast<float>(score);
}

/** What the next pairs are is loaded before these are scored: one wait for memory a turn, that for the rows. */
template <enum shoal_dtype TYPE, enum shoal_metric METRIC>
__global__ void __launch_bounds__(THREADS, BLOCKS_EACH) score_kernel(Rows rows, Pairs pairs, PairScores scores) {
  const uint32_t lane = threadIdx.x % PAIR_LANES, stride = divided_up(rows.dims, K_STEP) * K_STEP;
  const uint64_t apart = static_cast<uint64_t>(gridDim.x) * (blockDim.x / PAIR_LANES) * TOGETHER;
  next_may_begin();
  after_previous();
  uint64_t pair = (static_cast<uint64_t>(blockIdx.x) * (blockDim.x / PAIR_LANES) + threadIdx.x / PAIR_LANES) * TOGETHER;
  Group next{};
  if (pair < pairs.count) next = load(pairs, pair);
  for (; pair < pairs.count; pair += apart) {
    const Group group = next;
    if (pair + apart < pairs.count) next = load(pairs, pair + apart);
    const uint32_t count = count_at(pairs, pair);
    if ((group.query & SEVERAL) == 0) {
      double found[TOGETHER];
      exact_scores<TYPE, METRIC, TOGETHER>(rows, group.numbers,
                                           pairs.queries + static_cast<uint64_t>(group.query) * stride,
                                           pairs.norms[group.query], lane, found);
#pragma unroll
      for (uint32_t n = 0; n < TOGETHER; n++)
        if (lane == n && n < count) put(scores, pair + n, found[n]);
      continue;
    }
    for (uint32_t n = 0, query = group.query & ~SEVERAL; n < count; n++) {
      if (pairs.candidates == nullptr)
        query = static_cast<uint32_t>((pair + n) / pairs.each);
      else
        while (__ldg(pairs.begin + query + 1) <= pair + n) query++;
      const uint32_t number[1] = {pairs.candidates == nullptr
                                      ? pairs.first + static_cast<uint32_t>((pair + n) % pairs.each)
                                      : __ldg(pairs.candidates + pair + n)};
      double found[1];
      exact_scores<TYPE, METRIC, 1>(rows, number, pairs.queries + static_cast<uint64_t>(query) * stride,
                                    pairs.norms[query], lane, found);
      if (lane == 0) put(scores, pair + n, found[0]);
    }
  }
}

__global__ void __launch_bounds__(128) pad_kernel(const float *raw, uint32_t dims, float *padded, double *norms) {
  const uint32_t stride = divided_up(dims, K_STEP) * K_STEP;
  const float *from = raw + static_cast<uint64_t>(blockIdx.x) * dims;
  float *to = padded + static_cast<uint64_t>(blockIdx.x) * stride;
  next_may_begin();
  double square = 0;
  for (uint32_t d = threadIdx.x; d < stride; d += blockDim.x) {
    const float value = d < dims ? from[d] : 0.0f;
    to[d] = value;
    square += static_cast<double>(value) * value;
  }
  square = block_sum(square);
  if (threadIdx.x == 0) norms[blockIdx.x] = sqrt(square);
}

} // namespace

void score_pairs(const Rows &rows, enum shoal_metric metric, const Pairs &pairs, const PairScores &scores, int device,
                 cudaStream_t stream) {
  if (pairs.count == 0) return;
  // Few pairs are spread over all multiprocessors: each converts 16 values to fp64 in a cycle.
  const uint64_t most = facts_of(device).multiprocessors * BLOCKS_EACH;
  const uint32_t threads = pairs.count < most * pairs_of(THREADS) / 2 ? FEW_THREADS : THREADS;
  const uint64_t wanted = divided_up<uint64_t>(pairs.count, pairs_of(threads));
  with_kind(rows.dtype, metric, [&](auto type, auto known) {
    launch_overlapping(
        "the kernel of exact scores", device, score_kernel<decltype(type)::value, decltype(known)::value>,
        static_cast<uint32_t>(std::min(wanted, most * (THREADS / threads))), threads, 0, stream, rows, pairs, scores);
  });
}

void pad_queries(const float *raw, uint32_t count, uint32_t dims, float *padded, double *norms, cudaStream_t stream) {
  pad_kernel<<<count, 128, 0, stream>>>(raw, dims, padded, norms);
  check(cudaGetLastError(), "the kernel of queries");
}

} // namespace shoal_cuda

// Kernels of topk_steps.cuh. All have one block a query, and results that do not depend on the order in which rows were
// listed.
// Shapes: topk_steps.cuh. Memory: what their arguments point to, and shared memory for one sort (12 bytes a place).
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include "../device/launch.cuh"
#include "../pairs/pairs.cuh"
#include "topk_steps.cuh"

namespace shoal_cuda {
namespace {

constexpr uint32_t FINISH_THREADS = 512, LISTED = 8;

/** Larger floats have larger keys. */
__device__ __forceinline__ uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/** Better scores have smaller keys; what is no number is last. */
__device__ __forceinline__ uint64_t order_of(double score) {
  if (isnan(score)) return ~0ull;
  const uint64_t bits = static_cast<uint64_t>(__double_as_longlong(score + 0.0)); // −0 and 0 are equal
  return bits >> 63 ? bits : ~(bits | 1ull << 63);
}
__device__ __forceinline__ double score_of(uint64_t order) {
  return __longlong_as_double(static_cast<long long>(order >> 63 ? order : ~order & ~(1ull << 63)));
}

__device__ __forceinline__ uint32_t warp_sum(uint32_t value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(0xffffffffu, value);
#else
  for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
#endif
}

/** Sum over the block, in every thread. One barrier: calls take turns with two lines of `sums`. */
__device__ __forceinline__ uint32_t block_count(uint32_t mine, uint32_t (*sums)[32], uint32_t turn) {
  mine = warp_sum(mine);
  if (threadIdx.x % 32 == 0) sums[turn % 2][threadIdx.x / 32] = mine;
  __syncthreads();
  uint32_t sum = 0;
  for (uint32_t warp = 0; warp < blockDim.x / 32; warp++) sum += sums[turn % 2][warp];
  return sum;
}

/**
 * The `rank`-th largest (1 is the largest) of `count` floats, of which there are as many: bit by bit, how many keys are
 * at least so large. A few for each thread lie in registers; `score(i)` reads the others again each time.
 */
template <class Score>
__device__ float largest(uint32_t rank, uint32_t count, const Score &score, uint32_t (*sums)[32]) {
  uint32_t keys[LISTED];
#pragma unroll
  for (uint32_t i = 0; i < LISTED; i++)
    keys[i] = i * blockDim.x + threadIdx.x < count ? key_of(score(i * blockDim.x + threadIdx.x)) : 0;
  const auto each = [&](const auto &work) {
#pragma unroll
    for (uint32_t i = 0; i < LISTED; i++) work(keys[i]);
    for (uint32_t i = LISTED * blockDim.x + threadIdx.x; i < count; i += blockDim.x) work(key_of(score(i)));
  };
  uint32_t least = 0; // at least `rank` keys are not below
  for (uint32_t bit = 0x80000000u, turn = 0; bit != 0; bit >>= 1, turn++) {
    uint32_t mine = 0;
    each([&](uint32_t key) { mine += key >= (least | bit); });
    const uint32_t above = block_count(mine, sums, turn);
    if (above >= rank) least |= bit;
    if (above == rank) break;
  }
  // Exactly `rank` keys are not below, or all bits are known: the smallest of those keys.
  uint32_t smallest = 0xffffffffu;
  each([&](uint32_t key) {
    if (key >= least) smallest = min(smallest, key);
  });
  for (int other = 16; other > 0; other /= 2) smallest = min(smallest, __shfl_xor_sync(0xffffffffu, smallest, other));
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[0][threadIdx.x / 32] = smallest;
  __syncthreads();
  for (uint32_t warp = 0; warp < blockDim.x / 32; warp++) smallest = min(smallest, sums[0][warp]);
  __syncthreads();
  return value_of(smallest);
}

/** One block a query, padding included. `raw` is queries × dims. */
__global__ void __launch_bounds__(128) prepare_kernel(const float *raw, uint32_t count, uint32_t dims,
                                                      enum shoal_metric metric, const Summary *summary, Prepared to) {
  const uint32_t query = blockIdx.x, padded = divided_up(dims, K_STEP) * K_STEP;
  __half *const half = reinterpret_cast<__half *>(to.half) + static_cast<uint64_t>(query) * padded;
  next_may_begin();
  if (query >= count) {
    for (uint32_t d = threadIdx.x; d < padded; d += blockDim.x) half[d] = __float2half_rn(0.0f);
    if (threadIdx.x == 0) to.threshold[query] = INFINITY, to.bias_scale[query] = 0;
    return;
  }
  const float *const from = raw + static_cast<uint64_t>(query) * dims;
  // read again instead of `from`, which may be across the link
  float *const plain = to.padded + static_cast<uint64_t>(query) * padded;
  double square = 0;
  for (uint32_t d = threadIdx.x; d < padded; d += blockDim.x) {
    const float value = d < dims ? from[d] : 0.0f;
    plain[d] = value;
    square += static_cast<double>(value) * value;
  }
  const double norm = sqrt(block_sum(square));
  // What leaves the range in which fp32 has all its digits is left to fp64.
  const double longest = summary->longest;
  const bool is_plain = norm > 1e-15 && norm < 1e15 &&
                        (metric == SHOAL_COSINE || (longest > 1e-15 && longest < 1e15)) && summary->strange_rows == 0;
  const double scale = is_plain ? HALF_LENGTH / norm : 0;
  double difference = 0;
  for (uint32_t d = threadIdx.x; d < padded; d += blockDim.x) {
    const double value = plain[d] * scale;
    const __half rounded = __float2half_rn(static_cast<float>(value));
    half[d] = rounded;
    const double error = value - static_cast<double>(__half2float(rounded));
    difference += error * error;
  }
  const double query_error = sqrt(block_sum(difference)) / HALF_LENGTH;
  if (threadIdx.x != 0) return;
  const double row_error = summary->half_error, length = metric == SHOAL_COSINE ? 1 : longest;
  // Rounding of both operands; then, for each 16 dimensions, 17 terms cut off at 2^-23 of the largest; then factor and
  // bias.
  const double rounding =
      query_error + row_error + query_error * row_error + (1.1 * padded + 32) / (1 << 23) * 1.01 + 1.0 / (1 << 21);
  const double bias_scale = metric == SHOAL_L2 && is_plain ? HALF_LENGTH / (2 * norm) : 0;
  const double error = HALF_LENGTH * length * rounding + length * length * bias_scale / (1 << 21) + 1e-28;
  to.norms[query] = norm;
  to.bias_scale[query] = static_cast<float>(bias_scale);
  to.margin[query] = static_cast<float>(2 * error * 1.000001);
  to.threshold[query] = is_plain ? -INFINITY : INFINITY;
  to.found[query] = is_plain ? 0 : NOT_PROVEN;
}

/** The `rank`-th best of a sample's groups, less the margin. One block a query. */
__global__ void __launch_bounds__(256)
    threshold_kernel(const float *maxima, uint32_t groups, uint32_t rank, Prepared prepared) {
  __shared__ uint32_t sums[2][32];
  const uint32_t query = blockIdx.x;
  next_may_begin();
  after_previous();
  // A query that is not plain lists nothing.
  const float least =
      largest(rank, groups, [&](uint32_t i) { return maxima[static_cast<uint64_t>(query) * groups + i]; }, sums);
  if (threadIdx.x == 0)
    prepared.threshold[query] = prepared.found[query] == NOT_PROVEN ? INFINITY : least - prepared.margin[query];
}

/** Dynamic shared memory: sort_size × (key, row). One block a query. */
template <enum shoal_dtype TYPE, enum shoal_metric METRIC>
__global__ void __launch_bounds__(FINISH_THREADS) finish_kernel(Finish f) {
  extern __shared__ __align__(16) char shared[];
  uint64_t *const keys = reinterpret_cast<uint64_t *>(shared);
  uint32_t *const numbers = reinterpret_cast<uint32_t *>(keys + f.sort_size);
  __shared__ uint32_t sums[2][32], candidates;
  after_previous();
  const uint32_t query = blockIdx.x, kept = min(f.kept, f.rows.count - f.summary->nan_rows);
  uint32_t count = f.rows.count;
  if (threadIdx.x == 0) candidates = 0;
  if (f.all != nullptr) {
    const double *const all = f.all + static_cast<uint64_t>(query) * count;
    const auto score_at = [&](uint32_t i) { return METRIC == SHOAL_L2 ? -all[i] : all[i]; };
    // Sorting all took twice as long as everything else: what rounds to less than the last of the best does is not
    // among them.
    const float least =
        kept > 0 && kept * 4 < count
            ? largest(
                  kept, count,
                  [&](uint32_t i) { return isnan(score_at(i)) ? -INFINITY : static_cast<float>(score_at(i)); }, sums)
            : -INFINITY;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
      const double score = score_at(i);
      if (!(static_cast<float>(score) >= least)) continue;
      const uint32_t place = atomicAdd(&candidates, 1u);
      keys[place] = order_of(score), numbers[place] = i;
    }
    __syncthreads();
    count = candidates;
  } else {
    const uint32_t listed = f.prepared.found[query]; // NOT_PROVEN is more than there is room for
    const Candidate *const list = f.list + static_cast<uint64_t>(query) * f.room;
    bool is_proven = listed <= f.room && listed >= kept && kept > 0;
    float least = 0;
    if (is_proven) {
      least = largest(kept, listed, [&](uint32_t i) { return list[i].score; }, sums) - f.prepared.margin[query];
      is_proven = least >= f.prepared.threshold[query];
    }
    __syncthreads();
    if (is_proven)
      for (uint32_t i = threadIdx.x; i < listed; i += blockDim.x) {
        const Candidate candidate = list[i];
        if (!(candidate.score >= least)) continue;
        const uint32_t place = atomicAdd(&candidates, 1u);
        if (place < f.sort_size) numbers[place] = candidate.row;
      }
    __syncthreads();
    count = candidates;
    if (!is_proven || count > f.sort_size) {
      if (threadIdx.x == 0) f.found[query] = kept == 0 ? 0 : NOT_PROVEN;
      return;
    }
  }
  __syncthreads();
  uint32_t size = 1;
  while (size < count) size *= 2;
  const uint32_t lane = threadIdx.x % PAIR_LANES, stride = divided_up(f.rows.dims, K_STEP) * K_STEP;
  const float *const asked = f.prepared.padded + static_cast<uint64_t>(query) * stride;
  const double norm = f.prepared.norms[query];
  if (f.all == nullptr) {
    for (uint32_t i = threadIdx.x / PAIR_LANES; i < count; i += FINISH_THREADS / PAIR_LANES) {
      const uint32_t number[1] = {numbers[i]};
      double score[1];
      exact_scores<TYPE, METRIC, 1>(f.rows, number, asked, norm, lane, score);
      if (lane == 0) keys[i] = order_of(METRIC == SHOAL_L2 ? -score[0] : score[0]);
    }
  }
  for (uint32_t i = count + threadIdx.x; i < size; i += blockDim.x) keys[i] = ~0ull, numbers[i] = 0xffffffffu;
  __syncthreads();
  // Bitonic sort by key, then by row. Pairs up to 32 apart are of 64 places that one warp has from step to step.
  for (uint32_t run = 2; run <= size; run *= 2)
    for (uint32_t apart = run / 2; apart > 0; apart /= 2) {
      for (uint32_t i = threadIdx.x; i < size / 2; i += blockDim.x) {
        const uint32_t a = i / apart * apart * 2 + i % apart, b = a + apart;
        const bool is_after = keys[a] > keys[b] || (keys[a] == keys[b] && numbers[a] > numbers[b]);
        if (is_after == ((a & run) == 0)) {
          const uint64_t key = keys[a];
          const uint32_t number = numbers[a];
          keys[a] = keys[b], numbers[a] = numbers[b], keys[b] = key, numbers[b] = number;
        }
      }
      const uint32_t next_apart = apart > 1 ? apart / 2 : run;
      if (apart > 32 || next_apart > 32 || next_apart == size)
        __syncthreads();
      else
        __syncwarp();
    }
  uint32_t mine = 0;
  for (uint32_t i = threadIdx.x; i < min(kept, count); i += blockDim.x) {
    if (keys[i] == ~0ull) continue;
    mine++;
    const double score = score_of(keys[i]);
    f.best[static_cast<uint64_t>(query) * f.kept + i] = numbers[i];
    f.scores[static_cast<uint64_t>(query) * f.kept + i] = (METRIC == SHOAL_L2 ? -score : score) + 0.0;
  }
  __syncthreads();
  const uint32_t filled = block_count(mine, sums, 0);
  if (threadIdx.x == 0) f.found[query] = filled;
}

} // namespace

void prepare_queries(const float *raw, uint32_t count, uint32_t padded, uint32_t dims, enum shoal_metric metric,
                     const Summary *summary, const Prepared &to, cudaStream_t stream) {
  prepare_kernel<<<padded, 128, 0, stream>>>(raw, count, dims, metric, summary, to);
  check(cudaGetLastError(), "the kernel of queries");
}

void find_thresholds(const float *maxima, uint32_t groups, uint32_t rank, uint32_t count, const Prepared &prepared,
                     int device, cudaStream_t stream) {
  launch_overlapping("the kernel of thresholds", device, threshold_kernel, count, 256, 0, stream, maxima, groups, rank,
                     prepared);
}

void finish_queries(const Finish &finish, enum shoal_metric metric, uint32_t count, int device, cudaStream_t stream) {
  const size_t bytes = finish.sort_size * 12;
  with_kind(finish.rows.dtype, metric, [&](auto type, auto known) {
    allow_shared<finish_kernel<decltype(type)::value, decltype(known)::value>>(device, bytes);
    launch_overlapping("the kernel of the last step", device,
                       finish_kernel<decltype(type)::value, decltype(known)::value>, count, FINISH_THREADS, bytes,
                       stream, finish);
  });
}

} // namespace shoal_cuda

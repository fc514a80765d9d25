// Exact scores of chosen pairs: 16 lanes have four pairs, gathered rows read by 16 bytes, fp64 sums. Bound by memory:
// bytes of the rows.
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

/** Pairs::query_of for ranges that begin at 0. */
void find_queries(const uint32_t *begin, uint32_t pairs, uint32_t *query_of) {
  for (uint32_t pair = 0, query = 0; pair < pairs; pair += TOGETHER) {
    while (begin[query + 1] <= pair) query++;
    *query_of++ = query | (begin[query + 1] < std::min(pair + TOGETHER, pairs) ? SEVERAL : 0);
  }
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

using namespace shoal_cuda;

extern "C" int shoal_cuda_rescore(const shoal_cuda_rows *of, const float *queries, uint64_t query_count,
                                  enum shoal_metric metric, const uint32_t *begin, const uint32_t *candidates,
                                  double *scores, const shoal_cuda_terms *terms) {
  return answer([&] {
    const Rows &rows = of->rows;
    const shoal_cuda_terms none{}, &limits = terms == nullptr ? none : *terms;
    Lease workspace(of->device, &limits);
    shoal_cuda_times times{};
    const uint32_t stride = padded_dims(rows.dims);
    // Queries in groups of at most 4,096, and their candidates in pieces: 13 bytes each.
    const uint64_t group = std::max<uint64_t>(
        1, std::min<uint64_t>(
               query_count,
               limits.work_bytes == 0 ? 4096 : std::min<uint64_t>(4096, limits.work_bytes / 2 / (stride * 4ull + 16))));
    const auto bytes_for = [&](uint64_t pairs) {
      return group * (stride * 4ull + 16) + pairs * 12 + divided_up<uint64_t>(pairs, TOGETHER) * 4 + 2048;
    };
    const uint64_t most = std::max<uint64_t>(1, begin[query_count]);
    uint64_t piece = std::min<uint64_t>(most, 1 << 22);
    while (limits.work_bytes != 0 && piece > 1 && bytes_for(piece) > limits.work_bytes) piece /= 2;
    Shares scratch(workspace->work(bytes_for(piece), limits.work_bytes));
    float *const padded = scratch.take<float>(group * stride);
    double *const norms = scratch.take<double>(group), *const device_scores = scratch.take<double>(piece);
    uint32_t *const device_begin = scratch.take<uint32_t>(group + 1), *const device_candidates = scratch.take<uint32_t>(
                                                                          piece +
                                                                          divided_up<uint64_t>(piece, TOGETHER));
    char *const host = workspace->host(group * rows.dims * 4 + (group + 1) * 4 + piece * 12 +
                                       divided_up<uint64_t>(piece, TOGETHER) * 4 + 64);
    double *const host_scores = reinterpret_cast<double *>(host);
    uint32_t *const host_candidates = reinterpret_cast<uint32_t *>(host + piece * 8), *const host_begin =
                                                                                          host_candidates + piece +
                                                                                          divided_up<uint64_t>(
                                                                                              piece, TOGETHER);
    float *const host_queries = reinterpret_cast<float *>(host_begin + group + 1);
    const bool is_direct = group * rows.dims * 4 + (group + 1) * 4 + piece * 13 <= DIRECT_BYTES;
    for (uint64_t q0 = 0; q0 < query_count; q0 += group) {
      const uint64_t count = std::min(group, query_count - q0);
      for (uint64_t first = begin[q0]; first < begin[q0 + count]; first += piece) {
        refuse_stopped(limits.stop);
        const uint32_t pairs = static_cast<uint32_t>(std::min<uint64_t>(piece, begin[q0 + count] - first));
        // Ranges as seen from this piece: what lies before it begins at 0.
        for (uint64_t q = 0; q <= count; q++)
          host_begin[q] = begin[q0 + q] <= first ? 0 : static_cast<uint32_t>(begin[q0 + q] - first);
        std::copy_n(candidates + first, pairs, host_candidates);
        const uint32_t groups = divided_up(pairs, TOGETHER);
        find_queries(host_begin, pairs, host_candidates + pairs);
        std::copy_n(queries + q0 * rows.dims, count * rows.dims, host_queries);
        const uint64_t asked_bytes = count * rows.dims * 4;
        workspace->mark(workspace->begun, workspace->stream);
        pad_queries(host_queries, static_cast<uint32_t>(count), rows.dims, padded, norms, workspace->stream);
        if (is_direct) {
          score_pairs(rows, metric, {padded, norms, host_begin, host_candidates, host_candidates + pairs, 0, 0, pairs},
                      {host_scores, nullptr}, of->device, workspace->stream);
        } else {
          // Candidates arrive meanwhile.
          check(cudaMemcpyAsync(device_begin, host_begin, (count + 1) * 4, cudaMemcpyHostToDevice, workspace->copies),
                "ranges");
          check(cudaMemcpyAsync(device_candidates, host_candidates, (pairs + groups) * 4ull, cudaMemcpyHostToDevice,
                                workspace->copies),
                "candidates");
          check(cudaEventRecord(workspace->launched[0].handle, workspace->copies), "an event");
          check(cudaStreamWaitEvent(workspace->stream, workspace->launched[0].handle, 0), "candidates");
          workspace->mark(workspace->loaded, workspace->stream);
          score_pairs(rows, metric,
                      {padded, norms, device_begin, device_candidates, device_candidates + pairs, 0, 0, pairs},
                      {device_scores, nullptr}, of->device, workspace->stream);
          workspace->mark(workspace->computed, workspace->stream);
          check(cudaMemcpyAsync(host_scores, device_scores, pairs * 8ull, cudaMemcpyDeviceToHost, workspace->stream),
                "scores");
        }
        check(cudaEventRecord(workspace->ended.handle, workspace->stream), "an event");
        workspace->wait(workspace->ended, limits.stop);
        std::copy_n(host_scores, pairs, scores + first);
        const double device_us = workspace->between(workspace->begun, workspace->ended),
                     copy_us = is_direct ? 0
                                         : workspace->between(workspace->begun, workspace->loaded) +
                                               workspace->between(workspace->computed, workspace->ended);
        times.device_us += device_us, times.copy_us += copy_us, times.kernel_us += device_us - copy_us;
        times.copied_bytes += asked_bytes + (count + 1) * 4 + pairs * 12ull + groups * 4ull;
      }
    }
    if (limits.times != nullptr) *limits.times = times;
  });
}

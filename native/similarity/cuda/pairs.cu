// Exact scores of chosen pairs: 16 lanes have four pairs, gathered rows read by 16 bytes, fp64 sums. Bound by memory: bytes of the rows.
#include <type_traits>
#include <algorithm>
#include "pairs.cuh"

namespace shoal_cuda {
namespace {

/** So many pairs of one query are scored at a time by PAIR_LANES lanes. */
constexpr uint32_t THREADS = 256, TOGETHER = 4, PAIRS = THREADS / PAIR_LANES * TOGETHER;

template <enum shoal_dtype TYPE, enum shoal_metric METRIC>
__global__ void __launch_bounds__(THREADS, 2) score_kernel(Rows rows, Pairs pairs, double *scores) {
  const uint32_t lane = threadIdx.x % PAIR_LANES, stride = divided_up(rows.dims, K_STEP) * K_STEP;
  for (uint64_t pair = (static_cast<uint64_t>(blockIdx.x) * (THREADS / PAIR_LANES) + threadIdx.x / PAIR_LANES) * TOGETHER; pair < pairs.count; pair += static_cast<uint64_t>(gridDim.x) * PAIRS) {
    const uint32_t count = static_cast<uint32_t>(min(static_cast<uint64_t>(TOGETHER), pairs.count - pair));
    uint32_t query = 0, left; // pairs from here on that have the same query
    uint32_t numbers[TOGETHER];
    if (pairs.candidates == nullptr) {
      query = static_cast<uint32_t>(pair / pairs.each), left = pairs.each - static_cast<uint32_t>(pair % pairs.each);
#pragma unroll
      for (uint32_t n = 0; n < TOGETHER; n++) numbers[n] = pairs.first + static_cast<uint32_t>((pair + min(n, count - 1)) % pairs.each);
    } else {
#pragma unroll
      for (uint32_t n = 0; n < TOGETHER; n++) numbers[n] = __ldg(pairs.candidates + pair + min(n, count - 1));
      // begin[query] <= pair < begin[query + 1]: 16 lanes look at 16 places at a time.
      for (uint32_t range = pairs.query_count; range > 1;) {
        const uint32_t apart = divided_up(range, static_cast<uint32_t>(PAIR_LANES)), at = query + lane * apart, lanes = 0xffffu << (threadIdx.x & 16);
        const bool is_before = lane * apart < range && __ldg(pairs.begin + at) <= pair;
        const uint32_t last = static_cast<uint32_t>(__popc(__ballot_sync(lanes, is_before) & lanes)) - 1; // the first one always is
        query += last * apart, range = min(apart, range - last * apart);
      }
      left = __ldg(pairs.begin + query + 1) - static_cast<uint32_t>(pair);
    }
    if (left >= count) {
      double found[TOGETHER];
      exact_scores<TYPE, METRIC, TOGETHER>(rows, numbers, pairs.queries + static_cast<uint64_t>(query) * stride, pairs.norms[query], lane, found);
#pragma unroll
      for (uint32_t n = 0; n < TOGETHER; n++)
        if (lane == n && n < count) scores[pair + n] = found[n];
      continue;
    }
    for (uint32_t n = 0; n < count; n++) {
      while (left == 0) query++, left = pairs.candidates == nullptr ? pairs.each : __ldg(pairs.begin + query + 1) - __ldg(pairs.begin + query);
      left--;
      const uint32_t number[1] = {pairs.candidates == nullptr ? pairs.first + static_cast<uint32_t>((pair + n) % pairs.each) : __ldg(pairs.candidates + pair + n)};
      double found[1];
      exact_scores<TYPE, METRIC, 1>(rows, number, pairs.queries + static_cast<uint64_t>(query) * stride, pairs.norms[query], lane, found);
      if (lane == 0) scores[pair + n] = found[0];
    }
  }
}

__global__ void __launch_bounds__(128) pad_kernel(const float *raw, uint32_t dims, float *padded, double *norms) {
  const uint32_t stride = divided_up(dims, K_STEP) * K_STEP;
  const float *from = raw + static_cast<uint64_t>(blockIdx.x) * dims;
  float *to = padded + static_cast<uint64_t>(blockIdx.x) * stride;
  double square = 0;
  for (uint32_t d = threadIdx.x; d < stride; d += blockDim.x) {
    const float value = d < dims ? from[d] : 0.0f;
    to[d] = value;
    square += static_cast<double>(value) * value;
  }
  square = block_sum(square);
  if (threadIdx.x == 0) norms[blockIdx.x] = sqrt(square);
}

}  // namespace

void score_pairs(const Rows &rows, enum shoal_metric metric, const Pairs &pairs, double *scores, int device, cudaStream_t stream) {
  if (pairs.count == 0) return;
  const uint32_t wanted = static_cast<uint32_t>(std::min<uint64_t>(divided_up<uint64_t>(pairs.count, PAIRS), 1 << 30)), most = static_cast<uint32_t>(facts_of(device).multiprocessors) * 32;
  with_kind(rows.dtype, metric, [&](auto type, auto metric_known) { score_kernel<decltype(type)::value, decltype(metric_known)::value><<<wanted < most ? wanted : most, THREADS, 0, stream>>>(rows, pairs, scores); });
  check(cudaGetLastError(), "the kernel of exact scores");
}

void pad_queries(const float *raw, uint32_t count, uint32_t dims, float *padded, double *norms, cudaStream_t stream) {
  pad_kernel<<<count, 128, 0, stream>>>(raw, dims, padded, norms);
  check(cudaGetLastError(), "the kernel of queries");
}

}  // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" int shoal_cuda_rescore(const shoal_cuda_rows *of, const float *queries, uint64_t query_count, enum shoal_metric metric, const uint32_t *begin, const uint32_t *candidates,
                                  double *scores, const shoal_cuda_terms *terms) {
  return answer([&] {
    const Rows &rows = of->rows;
    const shoal_cuda_terms none{}, &limits = terms == nullptr ? none : *terms;
    Lease slot(of->device);
    shoal_cuda_times times{};
    const uint32_t stride = padded_dims(rows.dims);
    // Queries in groups of at most 4,096, and their candidates in pieces: 12 bytes each.
    const uint64_t group = std::max<uint64_t>(1, std::min<uint64_t>(query_count, limits.work_bytes == 0 ? 4096 : std::min<uint64_t>(4096, limits.work_bytes / 2 / ((rows.dims + stride) * 4 + 16))));
    const auto bytes_for = [&](uint64_t pairs) { return group * (static_cast<uint64_t>(rows.dims + stride) * 4 + 16) + pairs * 12 + 2048; };
    const uint64_t most = std::max<uint64_t>(1, begin[query_count]);
    uint64_t piece = std::min<uint64_t>(most, 1 << 22);
    while (limits.work_bytes != 0 && piece > 1 && bytes_for(piece) > limits.work_bytes) piece /= 2;
    Parts parts(slot->work(bytes_for(piece), limits.work_bytes));
    float *const raw = parts.take<float>(group * rows.dims), *const padded = parts.take<float>(group * stride);
    double *const norms = parts.take<double>(group), *const device_scores = parts.take<double>(piece);
    uint32_t *const device_begin = parts.take<uint32_t>(group + 1), *const device_candidates = parts.take<uint32_t>(piece);
    char *const host = slot->host(group * rows.dims * 4 + (group + 1) * 4 + piece * 12 + 64);
    double *const host_scores = reinterpret_cast<double *>(host);
    uint32_t *const host_candidates = reinterpret_cast<uint32_t *>(host + piece * 8), *const host_begin = host_candidates + piece;
    float *const host_queries = reinterpret_cast<float *>(host_begin + group + 1);
    for (uint64_t q0 = 0; q0 < query_count; q0 += group) {
      const uint64_t count = std::min(group, query_count - q0);
      for (uint64_t first = begin[q0]; first < begin[q0 + count]; first += piece) {
        refuse_stopped(limits.stop);
        const uint32_t pairs = static_cast<uint32_t>(std::min<uint64_t>(piece, begin[q0 + count] - first));
        // Ranges as seen from this piece: what lies before it begins at 0.
        for (uint64_t q = 0; q <= count; q++) host_begin[q] = begin[q0 + q] <= first ? 0 : static_cast<uint32_t>(begin[q0 + q] - first);
        std::copy_n(candidates + first, pairs, host_candidates);
        std::copy_n(queries + q0 * rows.dims, count * rows.dims, host_queries);
        check(cudaEventRecord(slot->begun.handle, slot->stream), "an event");
        check(cudaMemcpyAsync(raw, host_queries, count * rows.dims * 4, cudaMemcpyHostToDevice, slot->stream), "queries");
        pad_queries(raw, static_cast<uint32_t>(count), rows.dims, padded, norms, slot->stream);
        // Candidates arrive meanwhile.
        check(cudaMemcpyAsync(device_begin, host_begin, (count + 1) * 4, cudaMemcpyHostToDevice, slot->copies), "ranges");
        check(cudaMemcpyAsync(device_candidates, host_candidates, pairs * 4ull, cudaMemcpyHostToDevice, slot->copies), "candidates");
        check(cudaEventRecord(slot->launched[0].handle, slot->copies), "an event");
        check(cudaStreamWaitEvent(slot->stream, slot->launched[0].handle, 0), "candidates");
        check(cudaEventRecord(slot->loaded.handle, slot->stream), "an event");
        score_pairs(rows, metric, {padded, norms, device_begin, device_candidates, static_cast<uint32_t>(count), 0, 0, pairs}, device_scores, of->device, slot->stream);
        check(cudaEventRecord(slot->computed.handle, slot->stream), "an event");
        check(cudaMemcpyAsync(host_scores, device_scores, pairs * 8ull, cudaMemcpyDeviceToHost, slot->stream), "scores");
        check(cudaEventRecord(slot->ended.handle, slot->stream), "an event");
        slot->wait(slot->ended, limits.stop);
        std::copy_n(host_scores, pairs, scores + first);
        times.device_us += microseconds(slot->begun, slot->ended);
        times.copy_us += microseconds(slot->begun, slot->loaded) + microseconds(slot->computed, slot->ended);
        times.kernel_us += microseconds(slot->loaded, slot->computed);
        times.copied_bytes += count * rows.dims * 4 + (count + 1) * 4 + pairs * 12ull;
      }
    }
    if (limits.times != nullptr) *limits.times = times;
  });
}

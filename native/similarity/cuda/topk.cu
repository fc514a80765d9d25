// Exact top-k in five steps, none of which writes all scores to memory:
//   prepare    queries in fp16, and how far a coarse score may be from the true one (`margin` is twice that)
//   sample     coarse scores of some 16,384 rows spread over the collection; the j-th best of them, less the margin, is a threshold that
//              a few times k rows should pass
//   filter     coarse scores of all rows; those at the threshold or above are listed (coarse.cuh)
//   finish     one block a query: the k-th best coarse score t of the list; rows below t − margin are proven to be worse than k others;
//              the rest is scored in fp64 and sorted, ties to the lower row
//   host       queries whose list was too short or too long for that proof are scored in fp64 against every row and selected here
// The proof: k rows have coarse scores of at least t, so true ones of at least t − margin/2; a row whose coarse score is below
// t − margin is truly below t − margin/2. It needs all rows above t − margin in the list: t − margin must reach the threshold.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include "coarse.cuh"
#include "pairs.cuh"

namespace shoal_cuda {
namespace {

constexpr uint32_t FINISH_THREADS = 512, LISTED = 8;
/** `found` of a query that the host must do. */
constexpr uint32_t NOT_PROVEN = 0xffffffffu;
constexpr uint64_t MAX_QUERIES = 1024, DEFAULT_BYTES = 1ull << 30;
/** Fewer rows are all scored exactly: that is done before five kernels have started. */
constexpr uint32_t FEW_ROWS = 2048;

struct Prepared {
  float *padded;      // chunk × padded dims
  double *norms;      // chunk
  char *half;         // tiles of 128 × padded dims
  float *bias_scale, *threshold, *margin;
  uint32_t *found;
};

/** Larger floats have larger keys. */
__device__ __forceinline__ uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

/** Better scores have smaller keys; what is no number is last. */
__device__ __forceinline__ uint64_t order_of(double score) {
  if (isnan(score)) return ~0ull;
  const uint64_t bits = static_cast<uint64_t>(__double_as_longlong(score + 0.0)); // −0 and 0 are equal
  return bits >> 63 ? bits : ~(bits | 1ull << 63);
}
__device__ __forceinline__ double score_of(uint64_t order) { return __longlong_as_double(static_cast<long long>(order >> 63 ? order : ~order & ~(1ull << 63))); }

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
 * The `rank`-th largest (1 is the largest) of `count` floats, of which there are as many: bit by bit, how many keys are at least so
 * large. A few for each thread lie in registers; `score(i)` reads the others again each time.
 */
template <class Score>
__device__ float largest(uint32_t rank, uint32_t count, const Score &score, uint32_t (*sums)[32]) {
  uint32_t keys[LISTED];
#pragma unroll
  for (uint32_t i = 0; i < LISTED; i++) keys[i] = i * blockDim.x + threadIdx.x < count ? key_of(score(i * blockDim.x + threadIdx.x)) : 0;
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
  each([&](uint32_t key) { if (key >= least) smallest = min(smallest, key); });
  for (int other = 16; other > 0; other /= 2) smallest = min(smallest, __shfl_xor_sync(0xffffffffu, smallest, other));
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[0][threadIdx.x / 32] = smallest;
  __syncthreads();
  for (uint32_t warp = 0; warp < blockDim.x / 32; warp++) smallest = min(smallest, sums[0][warp]);
  __syncthreads();
  return value_of(smallest);
}

/** One block a query, padding included. `raw` is queries × dims. */
__global__ void __launch_bounds__(128) prepare_kernel(const float *raw, uint32_t count, uint32_t dims, enum shoal_metric metric, const Summary *summary, Prepared to) {
  const uint32_t query = blockIdx.x, padded = divided_up(dims, K_STEP) * K_STEP;
  __half *const half = reinterpret_cast<__half *>(to.half) + static_cast<uint64_t>(query) * padded;
  if (query >= count) {
    for (uint32_t d = threadIdx.x; d < padded; d += blockDim.x) half[d] = __float2half_rn(0.0f);
    if (threadIdx.x == 0) to.threshold[query] = INFINITY, to.bias_scale[query] = 0;
    return;
  }
  const float *from = raw + static_cast<uint64_t>(query) * dims;
  double square = 0;
  for (uint32_t d = threadIdx.x; d < padded; d += blockDim.x) {
    const float value = d < dims ? from[d] : 0.0f;
    to.padded[static_cast<uint64_t>(query) * padded + d] = value;
    square += static_cast<double>(value) * value;
  }
  const double norm = sqrt(block_sum(square));
  // What leaves the range in which fp32 has all its digits is left to fp64.
  const double longest = summary->longest;
  const bool is_plain = norm > 1e-15 && norm < 1e15 && (metric == SHOAL_COSINE || (longest > 1e-15 && longest < 1e15)) && summary->strange_rows == 0;
  const double scale = is_plain ? HALF_LENGTH / norm : 0;
  double difference = 0;
  for (uint32_t d = threadIdx.x; d < padded; d += blockDim.x) {
    const double value = d < dims ? from[d] * scale : 0;
    const __half rounded = __float2half_rn(static_cast<float>(value));
    half[d] = rounded;
    const double error = value - static_cast<double>(__half2float(rounded));
    difference += error * error;
  }
  const double query_error = sqrt(block_sum(difference)) / HALF_LENGTH;
  if (threadIdx.x != 0) return;
  const double row_error = summary->half_error, length = metric == SHOAL_COSINE ? 1 : longest;
  // Rounding of both operands; then, for each 16 dimensions, 17 terms cut off at 2^-23 of the largest; then factor and bias.
  const double rounding = query_error + row_error + query_error * row_error + (1.1 * padded + 32) / (1 << 23) * 1.01 + 1.0 / (1 << 21);
  const double bias_scale = metric == SHOAL_L2 && is_plain ? HALF_LENGTH / (2 * norm) : 0;
  const double error = HALF_LENGTH * length * rounding + length * length * bias_scale / (1 << 21) + 1e-28;
  to.norms[query] = norm;
  to.bias_scale[query] = static_cast<float>(bias_scale);
  to.margin[query] = static_cast<float>(2 * error * 1.000001);
  to.threshold[query] = is_plain ? -INFINITY : INFINITY;
  to.found[query] = is_plain ? 0 : NOT_PROVEN;
}

/** The `rank`-th best of a sample's groups, less the margin. One block a query. */
__global__ void __launch_bounds__(256) threshold_kernel(const float *maxima, uint32_t groups, uint32_t rank, Prepared prepared) {
  __shared__ uint32_t sums[2][32];
  const uint32_t query = blockIdx.x;
  // A query that is not plain lists nothing.
  const float least = largest(rank, groups, [&](uint32_t i) { return maxima[static_cast<uint64_t>(query) * groups + i]; }, sums);
  if (threadIdx.x == 0) prepared.threshold[query] = prepared.found[query] == NOT_PROVEN ? INFINITY : least - prepared.margin[query];
}

struct Finish {
  Rows rows;
  const Summary *summary;
  Prepared prepared;
  const Candidate *list;
  uint32_t room, kept, sort_size;
  /** Exact scores of every row, which then are all candidates; null: of none. */
  const double *all;
  uint32_t *best;
  double *scores;
};

/** Dynamic shared memory: sort_size × (key, row). One block a query. */
template <enum shoal_dtype TYPE, enum shoal_metric METRIC>
__global__ void __launch_bounds__(FINISH_THREADS) finish_kernel(Finish f) {
  extern __shared__ __align__(16) char shared[];
  uint64_t *const keys = reinterpret_cast<uint64_t *>(shared);
  uint32_t *const numbers = reinterpret_cast<uint32_t *>(keys + f.sort_size);
  __shared__ uint32_t sums[2][32], candidates;
  const uint32_t query = blockIdx.x, kept = min(f.kept, f.rows.count - f.summary->nan_rows);
  uint32_t *const found = f.prepared.found + query;
  uint32_t count = f.rows.count;
  if (f.all != nullptr) {
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) numbers[i] = i;
  } else {
    const uint32_t listed = *found; // NOT_PROVEN is more than there is room for
    const Candidate *const list = f.list + static_cast<uint64_t>(query) * f.room;
    __syncthreads();
    bool is_proven = listed <= f.room && listed >= kept && kept > 0;
    float least = 0;
    if (is_proven) {
      least = largest(kept, listed, [&](uint32_t i) { return list[i].score; }, sums) - f.prepared.margin[query];
      is_proven = least >= f.prepared.threshold[query];
    }
    if (threadIdx.x == 0) candidates = 0;
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
      if (threadIdx.x == 0) *found = kept == 0 ? 0 : NOT_PROVEN;
      return;
    }
  }
  __syncthreads();
  uint32_t size = 1;
  while (size < count) size *= 2;
  const uint32_t lane = threadIdx.x % PAIR_LANES, stride = divided_up(f.rows.dims, K_STEP) * K_STEP;
  const float *const asked = f.prepared.padded + static_cast<uint64_t>(query) * stride;
  const double norm = f.prepared.norms[query];
  if (f.all != nullptr) {
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
      const double score = f.all[static_cast<uint64_t>(query) * count + i];
      keys[i] = order_of(METRIC == SHOAL_L2 ? -score : score);
    }
  } else {
    for (uint32_t i = threadIdx.x / PAIR_LANES; i < count; i += FINISH_THREADS / PAIR_LANES) {
      const uint32_t number[1] = {numbers[i]};
      double score[1];
      exact_scores<TYPE, METRIC, 1>(f.rows, number, asked, norm, lane, score);
      if (lane == 0) keys[i] = order_of(METRIC == SHOAL_L2 ? -score[0] : score[0]);
    }
  }
  for (uint32_t i = count + threadIdx.x; i < size; i += blockDim.x) keys[i] = ~0ull, numbers[i] = 0xffffffffu;
  __syncthreads();
  // Bitonic sort by key, then by row.
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
      __syncthreads();
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
  if (threadIdx.x == 0) *found = filled;
}

/** How one top-k is done. */
struct Plan {
  uint32_t chunk, padded, kept, sort_size;
  /** Every row is scored exactly, by one block; or by all, and selected by the host. */
  bool is_all, is_host;
  /** 0: no threshold is known beforehand, and there is room for every row. */
  uint32_t sampled, step, groups, rank;
  uint32_t room;
  /** Rows whose fp16 form is made at a time; 0: it is there. */
  uint32_t tile_rows;
  /** Scores for the host's selection. */
  uint32_t exact_rows;
};

struct Work {
  float *raw;
  Prepared prepared;
  float *maxima;
  Candidate *list;
  char *tile;
  /** Exact scores: of every row for each query of the chunk, or of some rows for the host. */
  double *exact;
  /** One after the other, as the host gets them: scores, best, found. */
  double *scores;
  uint32_t *best;
};

Work lay_out_work(Parts &parts, const Plan &plan, uint32_t dims) {
  const uint64_t padded = padded_dims(dims), chunk = plan.chunk;
  Work work{};
  work.raw = parts.take<float>(chunk * dims);
  work.prepared.padded = parts.take<float>(chunk * padded);
  work.prepared.norms = parts.take<double>(chunk);
  work.prepared.half = parts.take<char>(plan.padded * padded * 2);
  work.prepared.bias_scale = parts.take<float>(plan.padded);
  work.prepared.threshold = parts.take<float>(plan.padded);
  work.prepared.margin = parts.take<float>(plan.padded);
  work.scores = parts.take<double>(chunk * plan.kept + divided_up(chunk * plan.kept, uint64_t{2}) + divided_up(chunk, uint64_t{2}));
  work.best = reinterpret_cast<uint32_t *>(work.scores + chunk * plan.kept);
  work.prepared.found = work.best + chunk * plan.kept;
  work.maxima = parts.take<float>(plan.sampled == 0 ? 0 : static_cast<uint64_t>(plan.padded) * plan.groups);
  work.list = parts.take<Candidate>(plan.is_all || plan.is_host ? 0 : chunk * plan.room);
  work.tile = parts.take<char>(plan.tile_rows * half_stride_of(dims) + 256);
  work.exact = parts.take<double>(plan.is_all ? chunk * plan.exact_rows : plan.exact_rows);
  return work;
}

size_t work_bytes(const Plan &plan, uint32_t dims) {
  Parts parts;
  lay_out_work(parts, plan, dims);
  return parts.used();
}

uint32_t sort_places(size_t shared_bytes) {
  uint32_t places = 256;
  while ((places * 2) * 12 + 1024 <= shared_bytes) places *= 2;
  return places;
}

/** The plan that needs at most `limit` bytes, if there is one; fewer queries at a time otherwise, down to one. */
Plan plan_for(uint32_t count, uint32_t dims, bool has_half, uint64_t queries, uint32_t k, size_t shared_bytes, uint64_t limit) {
  Plan plan{};
  plan.kept = std::min(k, count);
  const uint32_t most = sort_places(shared_bytes), wanted = plan.kept + std::max(64u, plan.kept / 4);
  plan.is_all = count <= std::min(FEW_ROWS, most) || (count <= most && static_cast<uint64_t>(plan.kept) * 16 > count);
  plan.is_host = !plan.is_all && wanted > most;
  plan.exact_rows = plan.is_all ? count : std::min<uint32_t>(count, limit == 0 ? 1 << 20 : static_cast<uint32_t>(std::min<uint64_t>(1 << 20, limit / 64 + 1024)));
  plan.sort_size = 256;
  while (plan.sort_size < (plan.is_all ? count : std::min(wanted, most))) plan.sort_size *= 2;
  const uint64_t bytes = limit == 0 ? DEFAULT_BYTES : limit;
  if (!plan.is_all && !plan.is_host) {
    plan.room = count;
    if (static_cast<uint64_t>(plan.kept) * 64 <= count) {
      const uint32_t about = std::min(count, std::max(8192u, std::min(count / 64, 32768u)));
      plan.step = count / about;
      plan.sampled = divided_up(count, plan.step);
      plan.groups = groups_for(plan.sampled);
      const double share = static_cast<double>(plan.sampled) / count, expected = plan.kept * share;
      // So many of the sample that among all rows k are above, but for one query in 10,000.
      plan.rank = static_cast<uint32_t>(std::ceil(expected + 4 * std::sqrt(expected) + 4));
      // Twice what is expected, and what chance may add: the margin lets more rows in.
      plan.room = static_cast<uint32_t>(std::min<double>(count, 2 * plan.rank / share * (1 + 6 / std::sqrt(plan.rank)) + 256));
    }
    if (!has_half) {
      const uint64_t rows = std::max<uint64_t>(plan.sampled, std::min<uint64_t>(bytes / 4, 256 << 20) / half_stride_of(dims) / 256 * 256);
      plan.tile_rows = static_cast<uint32_t>(std::min<uint64_t>(count, std::max<uint64_t>(rows, 256)));
    }
  }
  plan.chunk = static_cast<uint32_t>(std::min(queries, MAX_QUERIES));
  for (;; plan.chunk = divided_up(plan.chunk, 2u)) {
    plan.padded = divided_up(plan.chunk, QUERY_TILE) * QUERY_TILE;
    if (plan.chunk == 1 || work_bytes(plan, dims) <= bytes) return plan;
  }
}

/** Best rows of one part: of query q from q × k on. */
struct Best {
  uint32_t *rows;
  double *scores;
  uint32_t *found;
};

struct Query {
  const float *values;
  uint64_t count;
  enum shoal_metric metric;
  uint32_t k;
};

class Search {
 public:
  Search(Slot &slot, const Rows &rows, const Summary *summary, const Query &query, const shoal_cuda_terms &terms, const Best &best)
      : slot_(slot), rows_(rows), summary_(summary), query_(query), terms_(terms), best_(best), facts_(facts_of(slot.device)),
        plan_(plan_for(rows.count, rows.dims, rows.half != nullptr, query.count, query.k, facts_.shared_bytes, terms.work_bytes)) {}

  void run(shoal_cuda_times &times) {
    Parts parts(slot_.work(work_bytes(plan_, rows_.dims), terms_.work_bytes));
    work_ = lay_out_work(parts, plan_, rows_.dims);
    const size_t result_bytes = plan_.chunk * (static_cast<size_t>(plan_.kept) * 12 + 4) + 16, query_bytes = static_cast<size_t>(plan_.chunk) * rows_.dims * 4;
    host_ = slot_.host(result_bytes + query_bytes + plan_.exact_rows * 8ull + 64);
    for (uint64_t first = 0; first < query_.count; first += plan_.chunk) {
      refuse_stopped(terms_.stop);
      const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(plan_.chunk, query_.count - first));
      float *const queries = reinterpret_cast<float *>(host_ + (result_bytes + 15) / 16 * 16);
      exact_ = reinterpret_cast<double *>(host_ + (result_bytes + 15) / 16 * 16 + (query_bytes + 15) / 16 * 16);
      std::memcpy(queries, query_.values + first * rows_.dims, count * rows_.dims * 4ull);
      check(cudaEventRecord(slot_.begun.handle, slot_.stream), "an event");
      check(cudaMemcpyAsync(work_.raw, queries, count * rows_.dims * 4ull, cudaMemcpyHostToDevice, slot_.stream), "queries");
      check(cudaEventRecord(slot_.loaded.handle, slot_.stream), "an event");
      find(count);
      check(cudaEventRecord(slot_.computed.handle, slot_.stream), "an event");
      check(cudaMemcpyAsync(host_, work_.scores, plan_.chunk * (plan_.kept * 12ull + 4), cudaMemcpyDeviceToHost, slot_.stream), "results");
      check(cudaEventRecord(slot_.ended.handle, slot_.stream), "an event");
      slot_.wait(slot_.ended, terms_.stop);
      times.device_us += microseconds(slot_.begun, slot_.ended);
      times.copy_us += microseconds(slot_.begun, slot_.loaded) + microseconds(slot_.computed, slot_.ended);
      times.kernel_us += microseconds(slot_.loaded, slot_.computed);
      times.copied_bytes += count * rows_.dims * 4ull + plan_.chunk * (plan_.kept * 12ull + 4);
      take(first, count, times);
    }
  }

 private:
  /** Everything that the device does for one chunk of queries; nothing is waited for but every other launch of a long filter. */
  void find(uint32_t count) {
    prepare_kernel<<<plan_.padded, 128, 0, slot_.stream>>>(work_.raw, count, rows_.dims, query_.metric, summary_, work_.prepared);
    check(cudaGetLastError(), "the kernel of queries");
    if (plan_.is_host) return check(cudaMemsetAsync(work_.prepared.found, 0xff, count * 4ull, slot_.stream), "results");
    if (plan_.is_all) {
      score_pairs(rows_, query_.metric, {work_.prepared.padded, work_.prepared.norms, nullptr, nullptr, count, 0, rows_.count, static_cast<uint64_t>(count) * rows_.count}, work_.exact, slot_.device, slot_.stream);
    } else {
      if (plan_.sampled != 0) sample(count);
      filter(count);
    }
    const Finish finish{rows_, summary_, work_.prepared, work_.list, plan_.room, plan_.kept, plan_.sort_size, plan_.is_all ? work_.exact : nullptr, work_.best, work_.scores};
    const size_t bytes = plan_.sort_size * 12;
    with_kind(rows_.dtype, query_.metric, [&](auto type, auto metric) {
      allow_shared<finish_kernel<decltype(type)::value, decltype(metric)::value>>(slot_.device, bytes);
      finish_kernel<decltype(type)::value, decltype(metric)::value><<<count, FINISH_THREADS, bytes, slot_.stream>>>(finish);
    });
    check(cudaGetLastError(), "the kernel of the last step");
  }

  CoarseQueries queries(uint32_t count) const {
    return {work_.prepared.half, count, plan_.padded, padded_dims(rows_.dims), work_.prepared.bias_scale, work_.prepared.threshold};
  }

  CoarseRows coarse_rows(const char *half, uint64_t stride, uint32_t first, uint32_t step, uint32_t count) const {
    return {half, stride, static_cast<uint32_t>(half_stride_of(rows_.dims)), count, first, step, query_.metric == SHOAL_COSINE ? rows_.cosine_factor : rows_.dot_factor,
            query_.metric == SHOAL_L2 ? rows_.l2_bias : nullptr};
  }

  void sample(uint32_t count) {
    const char *half = rows_.half;
    uint64_t stride = rows_.half_stride * plan_.step;
    if (half == nullptr) {
      convert(rows_, 0, plan_.step, plan_.sampled, work_.tile, rows_.half_stride, slot_.stream);
      half = work_.tile, stride = rows_.half_stride;
    }
    coarse(coarse_rows(half, stride, 0, plan_.step, plan_.sampled), queries(count), {work_.maxima, plan_.groups, nullptr, nullptr, 0}, slot_.device, slot_.stream);
    threshold_kernel<<<count, 256, 0, slot_.stream>>>(work_.maxima, plan_.groups, plan_.rank, work_.prepared);
    check(cudaGetLastError(), "the kernel of thresholds");
  }

  /** In launches of some milliseconds, the next one under way while one is waited for: the caller may stop between them. */
  void filter(uint32_t count) {
    const uint64_t piece = std::max<uint64_t>(1 << 18, 1'000'000'000'000 / (static_cast<uint64_t>(plan_.padded) * padded_dims(rows_.dims)) / 256 * 256);
    const uint32_t most = static_cast<uint32_t>(std::min<uint64_t>(plan_.tile_rows == 0 ? rows_.count : plan_.tile_rows, piece));
    const CoarseOut out{nullptr, 0, work_.prepared.found, work_.list, plan_.room};
    uint32_t launches = 0;
    for (uint64_t first = 0; first < rows_.count; first += most, launches++) {
      if (launches >= 2) slot_.wait(slot_.launched[launches % 2], terms_.stop);
      const uint32_t rows = static_cast<uint32_t>(std::min<uint64_t>(most, rows_.count - first));
      const char *half = rows_.half == nullptr ? work_.tile : rows_.half + first * rows_.half_stride;
      if (rows_.half == nullptr) convert(rows_, static_cast<uint32_t>(first), 1, rows, work_.tile, rows_.half_stride, slot_.stream);
      coarse(coarse_rows(half, rows_.half_stride, static_cast<uint32_t>(first), 1, rows), queries(count), out, slot_.device, slot_.stream);
      if (first + most < rows_.count) check(cudaEventRecord(slot_.launched[launches % 2].handle, slot_.stream), "an event");
    }
  }

  void take(uint64_t first, uint32_t count, shoal_cuda_times &times) {
    const double *const scores = reinterpret_cast<const double *>(host_);
    const uint32_t *const rows = reinterpret_cast<const uint32_t *>(scores + static_cast<size_t>(plan_.chunk) * plan_.kept), *const found = rows + static_cast<size_t>(plan_.chunk) * plan_.kept;
    for (uint32_t q = 0; q < count; q++) {
      const uint64_t to = (first + q) * query_.k;
      if (found[q] == NOT_PROVEN) {
        by_host(q, first + q);
        times.redone++;
        continue;
      }
      best_.found[first + q] = found[q];
      std::memcpy(best_.rows + to, rows + static_cast<size_t>(q) * plan_.kept, found[q] * 4ull);
      std::memcpy(best_.scores + to, scores + static_cast<size_t>(q) * plan_.kept, found[q] * 8ull);
    }
  }

  /** Every row of one query in fp64, selected here. */
  void by_host(uint32_t q, uint64_t query) {
    struct Scored {
      double score;
      uint32_t row;
    };
    const auto is_better = [](const Scored &a, const Scored &b) { return a.score > b.score || (a.score == b.score && a.row < b.row); };
    std::vector<Scored> all;
    const uint32_t stride = padded_dims(rows_.dims);
    for (uint32_t first = 0; first < rows_.count; first += plan_.exact_rows) {
      refuse_stopped(terms_.stop);
      const uint32_t rows = std::min(plan_.exact_rows, rows_.count - first);
      score_pairs(rows_, query_.metric, {work_.prepared.padded + static_cast<uint64_t>(q) * stride, work_.prepared.norms + q, nullptr, nullptr, 1, first, rows, rows}, work_.exact, slot_.device, slot_.stream);
      check(cudaMemcpyAsync(exact_, work_.exact, rows * 8ull, cudaMemcpyDeviceToHost, slot_.stream), "scores");
      check(cudaStreamSynchronize(slot_.stream), "scores");
      for (uint32_t i = 0; i < rows; i++)
        if (!std::isnan(exact_[i])) all.push_back({query_.metric == SHOAL_L2 ? -exact_[i] : exact_[i], first + i});
      if (all.size() > plan_.kept) {
        std::nth_element(all.begin(), all.begin() + plan_.kept - 1, all.end(), is_better);
        all.resize(plan_.kept);
      }
    }
    std::sort(all.begin(), all.end(), is_better);
    best_.found[query] = static_cast<uint32_t>(all.size());
    for (size_t i = 0; i < all.size(); i++) {
      best_.rows[query * query_.k + i] = all[i].row;
      best_.scores[query * query_.k + i] = (query_.metric == SHOAL_L2 ? -all[i].score : all[i].score) + 0.0;
    }
  }

  Slot &slot_;
  const Rows &rows_;
  const Summary *summary_;
  const Query &query_;
  const shoal_cuda_terms &terms_;
  Best best_;
  const Facts &facts_;
  Plan plan_;
  Work work_{};
  char *host_ = nullptr;
  double *exact_ = nullptr;
};

/** Best rows of parts, each in order and numbered from 0: those of parts before come first where scores are equal. */
class Merge {
 public:
  Merge(const Query &query, uint32_t *best, double *scores, uint32_t *found) : query_(query), to_{best, scores, found} {
    std::fill_n(found, query.count, 0u);
  }

  void add(const Best &part, uint64_t first_row) {
    std::vector<uint32_t> rows(query_.k);
    std::vector<double> scores(query_.k);
    for (uint64_t q = 0; q < query_.count; q++) {
      const uint64_t at = q * query_.k;
      uint32_t i = 0, j = 0, n = 0;
      for (; n < query_.k && (i < to_.found[q] || j < part.found[q]); n++) {
        const bool is_mine = j == part.found[q] || (i < to_.found[q] && !(query_.metric == SHOAL_L2 ? part.scores[at + j] < to_.scores[at + i] : part.scores[at + j] > to_.scores[at + i]));
        rows[n] = is_mine ? to_.rows[at + i] : static_cast<uint32_t>(first_row + part.rows[at + j]);
        scores[n] = is_mine ? to_.scores[at + i++] : part.scores[at + j++];
      }
      std::copy_n(rows.begin(), n, to_.rows + at);
      std::copy_n(scores.begin(), n, to_.scores + at);
      to_.found[q] = n;
    }
  }

 private:
  const Query &query_;
  Best to_;
};

/** Results of one part, until they are merged. */
struct Held {
  std::vector<uint32_t> rows, found;
  std::vector<double> scores;
  explicit Held(const Query &query) : rows(query.count * query.k), found(query.count), scores(query.count * query.k) {}
  Best best() { return {rows.data(), scores.data(), found.data()}; }
};

void add_times(shoal_cuda_times &to, const shoal_cuda_times &more, bool side_by_side) {
  to.device_us = side_by_side ? std::max(to.device_us, more.device_us) : to.device_us + more.device_us;
  to.copy_us = side_by_side ? std::max(to.copy_us, more.copy_us) : to.copy_us + more.copy_us;
  to.kernel_us = side_by_side ? std::max(to.kernel_us, more.kernel_us) : to.kernel_us + more.kernel_us;
  to.copied_bytes += more.copied_bytes, to.redone += more.redone;
}

void check_query(const Query &query) {
  if (query.k == 0) fail(SHOAL_CUDA_INVALID, "k is 0: ask for 1 or more");
}

void search_part(const shoal_cuda_rows &part, const Query &query, const shoal_cuda_terms &terms, const Best &best, shoal_cuda_times &times) {
  if (part.rows.count == 0) return static_cast<void>(std::fill_n(best.found, query.count, 0u));
  Lease slot(part.device);
  Search(*slot, part.rows, part.device_summary, query, terms, best).run(times);
}

/** A part on another device: a thread of its own, whose failure is thrown by `join`. */
class Aside {
 public:
  template <class Work>
  explicit Aside(const Work &work) : thread_([this, work] {
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }) {}
  ~Aside() {
    if (thread_.joinable()) thread_.join();
  }
  void join() {
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace
}  // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" {

uint64_t shoal_cuda_topk_bytes(uint64_t rows, uint32_t dims, uint64_t query_count, uint32_t k) {
  if (rows == 0 || dims == 0 || query_count == 0 || k == 0) return 0;
  return work_bytes(plan_for(static_cast<uint32_t>(rows), dims, true, query_count, k, 99 * 1024, 0), dims);
}

int shoal_cuda_topk(const shoal_cuda_rows *const *parts, uint32_t part_count, const float *queries, uint64_t query_count, enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores,
                    uint32_t *found, const shoal_cuda_terms *terms) {
  return answer([&] {
    const Query query{queries, query_count, metric, k};
    check_query(query);
    shoal_cuda_terms limits = terms == nullptr ? shoal_cuda_terms{} : *terms;
    shoal_cuda_times times{};
    if (part_count == 1) {
      search_part(*parts[0], query, limits, {best, scores, found}, times);
    } else {
      // Devices side by side, each with the parts that lie on it.
      std::vector<std::unique_ptr<Held>> held;
      std::vector<int> devices;
      for (uint32_t p = 0; p < part_count; p++) {
        held.emplace_back(new Held(query));
        if (std::find(devices.begin(), devices.end(), parts[p]->device) == devices.end()) devices.push_back(parts[p]->device);
      }
      std::vector<shoal_cuda_times> taken(devices.size());
      std::vector<std::unique_ptr<Aside>> asides;
      for (size_t d = 0; d < devices.size(); d++)
        asides.emplace_back(new Aside([&, d] {
          for (uint32_t p = 0; p < part_count; p++) {
            if (parts[p]->device != devices[d]) continue;
            shoal_cuda_times mine{};
            search_part(*parts[p], query, limits, held[p]->best(), mine);
            add_times(taken[d], mine, false);
          }
        }));
      for (auto &aside : asides) aside->join();
      for (const auto &mine : taken) add_times(times, mine, true);
      Merge merge(query, best, scores, found);
      uint64_t first = 0;
      for (uint32_t p = 0; p < part_count; first += parts[p++]->rows.count) merge.add(held[p]->best(), first);
    }
    if (limits.times != nullptr) *limits.times = times;
  });
}

int shoal_cuda_topk_streamed(int device, const shoal_rows *rows, const float *queries, uint64_t query_count, enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores, uint32_t *found,
                             const shoal_cuda_terms *terms) {
  return answer([&] {
    const Query query{queries, query_count, metric, k};
    check_query(query);
    check_shape(*rows);
    shoal_cuda_terms limits = terms == nullptr ? shoal_cuda_terms{} : *terms;
    Lease slot(device);
    // Two pieces and the work of a search share what is allowed; pieces of 1 GB keep the link busy (0.75 of it with 256 MB).
    const uint64_t allowed = limits.work_bytes == 0 ? 4ull << 30 : limits.work_bytes;
    shoal_cuda_terms inner = limits;
    inner.work_bytes = allowed / 4;
    shoal_rows piece = *rows;
    piece.count = 1 << 10;
    const uint64_t per_row = std::max<uint64_t>(1, bytes_for(piece, false) / piece.count);
    const uint64_t piece_rows = std::max<uint64_t>(1, std::min({rows->count, allowed * 3 / 8 / per_row, std::max<uint64_t>(1, (1ull << 30) / per_row)}));
    piece.count = piece_rows;
    const size_t piece_bytes = bytes_for(piece, false);
    if (2 * piece_bytes > allowed) fail(SHOAL_CUDA_OUT_OF_MEMORY, "two pieces of one row each take %zu bytes, and %llu are allowed", 2 * piece_bytes, static_cast<unsigned long long>(allowed));
    Memory memory[2] = {Memory(device, piece_bytes), Memory(device, piece_bytes)};
    Event copied[2], began, all_copied;
    Merge merge(query, best, scores, found);
    Held held(query);
    shoal_cuda_times times{};
    std::unique_ptr<Aside> searching;
    Rows there[2];
    Summary *summary[2];
    uint64_t searched = 0;
    const auto finish = [&] {
      if (!searching) return;
      searching->join();
      searching.reset();
      merge.add(held.best(), searched);
    };
    const size_t row_bytes = rows->dims * element_bytes(rows->dtype);
    const auto begun = std::chrono::steady_clock::now();
    double copy_us = 0;
    for (uint64_t first = 0, turn = 0; first < rows->count; first += piece_rows, turn ^= 1) {
      piece.count = std::min(piece_rows, rows->count - first);
      Rows &now = there[turn];
      now = lay_out(memory[turn].at(), piece, false, &summary[turn]);
      check(cudaEventRecord(began.handle, slot->copies), "an event");
      if (now.stride != row_bytes) check(cudaMemsetAsync(memory[turn].at(), 0, piece.count * now.stride, slot->copies), "padding");
      copy_in(*slot, slot->copies, memory[turn].at(), now.stride, static_cast<const char *>(rows->data) + first * rows->stride, rows->stride, row_bytes, piece.count, limits.stop);
      if (rows->scales != nullptr) copy_in(*slot, slot->copies, reinterpret_cast<char *>(const_cast<float *>(now.scales)), 4, reinterpret_cast<const char *>(rows->scales + first), 4, 4, piece.count, limits.stop);
      check(cudaEventRecord(all_copied.handle, slot->copies), "an event");
      measure(now, summary[turn], slot->copies);
      check(cudaEventRecord(copied[turn].handle, slot->copies), "an event");
      slot->wait(copied[turn], limits.stop);
      copy_us += microseconds(began, all_copied);
      times.copied_bytes += piece.count * (row_bytes + (rows->scales == nullptr ? 0 : 4));
      finish();
      searched = first;
      searching.reset(new Aside([&, turn] {
        Lease other(device);
        shoal_cuda_times mine{};
        Search(*other, there[turn], summary[turn], query, inner, held.best()).run(mine);
        add_times(times, mine, false);
      }));
    }
    finish();
    times.copy_us += copy_us;
    times.device_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count();
    if (limits.times != nullptr) *limits.times = times;
  });
}

}  // extern "C"

// Exact top-k in five steps, none of which writes all scores to memory:
//   prepare    queries in fp16, and how far a coarse score may be from the true one (`margin` is twice that)
//   sample     coarse scores of some 16,384 rows spread over the collection; the j-th best of them, less the margin, is
//              a threshold that a few times k rows should pass
//   filter     coarse scores of all rows; those at the threshold or above are listed (coarse.cuh)
//   finish     one block a query: the k-th best coarse score t of the list; rows below t − margin are proven to be
//              worse than k others; the rest is scored in fp64 and sorted, ties to the lower row
//   host       queries whose list was too short or too long for that proof are scored in fp64 against every row and
//              selected here
// The proof: k rows have coarse scores of at least t, so true ones of at least t − margin/2; a row whose coarse score
// is below t − margin is truly below t − margin/2. It needs all rows above t − margin in the list: t − margin must
// reach the threshold.
// Shapes: search.h; queries are padded to a multiple of 64 dimensions and, for the coarse kernels, of 128 queries.
// Memory: `Work`, laid out for a chunk of queries that fits into `work_bytes`.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
//
// Why: docs/decisions/similarity-gpu.md#on-cuda-the-order-is-proven-as-well
#include <algorithm>
#include <cmath>
#include <cstring>
#include "../pairs/pairs.cuh"
#include "search.h"
#include "topk_steps.cuh"

namespace shoal_cuda {
namespace {

constexpr uint64_t MAX_QUERIES = 1024, DEFAULT_BYTES = 1ull << 30;
/** Fewer rows are all scored exactly: that is done before five kernels have started. */
constexpr uint32_t FEW_ROWS = 2048;

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
  Prepared prepared;
  float *maxima;
  Candidate *list;
  char *tile;
  /** Exact scores: of every row for each query of the chunk, or of some rows for the host. */
  double *exact;
  /** One after the other, as the host gets them: scores, best, found. */
  double *scores;
  uint32_t *best, *found;
};

void put_results(Work &work, double *at, const Plan &plan) {
  const uint64_t places = static_cast<uint64_t>(plan.chunk) * plan.kept;
  work.scores = at, work.best = reinterpret_cast<uint32_t *>(at + places), work.found = work.best + places;
}

Work lay_out_work(Shares &scratch, const Plan &plan, uint32_t dims) {
  const uint64_t padded = padded_dims(dims), chunk = plan.chunk;
  Work work{};
  work.prepared.padded = scratch.take<float>(chunk * padded);
  work.prepared.norms = scratch.take<double>(chunk);
  work.prepared.half = scratch.take<char>(plan.padded * padded * 2);
  work.prepared.bias_scale = scratch.take<float>(plan.padded);
  work.prepared.threshold = scratch.take<float>(plan.padded);
  work.prepared.margin = scratch.take<float>(plan.padded);
  work.scores = scratch.take<double>(chunk * plan.kept + divided_up(chunk * plan.kept, uint64_t{2}) +
                                     divided_up(chunk, uint64_t{2}));
  put_results(work, work.scores, plan);
  work.prepared.found = scratch.take<uint32_t>(chunk);
  work.maxima = scratch.take<float>(plan.sampled == 0 ? 0 : static_cast<uint64_t>(plan.padded) * plan.groups);
  work.list = scratch.take<Candidate>(plan.is_all || plan.is_host ? 0 : chunk * plan.room);
  work.tile = scratch.take<char>(plan.tile_rows * half_stride_of(dims) + 256);
  work.exact = scratch.take<double>(plan.is_all ? chunk * plan.exact_rows : plan.exact_rows);
  return work;
}

size_t work_bytes(const Plan &plan, uint32_t dims) {
  Shares scratch;
  lay_out_work(scratch, plan, dims);
  return scratch.used();
}

uint32_t sort_places(size_t shared_bytes) {
  uint32_t places = 256;
  while ((places * 2) * 12 + 1024 <= shared_bytes) places *= 2;
  return places;
}

/** How large a top-k is. */
struct Size {
  uint32_t rows, dims;
  bool has_half;
  uint64_t queries;
  uint32_t k;
};

/** The plan that needs at most `limit` bytes, if there is one; fewer queries at a time otherwise, down to one. */
Plan plan_for(const Size &size, size_t shared_bytes, uint64_t limit) {
  const uint32_t count = size.rows, dims = size.dims;
  Plan plan{};
  plan.kept = std::min(size.k, count);
  const uint32_t most = sort_places(shared_bytes), wanted = plan.kept + std::max(64u, plan.kept / 4);
  plan.is_all = count <= std::min(FEW_ROWS, most) || (count <= most && static_cast<uint64_t>(plan.kept) * 16 > count);
  plan.is_host = !plan.is_all && wanted > most;
  plan.exact_rows =
      plan.is_all
          ? count
          : std::min<uint32_t>(
                count, limit == 0 ? 1 << 20 : static_cast<uint32_t>(std::min<uint64_t>(1 << 20, limit / 64 + 1024)));
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
      plan.room =
          static_cast<uint32_t>(std::min<double>(count, 2 * plan.rank / share * (1 + 6 / std::sqrt(plan.rank)) + 256));
    }
    if (!size.has_half) {
      const uint64_t rows =
          std::max<uint64_t>(plan.sampled, std::min<uint64_t>(bytes / 4, 256 << 20) / half_stride_of(dims) / 256 * 256);
      plan.tile_rows = static_cast<uint32_t>(std::min<uint64_t>(count, std::max<uint64_t>(rows, 256)));
    }
  }
  plan.chunk = static_cast<uint32_t>(std::min(size.queries, MAX_QUERIES));
  for (;; plan.chunk = divided_up(plan.chunk, 2u)) {
    plan.padded = divided_up(plan.chunk, QUERY_TILE) * QUERY_TILE;
    if (plan.chunk == 1 || work_bytes(plan, dims) <= bytes) return plan;
  }
}

class Search {
 public:
  Search(Workspace &workspace, const Rows &rows, const Summary *summary, const Query &query,
         const shoal_cuda_terms &terms, const Best &best)
      : workspace_(workspace),
        rows_(rows),
        summary_(summary),
        query_(query),
        terms_(terms),
        best_(best),
        facts_(facts_of(workspace.device)),
        plan_(plan_for({rows.count, rows.dims, rows.half != nullptr, query.count, query.k}, facts_.shared_bytes,
                       terms.work_bytes)) {}

  void run(shoal_cuda_times &times) {
    Shares scratch(workspace_.work(work_bytes(plan_, rows_.dims), terms_.work_bytes));
    work_ = lay_out_work(scratch, plan_, rows_.dims);
    const size_t result_bytes = plan_.chunk * (static_cast<size_t>(plan_.kept) * 12 + 4) + 16,
                 query_bytes = static_cast<size_t>(plan_.chunk) * rows_.dims * 4;
    host_ = workspace_.host(result_bytes + query_bytes + plan_.exact_rows * 8ull + 64);
    // The first kernel reads queries where they lie, in pinned memory, each value once: a copy would wait behind those
    // of rows that stream past. Few results are written there by the last kernel.
    const bool is_written_there = result_bytes <= DIRECT_BYTES;
    if (is_written_there) put_results(work_, reinterpret_cast<double *>(host_), plan_);
    const uint64_t copied_results = is_written_there ? 0 : plan_.chunk * (plan_.kept * 12ull + 4);
    for (uint64_t first = 0; first < query_.count; first += plan_.chunk) {
      refuse_stopped(terms_.stop);
      const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(plan_.chunk, query_.count - first));
      float *const queries = reinterpret_cast<float *>(host_ + (result_bytes + 15) / 16 * 16);
      exact_ = reinterpret_cast<double *>(host_ + (result_bytes + 15) / 16 * 16 + (query_bytes + 15) / 16 * 16);
      std::memcpy(queries, query_.values + first * rows_.dims, count * rows_.dims * 4ull);
      const uint64_t asked_bytes = count * rows_.dims * 4ull;
      workspace_.mark(workspace_.begun, workspace_.stream);
      if (piece_rows() < rows_.count)
        find(queries, count);
      else
        workspace_.replay(key_of(rows_, summary_, query_.metric, query_.k, query_.count, terms_.work_bytes, count,
                                 work_, queries, coarse_asked()),
                          [&] { find(queries, count); });
      if (copied_results != 0) {
        workspace_.mark(workspace_.computed, workspace_.stream);
        check(cudaMemcpyAsync(host_, work_.scores, copied_results, cudaMemcpyDeviceToHost, workspace_.stream),
              "results");
      }
      check(cudaEventRecord(workspace_.ended.handle, workspace_.stream), "an event");
      workspace_.wait(workspace_.ended, terms_.stop);
      const double device_us = workspace_.between(workspace_.begun, workspace_.ended);
      const double copy_us = copied_results == 0 ? 0 : workspace_.between(workspace_.computed, workspace_.ended);
      times.device_us += device_us, times.copy_us += copy_us, times.kernel_us += device_us - copy_us;
      times.copied_bytes += asked_bytes + count * (plan_.kept * 12ull + 4);
      take(first, count, times);
    }
  }

 private:
  /**
   * Everything that the device does for one chunk of queries; nothing is waited for but every other launch of a long
   * filter.
   */
  void find(const float *raw, uint32_t count) {
    if (plan_.is_all)
      pad_queries(raw, count, rows_.dims, work_.prepared.padded, work_.prepared.norms, workspace_.stream);
    else
      prepare_queries(raw, count, plan_.padded, rows_.dims, query_.metric, summary_, work_.prepared, workspace_.stream);
    if (plan_.is_host) return;
    if (plan_.is_all) {
      score_pairs(rows_, query_.metric,
                  {work_.prepared.padded, work_.prepared.norms, nullptr, nullptr, nullptr, 0, rows_.count,
                   static_cast<uint64_t>(count) * rows_.count},
                  {work_.exact, nullptr}, workspace_.device, workspace_.stream);
    } else {
      if (plan_.sampled != 0) sample(count);
      filter(count);
    }
    finish_queries({rows_, summary_, work_.prepared, work_.list, plan_.room, plan_.kept, plan_.sort_size,
                    plan_.is_all ? work_.exact : nullptr, work_.best, work_.scores, work_.found},
                   query_.metric, count, workspace_.device, workspace_.stream);
  }

  CoarseQueries queries(uint32_t count) const {
    return {work_.prepared.half,     count, plan_.padded, padded_dims(rows_.dims), work_.prepared.bias_scale,
            work_.prepared.threshold};
  }

  CoarseRows coarse_rows(const char *half, uint64_t stride, uint32_t first, uint32_t step, uint32_t count) const {
    return {half,
            stride,
            static_cast<uint32_t>(half_stride_of(rows_.dims)),
            count,
            first,
            step,
            query_.metric == SHOAL_COSINE ? rows_.cosine_factor : rows_.dot_factor,
            query_.metric == SHOAL_L2 ? rows_.l2_bias : nullptr};
  }

  void sample(uint32_t count) {
    const char *half = rows_.half;
    uint64_t stride = rows_.half_stride * plan_.step;
    if (half == nullptr) {
      convert(rows_, 0, plan_.step, plan_.sampled, work_.tile, rows_.half_stride, workspace_.stream);
      half = work_.tile, stride = rows_.half_stride;
    }
    coarse(coarse_rows(half, stride, 0, plan_.step, plan_.sampled), queries(count),
           {work_.maxima, plan_.groups, nullptr, nullptr, 0}, workspace_.device, workspace_.stream);
    find_thresholds(work_.maxima, plan_.groups, plan_.rank, count, work_.prepared, workspace_.device,
                    workspace_.stream);
  }

  /** Rows of one launch of the filter. */
  uint32_t piece_rows() const {
    const uint64_t piece = std::max<uint64_t>(
        1 << 18, 1'000'000'000'000 / (static_cast<uint64_t>(plan_.padded) * padded_dims(rows_.dims)) / 256 * 256);
    return static_cast<uint32_t>(std::min<uint64_t>(plan_.tile_rows == 0 ? rows_.count : plan_.tile_rows, piece));
  }

  /**
   * In launches of some milliseconds, the next one under way while one is waited for: the caller may stop between them.
   */
  void filter(uint32_t count) {
    const uint32_t most = piece_rows();
    const CoarseOut out{nullptr, 0, work_.prepared.found, work_.list, plan_.room};
    uint32_t launches = 0;
    for (uint64_t first = 0; first < rows_.count; first += most, launches++) {
      if (launches >= 2) workspace_.wait(workspace_.launched[launches % 2], terms_.stop);
      const uint32_t rows = static_cast<uint32_t>(std::min<uint64_t>(most, rows_.count - first));
      const char *half = rows_.half == nullptr ? work_.tile : rows_.half + first * rows_.half_stride;
      if (rows_.half == nullptr)
        convert(rows_, static_cast<uint32_t>(first), 1, rows, work_.tile, rows_.half_stride, workspace_.stream);
      coarse(coarse_rows(half, rows_.half_stride, static_cast<uint32_t>(first), 1, rows), queries(count), out,
             workspace_.device, workspace_.stream);
      if (first + most < rows_.count)
        check(cudaEventRecord(workspace_.launched[launches % 2].handle, workspace_.stream), "an event");
    }
  }

  void take(uint64_t first, uint32_t count, shoal_cuda_times &times) {
    const double *const scores = reinterpret_cast<const double *>(host_);
    const uint32_t *const rows = reinterpret_cast<const uint32_t *>(scores +
                                                                    static_cast<size_t>(plan_.chunk) * plan_.kept),
                          *const found = rows + static_cast<size_t>(plan_.chunk) * plan_.kept;
    for (uint32_t q = 0; q < count; q++) {
      const uint64_t to = (first + q) * query_.k;
      if (plan_.is_host || found[q] == NOT_PROVEN) {
        workspace_.refuse_hurried("scoring every row once more");
        by_host(q, first + q);
        times.redone++;
        continue;
      }
      if (found[q] > plan_.kept)
        fail(SHOAL_CUDA_LOST, "the device says that it found %u of %u rows", found[q], plan_.kept);
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
    const auto is_better = [](const Scored &a, const Scored &b) {
      return a.score > b.score || (a.score == b.score && a.row < b.row);
    };
    std::vector<Scored> all;
    const uint32_t stride = padded_dims(rows_.dims);
    for (uint32_t first = 0; first < rows_.count; first += plan_.exact_rows) {
      refuse_stopped(terms_.stop);
      const uint32_t rows = std::min(plan_.exact_rows, rows_.count - first);
      score_pairs(rows_, query_.metric,
                  {work_.prepared.padded + static_cast<uint64_t>(q) * stride, work_.prepared.norms + q, nullptr,
                   nullptr, nullptr, first, rows, rows},
                  {work_.exact, nullptr}, workspace_.device, workspace_.stream);
      check(cudaMemcpyAsync(exact_, work_.exact, rows * 8ull, cudaMemcpyDeviceToHost, workspace_.stream), "scores");
      check(cudaStreamSynchronize(workspace_.stream), "scores");
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

  Workspace &workspace_;
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

} // namespace

size_t search_bytes(uint32_t rows, uint32_t dims, uint64_t queries, uint32_t k) {
  return work_bytes(plan_for({rows, dims, true, queries, k}, 99 * 1024, 0), dims);
}

void search(Workspace &workspace, const Rows &rows, const Summary *summary, const Query &query,
            const shoal_cuda_terms &terms, const Best &best, shoal_cuda_times &times) {
  Search(workspace, rows, summary, query, terms, best).run(times);
}

} // namespace shoal_cuda

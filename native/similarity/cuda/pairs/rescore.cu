// The call that scores chosen rows exactly: queries in groups of at most 4,096, and their candidates in pieces. Shapes:
// query q has the candidates [begin[q], begin[q + 1]), one score each. Memory: a group's queries and a piece's
// candidates and scores (`Plan`), within `work_bytes`; the same once more in pinned memory.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <algorithm>
#include "../device/facts.h"
#include "pairs.cuh"

namespace shoal_cuda {
namespace {

/** Pairs::query_of for ranges that begin at 0. */
void find_queries(const uint32_t *begin, uint32_t pairs, uint32_t *query_of) {
  for (uint32_t pair = 0, query = 0; pair < pairs; pair += TOGETHER) {
    while (begin[query + 1] <= pair) query++;
    *query_of++ = query | (begin[query + 1] < std::min(pair + TOGETHER, pairs) ? SEVERAL : 0);
  }
}

/** What is asked for; all of it in host memory. */
struct Asked {
  const float *queries;
  uint64_t count;
  enum shoal_metric metric;
  const uint32_t *begin, *candidates;
  double *scores;
};

/** Queries and candidates that are brought at a time. */
struct Plan {
  uint64_t group, piece;
};

/** Groups of TOGETHER pairs, which `Pairs::query_of` has a number each for. */
uint64_t groups_of(uint64_t pairs) { return divided_up<uint64_t>(pairs, TOGETHER); }

uint64_t bytes_for(const Plan &plan, uint32_t stride) {
  return plan.group * (stride * 4ull + 16) + plan.piece * 12 + groups_of(plan.piece) * 4 + 2048;
}

Plan plan_for(const Asked &asked, uint32_t stride, uint64_t work_bytes) {
  const uint64_t most_queries =
      work_bytes == 0 ? 4096 : std::min<uint64_t>(4096, work_bytes / 2 / (stride * 4ull + 16));
  const uint64_t most_pairs = std::max<uint64_t>(1, asked.begin[asked.count]);
  Plan plan{std::max<uint64_t>(1, std::min<uint64_t>(asked.count, most_queries)),
            std::min<uint64_t>(most_pairs, 1 << 22)};
  while (work_bytes != 0 && plan.piece > 1 && bytes_for(plan, stride) > work_bytes) plan.piece /= 2;
  return plan;
}

/** Arrays of one piece: ranges, candidates followed by their query_of, scores. On the device, and in pinned memory. */
struct Arrays {
  uint32_t *begin, *candidates;
  double *scores;
};

class Rescoring {
 public:
  Rescoring(Workspace &workspace, const Rows &rows, const Asked &asked, const shoal_cuda_terms &terms)
      : workspace_(workspace),
        rows_(rows),
        asked_(asked),
        terms_(terms),
        plan_(plan_for(asked, padded_dims(rows.dims), terms.work_bytes)) {
    const uint32_t stride = padded_dims(rows.dims);
    const uint64_t group = plan_.group, piece = plan_.piece, query_bytes = group * rows.dims * 4;
    Shares scratch(workspace.work(bytes_for(plan_, stride), terms.work_bytes));
    padded_ = scratch.take<float>(group * stride);
    norms_ = scratch.take<double>(group);
    there_.scores = scratch.take<double>(piece);
    there_.begin = scratch.take<uint32_t>(group + 1);
    there_.candidates = scratch.take<uint32_t>(piece + groups_of(piece));
    char *const host = workspace.host(query_bytes + (group + 1) * 4 + piece * 12 + groups_of(piece) * 4 + 64);
    here_.scores = reinterpret_cast<double *>(host);
    here_.candidates = reinterpret_cast<uint32_t *>(host + piece * 8);
    here_.begin = here_.candidates + piece + groups_of(piece);
    queries_ = reinterpret_cast<float *>(here_.begin + group + 1);
    is_direct_ = query_bytes + (group + 1) * 4 + piece * 13 <= DIRECT_BYTES;
  }

  shoal_cuda_times run() {
    for (uint64_t query = 0; query < asked_.count; query += plan_.group) {
      const uint64_t count = std::min(plan_.group, asked_.count - query), end = asked_.begin[query + count];
      for (uint64_t first = asked_.begin[query]; first < end; first += plan_.piece) {
        refuse_stopped(terms_.stop);
        score(query, count, first, static_cast<uint32_t>(std::min<uint64_t>(plan_.piece, end - first)));
      }
    }
    return times_;
  }

 private:
  /** Scores `pairs` candidates from `first` on, which belong to `count` queries from `query` on. */
  void score(uint64_t query, uint64_t count, uint64_t first, uint32_t pairs) {
    fill(query, count, first, pairs);
    workspace_.mark(workspace_.begun, workspace_.stream);
    pad_queries(queries_, static_cast<uint32_t>(count), rows_.dims, padded_, norms_, workspace_.stream);
    if (is_direct_)
      launch(here_, pairs);
    else
      score_there(count, pairs);
    check(cudaEventRecord(workspace_.ended.handle, workspace_.stream), "an event");
    workspace_.wait(workspace_.ended, terms_.stop);
    std::copy_n(here_.scores, pairs, asked_.scores + first);
    note_times();
    times_.copied_bytes += count * rows_.dims * 4 + (count + 1) * 4 + pairs * 12ull + groups_of(pairs) * 4ull;
  }

  /** Puts a piece into pinned memory. */
  void fill(uint64_t query, uint64_t count, uint64_t first, uint32_t pairs) {
    // Ranges as seen from this piece: what lies before it begins at 0.
    for (uint64_t q = 0; q <= count; q++) {
      const uint32_t begin = asked_.begin[query + q];
      here_.begin[q] = begin <= first ? 0 : static_cast<uint32_t>(begin - first);
    }
    std::copy_n(asked_.candidates + first, pairs, here_.candidates);
    find_queries(here_.begin, pairs, here_.candidates + pairs);
    std::copy_n(asked_.queries + query * rows_.dims, count * rows_.dims, queries_);
  }

  void launch(const Arrays &in, uint32_t pairs) {
    score_pairs(rows_, asked_.metric, {padded_, norms_, in.begin, in.candidates, in.candidates + pairs, 0, 0, pairs},
                {in.scores, nullptr}, workspace_.device, workspace_.stream);
  }

  /** With copies to the device and from it. Candidates arrive while queries are prepared. */
  void score_there(uint64_t count, uint32_t pairs) {
    const cudaStream_t copies = workspace_.copies, stream = workspace_.stream;
    check(cudaMemcpyAsync(there_.begin, here_.begin, (count + 1) * 4, cudaMemcpyHostToDevice, copies), "ranges");
    check(cudaMemcpyAsync(there_.candidates, here_.candidates, (pairs + groups_of(pairs)) * 4ull,
                          cudaMemcpyHostToDevice, copies),
          "candidates");
    check(cudaEventRecord(workspace_.launched[0].handle, copies), "an event");
    check(cudaStreamWaitEvent(stream, workspace_.launched[0].handle, 0), "candidates");
    workspace_.mark(workspace_.loaded, stream);
    launch(there_, pairs);
    workspace_.mark(workspace_.computed, stream);
    check(cudaMemcpyAsync(here_.scores, there_.scores, pairs * 8ull, cudaMemcpyDeviceToHost, stream), "scores");
  }

  void note_times() {
    const double device_us = workspace_.between(workspace_.begun, workspace_.ended),
                 copy_us = is_direct_ ? 0
                                      : workspace_.between(workspace_.begun, workspace_.loaded) +
                                            workspace_.between(workspace_.computed, workspace_.ended);
    times_.device_us += device_us, times_.copy_us += copy_us, times_.kernel_us += device_us - copy_us;
  }

  Workspace &workspace_;
  const Rows &rows_;
  const Asked asked_;
  const shoal_cuda_terms &terms_;
  const Plan plan_;
  float *padded_, *queries_;
  double *norms_;
  Arrays there_, here_;
  /** So little that kernels read and write it in pinned memory. */
  bool is_direct_;
  shoal_cuda_times times_{};
};

} // namespace
} // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" int shoal_cuda_rescore(const shoal_cuda_rows *of, const float *queries, uint64_t query_count,
                                  enum shoal_metric metric, const uint32_t *begin, const uint32_t *candidates,
                                  double *scores, const shoal_cuda_terms *terms) {
  return answer([&] {
    const shoal_cuda_terms none{}, &limits = terms == nullptr ? none : *terms;
    Lease workspace(of->device, &limits);
    Rescoring rescoring(*workspace, of->rows, {queries, query_count, metric, begin, candidates, scores}, limits);
    const shoal_cuda_times times = rescoring.run();
    if (limits.times != nullptr) *limits.times = times;
  });
}

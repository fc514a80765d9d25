// Every score in fp32: the call, and the three ways in which scores reach the caller. Scores of one or two queries are
// those of pairs.cu, rounded; all others come from tiles.cu. Which kernel it is depends on the number of queries alone,
// so that a score has the same bits whatever rows are scored beside it. Shapes: scores are queries × rows in host
// memory. Memory: queries with their lengths, and two or three tiles (`Plan`), within `work_bytes`.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <algorithm>
#include "../device/copies.h"
#include "../device/facts.h"
#include "../pairs/pairs.cuh"
#include "tiles.h"

namespace shoal_cuda {
namespace {

/** Tiles of the matrix are whole tiles of blocks. */
constexpr uint64_t ROUND = 128;
/** Up to so many queries by pairs: these are done before a tile has come through. */
constexpr uint64_t PAIRED_QUERIES = 2;
/** Tiles on their way into pinned memory. */
constexpr uint32_t PLACES = 3;
/** So much is written by the kernels where the host reads it, and copied from there. */
constexpr size_t WRITTEN_BYTES = 256 << 10;

/**
 * How scores reach the caller:
 *   DIRECT   he has pinned memory, into which the device copies tile after tile by itself
 *   WRITTEN  they are few: kernels write them where the host reads them
 *   STAGED   tiles are copied by threads of the host, each while the next one is made
 */
enum class Mode { DIRECT, WRITTEN, STAGED };

struct Plan {
  Mode mode;
  /** Tiles that there is room for at the same time. */
  uint64_t places;
  /** Queries that are brought at a time, and those and the rows of a tile. */
  uint64_t chunk, deep, tile;

  uint64_t tile_bytes() const { return deep * tile * 4; }
  uint64_t bytes(uint32_t stride) const {
    return chunk * (static_cast<uint64_t>(stride) * 4 + 8) + places * tile_bytes() + 2048;
  }
};

/** `is_direct`: into pinned memory. */
Plan plan_for(const Rows &rows, uint64_t query_count, bool is_direct, uint64_t work_bytes) {
  const uint32_t stride = padded_dims(rows.dims);
  const uint64_t bytes = work_bytes == 0 ? 512ull << 20 : work_bytes, all_bytes = query_count * rows.count * 4;
  // Into pinned memory the device writes by itself: smaller tiles then, because of all but one what is made is hidden
  // behind what is copied, and more of them on their way, because the host looks at them late. Whole rows of the
  // matrix lie together there.
  const uint64_t wanted =
      is_direct ? std::min<uint64_t>(8 << 20, std::max<uint64_t>(1 << 20, all_bytes / 4 / 4)) : 32 << 20;
  const bool is_deep = is_direct && rows.count * WIDE_QUERIES <= wanted;
  Plan plan{is_direct ? Mode::DIRECT : Mode::STAGED, is_direct ? PLACES : 2, 0, 0, 0};
  const auto take_chunk = [&](uint64_t chunk) {
    plan.chunk = chunk;
    plan.deep = is_deep ? std::min(chunk, wanted / rows.count / WIDE_QUERIES * WIDE_QUERIES) : chunk;
  };
  take_chunk(std::min<uint64_t>(query_count, 4096));
  plan.tile = is_deep
                  ? rows.count
                  : std::min<uint64_t>(rows.count, std::max<uint64_t>(1 << 12, wanted / plan.chunk / ROUND * ROUND));
  while (plan.bytes(stride) > bytes && plan.tile > ROUND) plan.tile = std::max<uint64_t>(ROUND, plan.tile / 2);
  while (plan.bytes(stride) > bytes && plan.chunk > 1) take_chunk(plan.chunk / 2);
  while (plan.bytes(stride) > bytes && plan.tile > 1) plan.tile /= 2;
  if (!is_direct && all_bytes <= WRITTEN_BYTES && plan.chunk == query_count && plan.tile == rows.count)
    plan.mode = Mode::WRITTEN;
  return plan;
}

/** What is asked for: queries and scores are in host memory. */
struct Asked {
  const float *queries;
  uint64_t count;
  enum shoal_metric metric;
  float *scores;
};

class Matrix {
 public:
  Matrix(Workspace &workspace, const Rows &rows, const Asked &asked, const Plan &plan, const shoal_cuda_terms &terms)
      : workspace_(workspace), rows_(rows), asked_(asked), plan_(plan), terms_(terms), stride_(padded_dims(rows.dims)) {
    Shares scratch(workspace.work(plan.bytes(stride_), terms.work_bytes));
    padded_ = scratch.take<float>(plan.chunk * stride_);
    norms_ = scratch.take<double>(plan.chunk);
    for (uint64_t i = 0; i < plan.places; i++) out_[i] = scratch.take<float>(plan.deep * plan.tile);
    const bool is_written = plan.mode == Mode::WRITTEN;
    if (!is_written) workspace.refuse_hurried("so many scores");
    const uint64_t query_bytes = plan.chunk * rows.dims * 4;
    host_ = workspace.host(query_bytes + 256 + (is_written ? all_bytes() : 0));
    if (is_written) out_[0] = reinterpret_cast<float *>(host_ + divided_up<uint64_t>(query_bytes, 256) * 256);
  }

  shoal_cuda_times run() {
    for (first_query_ = 0; first_query_ < asked_.count; first_query_ += plan_.chunk) {
      bring_queries();
      switch (plan_.mode) {
        case Mode::DIRECT:
          score_directly();
          break;
        case Mode::WRITTEN:
          score_where_read();
          continue;
        case Mode::STAGED:
          score_staged();
      }
      check(cudaEventRecord(workspace_.computed.handle, workspace_.stream), "an event");
      workspace_.wait(workspace_.computed, terms_.stop);
      note_kernels(workspace_.computed);
    }
    return times_;
  }

 private:
  /** Scores that are made at a time: `deep` queries of the chunk from `query` on, `wide` rows from `first` on. */
  struct Part {
    uint64_t query, first;
    uint32_t deep, wide;
  };

  uint64_t all_bytes() const { return asked_.count * rows_.count * 4; }
  uint64_t parts_across() const { return divided_up<uint64_t>(rows_.count, plan_.tile); }
  uint64_t parts() const { return parts_across() * divided_up<uint64_t>(count_, plan_.deep); }
  Part part(uint64_t i) const {
    const uint64_t query = i / parts_across() * plan_.deep, first = i % parts_across() * plan_.tile;
    return {query, first, static_cast<uint32_t>(std::min<uint64_t>(plan_.deep, count_ - query)),
            static_cast<uint32_t>(std::min(plan_.tile, rows_.count - first))};
  }
  float *place_of(const Part &part) const {
    return asked_.scores + (first_query_ + part.query) * rows_.count + part.first;
  }

  void bring_queries() {
    count_ = static_cast<uint32_t>(std::min(plan_.chunk, asked_.count - first_query_));
    float *const raw = reinterpret_cast<float *>(host_);
    std::copy_n(asked_.queries + first_query_ * rows_.dims, static_cast<uint64_t>(count_) * rows_.dims, raw);
    workspace_.mark(workspace_.begun, workspace_.stream);
    pad_queries(raw, count_, rows_.dims, padded_, norms_, workspace_.stream);
  }

  /** Launches what makes part i, and records when it is made. */
  void make(uint64_t i) {
    const Part now = part(i);
    const Tile tile{padded_ + now.query * stride_,    norms_ + now.query, now.deep,
                    static_cast<uint32_t>(now.first), now.wide,           out_[i % plan_.places]};
    if (asked_.count <= PAIRED_QUERIES)
      score_pairs(rows_, asked_.metric,
                  {tile.queries, tile.norms, nullptr, nullptr, nullptr, tile.first, tile.wide,
                   static_cast<uint64_t>(tile.deep) * tile.wide},
                  {nullptr, tile.scores}, workspace_.device, workspace_.stream);
    else
      score_tile(rows_, asked_.metric, tile, asked_.count <= THIN_QUERIES, workspace_.stream);
    check(cudaEventRecord(made(i).handle, workspace_.stream), "an event");
  }
  const Event &made(uint64_t i) const { return workspace_.launched[i % plan_.places]; }
  const Event &left(uint64_t i) const { return workspace_.copied[i % plan_.places]; }

  void score_directly() {
    const cudaStream_t copies = workspace_.copies;
    for (uint64_t i = 0; i < parts(); i++) {
      if (i >= plan_.places) workspace_.wait(left(i), terms_.stop); // what was in this place has left it
      make(i);
      check(cudaStreamWaitEvent(copies, made(i).handle, 0), "scores");
      if (i == 0) workspace_.mark(workspace_.loaded, copies);
      const Part now = part(i);
      const float *const from = out_[i % plan_.places];
      if (now.wide == rows_.count)
        check(cudaMemcpyAsync(place_of(now), from, 4ull * now.deep * now.wide, cudaMemcpyDeviceToHost, copies),
              "scores");
      else
        check(cudaMemcpy2DAsync(place_of(now), rows_.count * 4ull, from, now.wide * 4ull, now.wide * 4ull, now.deep,
                                cudaMemcpyDeviceToHost, copies),
              "scores");
      check(cudaEventRecord(left(i).handle, copies), "an event");
    }
    check(cudaEventRecord(workspace_.ended.handle, copies), "an event");
    check(cudaStreamWaitEvent(workspace_.stream, workspace_.ended.handle, 0), "scores");
    workspace_.wait(workspace_.ended, terms_.stop);
    times_.copy_us += workspace_.between(workspace_.loaded, workspace_.ended);
    times_.copied_bytes += 4ull * count_ * rows_.count;
  }

  void score_where_read() {
    make(0);
    workspace_.wait(made(0), terms_.stop);
    note_kernels(made(0));
    std::copy_n(out_[0], asked_.count * rows_.count, asked_.scores);
    times_.copied_bytes += all_bytes();
  }

  void score_staged() {
    make(0);
    for (uint64_t i = 0; i < parts(); i++) {
      // While this part is copied, the next one is made.
      if (i + 1 < parts()) make(i + 1);
      workspace_.wait(made(i), terms_.stop);
      const Part now = part(i);
      workspace_.mark(workspace_.loaded, workspace_.copies);
      copy_out(workspace_, workspace_.copies, {place_of(now), rows_.count * 4ull},
               {out_[i % plan_.places], now.wide * 4ull}, {now.wide * 4ull, now.deep}, terms_.stop);
      check(cudaEventRecord(workspace_.ended.handle, workspace_.copies), "an event");
      check(cudaEventSynchronize(workspace_.ended.handle), "a copy");
      times_.copy_us += workspace_.between(workspace_.loaded, workspace_.ended);
      times_.copied_bytes += 4ull * now.wide * now.deep;
    }
  }

  void note_kernels(const Event &end) {
    const double us = workspace_.between(workspace_.begun, end);
    times_.kernel_us += us, times_.device_us += us;
  }

  Workspace &workspace_;
  const Rows &rows_;
  const Asked asked_;
  const Plan plan_;
  const shoal_cuda_terms &terms_;
  const uint32_t stride_;
  float *padded_, *out_[PLACES];
  double *norms_;
  char *host_;
  /** The queries that are there now: their first, and how many. */
  uint64_t first_query_ = 0;
  uint32_t count_ = 0;
  shoal_cuda_times times_{};
};

} // namespace
} // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" int shoal_cuda_matrix(const shoal_cuda_rows *of, const float *queries, uint64_t query_count,
                                 enum shoal_metric metric, float *scores, const shoal_cuda_terms *terms) {
  return answer([&] {
    const Rows &rows = of->rows;
    const shoal_cuda_terms none{}, &limits = terms == nullptr ? none : *terms;
    Lease workspace(of->device, &limits);
    if (rows.count == 0 || query_count == 0) return;
    const bool is_direct = query_count * rows.count * 4 > DIRECT_BYTES && is_pinned(scores);
    const Plan plan = plan_for(rows, query_count, is_direct, limits.work_bytes);
    Matrix matrix(*workspace, rows, {queries, query_count, metric, scores}, plan, limits);
    const shoal_cuda_times times = matrix.run();
    if (limits.times != nullptr) *limits.times = times;
  });
}

// Exact top-k: scores in fp32 by tiles of a matrix product, fused with their selection so that no score is written to
// memory. Whatever fp32 cannot prove to be worse than the k-th best is kept and scored in fp64; the k best of those are
// the answer, so it is the fp64 order, proven and not likely.
//
// Why: docs/decisions/similarity-cpu.md#the-order-of-a-search-is-proven-not-likely
#include <functional>
#include <limits>
#include "in_place.h"
#include "threads.h"

namespace shoal {
namespace {

/**
 * So many panels of queries at most (300 KB of 384 dimensions) pass over a block at a time; their scores lie in
 * between.
 */
constexpr size_t GROUP_PANELS = 16;

struct Scored {
  double score; // the larger the better: a distance is negative here
  uint32_t row;
};

bool is_better(const Scored &a, const Scored &b) { return a.score > b.score || (a.score == b.score && a.row < b.row); }

/** How far a score in fp32 may be from the one in fp64: `relative` × the k-th score, or what makes up `fixed`. */
struct Error {
  double fixed = 0, relative = 0, root = 0;

  /** A row whose score in fp32 is not above this is worse than `score`. */
  float limit_below(double score) const {
    const double slack = fixed + relative * std::fabs(score) + root * std::sqrt(std::fabs(score));
    return static_cast<float>(score - slack);
  }
};

size_t chain_dims(const Kernels &kernels) {
  return std::min(SEARCH_CHAIN_DIMS, SEARCH_CHAIN_BYTES / (kernels.tile_rows * sizeof(float)));
}

/**
 * One rounding (2^-24 of the term's size) for each addition of a chain, a few for scales and the last conversion; sizes
 * by Cauchy and Schwarz. 1e-35: products that leave the normal numbers of fp32.
 */
Error error_of(const shoal_rows &rows, enum shoal_metric metric, double query_norm) {
  const double chain =
      std::min<double>(rows.dims, SEARCH_CHAIN_DIMS) + static_cast<double>(rows.dims) / CHAIN_DIMS + 12;
  const double roundings = 1.01 * chain / (1 << 24);
  if (metric == SHOAL_COSINE) return {roundings + 1e-35, 1.0 / (1 << 23), 0};
  if (metric == SHOAL_DOT) return {roundings * query_norm * rows.longest + 1e-35, 1.0 / (1 << 23), 0};
  // A scaled value is rounded once before the difference is taken.
  const double rounded = rows.scales == nullptr ? 0 : rows.longest / (1 << 23);
  return {rounded * rounded + 1e-35, roundings, 2 * rounded};
}

/**
 * The best rows of one query among those that one thread has seen. Rows wait with their fp32 scores, so that hardly
 * more than k of them are scored in fp64 (0.6 µs each, most of it waiting for memory): k rows are at least `floor_` in
 * fp32, so the k-th best is at least that less one error, and a row below by two errors is not among the best. Where
 * too many are as near as that (thousands of duplicates), those that wait are scored, and the k-th of them is the
 * limit.
 */
class Best {
 public:
  Best(size_t k, Error error) : k_(k), most_waiting_(std::max<size_t>(256, 4 * k)), error_(error) {
    const size_t few = std::min<size_t>(k, 64); // a search among few rows would else take a third of its time to grow
    floor_.reserve(few), heap_.reserve(few), waiting_.reserve(2 * few);
  }
  const std::vector<Scored> &found() const { return heap_; }

  /**
   * Returns the new limit: what a row must not be at most in fp32; NaN until there are k, so that every row is looked
   * at.
   */
  template <class Exact>
  float offer(float score, uint32_t row, const Exact &exact) {
    // What left fp32 has no bound: fp64 decides.
    const bool is_finite = std::isfinite(score);
    waiting_.push_back({is_finite ? score : std::numeric_limits<float>::infinity(), row});
    if (is_finite) raise_floor(score);
    if (waiting_.size() >= most_waiting_) {
      forget_worse();
      if (waiting_.size() > most_waiting_ / 2) settle(exact);
    }
    return limit_;
  }

  /** Scores all that wait and may still be among the best. */
  template <class Exact>
  void settle(const Exact &exact) {
    forget_worse();
    for (const Waiting &waiting : waiting_) {
      const Scored scored{exact(waiting.row), waiting.row};
      if (std::isnan(scored.score) || (heap_.size() == k_ && !is_better(scored, heap_.front()))) continue;
      if (heap_.size() == k_) {
        std::pop_heap(heap_.begin(), heap_.end(), is_better);
        heap_.pop_back();
      }
      heap_.push_back(scored);
      std::push_heap(heap_.begin(), heap_.end(), is_better); // worst on top
    }
    waiting_.clear();
    if (heap_.size() == k_) raise_limit(error_.limit_below(heap_.front().score));
  }

 private:
  struct Waiting {
    float score;
    uint32_t row;
  };

  void raise_floor(float score) {
    if (floor_.size() == k_) {
      if (!(score > floor_.front())) return;
      std::pop_heap(floor_.begin(), floor_.end(), std::greater<float>());
      floor_.pop_back();
    }
    floor_.push_back(score);
    std::push_heap(floor_.begin(), floor_.end(), std::greater<float>()); // smallest on top
    if (floor_.size() == k_) raise_limit(error_.limit_below(error_.limit_below(floor_.front())));
  }

  void raise_limit(float limit) {
    if (!(limit <= limit_)) limit_ = limit;
  }

  void forget_worse() {
    waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                  [this](const Waiting &waiting) { return waiting.score <= limit_; }),
                   waiting_.end());
  }

  size_t k_, most_waiting_;
  Error error_;
  float limit_ = std::numeric_limits<float>::quiet_NaN();
  /** The k largest scores in fp32, rows that wait, and the best of those that were scored in fp64. */
  std::vector<float> floor_;
  std::vector<Waiting> waiting_;
  std::vector<Scored> heap_;
};

struct Search {
  const Kernels &kernels;
  const float *queries;
  uint64_t query_count;
  const shoal_rows &rows;
  enum shoal_metric metric;
  std::vector<double> norms;
  std::vector<float> scales;

  double exact(uint64_t query, uint64_t row, float *scratch) const {
    const float *stored = stored_row(kernels, rows, row, scratch);
    const double score = exact_score(kernels, rows, metric, queries + query * rows.dims, norms[query], stored, row);
    return metric == SHOAL_L2 ? -score : score;
  }
};

/** Keeps those rows of a tile that may be among the best of the queries in `hot`. */
void take_hot(const Search &search, uint32_t hot, uint64_t q0, uint64_t row, uint64_t last, const float *scores,
              float *scratch, float *limits, std::vector<Best> &best) {
  const Kernels &kernels = search.kernels;
  // queries that packing added
  if (q0 + kernels.tile_queries > search.query_count) hot &= (1u << (search.query_count - q0)) - 1;
  for (; hot != 0; hot &= hot - 1) {
    const uint64_t q = __builtin_ctz(hot);
    const float *values = scores + q * kernels.tile_rows;
    for (uint64_t bits = kernels.above(values, limits[q0 + q]); bits != 0; bits &= bits - 1) {
      const uint64_t r = __builtin_ctzll(bits);
      // Rows beyond the end are zeros that packing added; the limit may have risen meanwhile.
      if (row + r < last && !(values[r] <= limits[q0 + q]))
        limits[q0 + q] = best[q0 + q].offer(values[r], static_cast<uint32_t>(row + r),
                                            [&](uint64_t id) { return search.exact(q0 + q, id, scratch); });
    }
  }
}

/**
 * Brings rows into the second-level cache a few lines at a time, within so many calls, while something else is
 * computed.
 */
class Ahead {
 public:
  Ahead(const shoal_rows &rows, uint64_t first, uint64_t last, uint64_t calls)
      : at_(row_at(rows, std::min(first, rows.count))),
        end_(row_at(rows, std::min(last, rows.count))),
        step_((end_ - at_) / (64 * calls) + 1) {}

  void some() {
    for (int64_t i = 0; i < step_ && at_ < end_; i++, at_ += 64) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const char *at_, *end_;
  int64_t step_;
};

/**
 * `next`: the first row of the block that this thread will likely have next; without it packing waits for memory, 1 ns
 * a value.
 */
void search_packed(const Search &search, const float *packed_queries, uint64_t first, uint64_t last, uint64_t next,
                   float *packed, float *scratch, float *scores, float *limits, std::vector<Best> &best) {
  const Kernels &kernels = search.kernels;
  const uint32_t dims = search.rows.dims;
  const size_t tile_rows = kernels.tile_rows, panel = kernels.tile_queries;
  const auto tile = search.metric == SHOAL_L2 ? kernels.l2_tile : kernels.dot_tile;
  pack_block(kernels, search.rows, first, last, packed, scratch);
  const uint64_t panels = (search.query_count + panel - 1) / panel, tiles = (last - first + tile_rows - 1) / tile_rows;
  each_part(panels, GROUP_PANELS, [&](size_t first_panel, size_t count) {
    const uint64_t group = first_panel * panel,
                   group_end = std::min<uint64_t>(search.query_count, (first_panel + count) * panel);
    // While the last group passes: what came earlier, the queries would push out again.
    Ahead ahead(search.rows, next, first_panel + count == panels ? next + (last - first) : next, count * tiles);
    for (uint64_t row = first; row < last; row += tile_rows)
      each_part(dims, chain_dims(kernels), [&](size_t d, size_t length) {
        const bool is_last = d + length == dims;
        for (uint64_t q0 = group; q0 < group_end; q0 += panel) {
          float *values = scores + (q0 - group) * tile_rows;
          ahead.some();
          const uint32_t hot =
              tile(packed_queries + q0 * dims + d * panel, packed + (row - first) * dims + d * tile_rows, length, d > 0,
                   is_last ? limits + q0 : nullptr, values);
          // rare, once the first rows have been seen
          if (__builtin_expect(hot != 0, 0)) take_hot(search, hot, q0, row, last, values, scratch, limits, best);
        }
      });
  });
}

void search_in_place(const Search &search, const float *scaled_queries, uint64_t first, uint64_t last, float *scratch,
                     float *limits, std::vector<Best> &best) {
  compare_in_place(search.kernels, search.rows, search.metric, scaled_queries, search.query_count, first, last, scratch,
                   [&](uint64_t row, uint64_t q, float score) {
                     if (!(score <= limits[q]))
                       limits[q] = best[q].offer(score, static_cast<uint32_t>(row), [&](uint64_t other) {
                         return search.exact(q, other, scratch + ROWS_IN_PLACE * search.rows.dims);
                       });
                   });
}

/** The best k of what all threads found. */
uint32_t finish(const std::vector<std::vector<Best>> &parts, uint64_t query, enum shoal_metric metric, uint32_t k,
                uint32_t *best, double *scores) {
  std::vector<Scored> all;
  for (const auto &part : parts)
    if (!part.empty()) all.insert(all.end(), part[query].found().begin(), part[query].found().end());
  std::sort(all.begin(), all.end(), is_better);
  const uint32_t found = static_cast<uint32_t>(std::min<size_t>(k, all.size()));
  for (uint32_t i = 0; i < found; i++)
    best[i] = all[i].row, scores[i] = (metric == SHOAL_L2 ? -all[i].score : all[i].score) + 0.0;
  return found;
}

} // namespace
} // namespace shoal

void shoal_topk(int isa, int threads, const float *queries, uint64_t query_count, const shoal_rows *rows,
                enum shoal_metric metric, uint32_t k, uint32_t *best_rows, double *scores, uint32_t *found,
                shoal_stop stop) {
  using namespace shoal;
  if (k == 0 || rows->count == 0) {
    std::fill_n(found, query_count, 0u);
    return;
  }
  const Kernels &kernels = kernels_of(isa);
  const uint32_t dims = rows->dims;
  Search search{kernels, queries, query_count, *rows, metric, query_norms(kernels, queries, query_count, dims), {}};
  search.scales = query_scales(search.norms, metric);
  const bool is_packed = query_count >= MIN_PACKED_QUERIES;
  const size_t panel = kernels.tile_queries, padded = (query_count + panel - 1) / panel * panel;
  const Packed prepared = is_packed ? pack_queries(kernels, queries, query_count, dims, search.scales)
                                    : scale_queries(queries, query_count, dims, search.scales);
  const uint64_t all_tiles = (rows->count + kernels.tile_rows - 1) / kernels.tile_rows;
  const uint64_t tiles =
      std::min(all_tiles, std::max<uint64_t>(1, kernels.block_bytes / (kernels.tile_rows * dims * sizeof(float))));
  const uint64_t block_rows = tiles * kernels.tile_rows, blocks = (rows->count + block_rows - 1) / block_rows;
  const size_t kept = std::min<uint64_t>(k, rows->count);
  std::vector<std::vector<Best>> parts(threads);
  std::atomic<int> part{0};
  in_blocks(threads, blocks, [&](auto next) {
    std::vector<Best> &best = parts[part.fetch_add(1)];
    for (uint64_t q = 0; q < query_count; q++) best.emplace_back(kept, error_of(*rows, metric, search.norms[q]));
    std::vector<float> limits(padded, std::numeric_limits<float>::quiet_NaN());
    Packed packed(is_packed ? block_rows * dims : 0),
        scratch(std::max<size_t>(ROWS_IN_PLACE + 1, kernels.tile_rows) * dims),
        tile(GROUP_PANELS * panel * kernels.tile_rows);
    for (uint64_t block; next(&block) && !is_stopped(stop);) {
      const uint64_t first = block * block_rows, last = std::min<uint64_t>(rows->count, first + block_rows);
      if (is_packed)
        search_packed(search, prepared.data(), first, last, first + threads * block_rows, packed.data(), scratch.data(),
                      tile.data(), limits.data(), best);
      else
        search_in_place(search, prepared.data(), first, last, scratch.data(), limits.data(), best);
    }
    for (uint64_t q = 0; q < query_count && !is_stopped(stop); q++)
      best[q].settle([&](uint64_t row) { return search.exact(q, row, scratch.data()); });
  });
  if (is_stopped(stop)) return;
  for (uint64_t q = 0; q < query_count; q++) found[q] = finish(parts, q, metric, k, best_rows + q * k, scores + q * k);
}

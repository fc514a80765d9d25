// Exact top-k: fp32 candidates by tiles of a matrix product, fused with their selection so that no score is written to
// memory; then the last k in fp64.
#include <algorithm>
#include <limits>
#include "rows.h"
#include "threads.h"

namespace shoal {
const Kernels &kernels_of(int isa);

namespace {

/** Packed rows of a block lie in the second-level cache while every query passes over them. */
constexpr size_t BLOCK_BYTES = 384 * 1024;
/** Below this the packing of a row costs more than it saves: each row is compared in place. */
constexpr uint64_t MIN_PACKED_QUERIES = 4;

struct Candidate {
  float score;
  uint64_t id;
};

bool is_better(const Candidate &a, const Candidate &b) { return a.score > b.score || (a.score == b.score && a.id < b.id); }

/**
 * The best candidates of one query among the rows of one thread, worst on top. Rows come by rising id, and one that only
 * equals the worst is not taken: so ties go to the lower id.
 */
class Best {
 public:
  explicit Best(size_t size) : size_(size) {}
  float limit() const { return limit_; }
  const std::vector<Candidate> &found() const { return heap_; }

  void offer(float score, uint64_t id) {
    if (!(score > limit_)) return;
    if (heap_.size() == size_) {
      std::pop_heap(heap_.begin(), heap_.end(), is_better);
      heap_.back() = {score, id};
    } else {
      heap_.push_back({score, id});
    }
    std::push_heap(heap_.begin(), heap_.end(), is_better);
    if (heap_.size() == size_) limit_ = heap_.front().score;
  }

 private:
  size_t size_;
  float limit_ = -std::numeric_limits<float>::infinity();
  std::vector<Candidate> heap_;
};

struct Search {
  const Kernels &kernels;
  const float *queries;
  uint64_t query_count;
  const shoal_rows &rows;
  enum shoal_metric metric;
};

void search_packed(const Search &search, const std::vector<float> &packed_queries, uint64_t first, uint64_t last, std::vector<Best> &best) {
  const Kernels &kernels = search.kernels;
  const uint32_t dims = search.rows.dims;
  const size_t tile_rows = kernels.tile_rows, panel = kernels.tile_queries;
  const size_t tiles = std::max<size_t>(1, BLOCK_BYTES / (tile_rows * dims * sizeof(float)));
  const auto tile = search.metric == SHOAL_L2 ? kernels.l2_tile : kernels.dot_tile;
  std::vector<float> packed(tiles * tile_rows * dims), scratch(tile_rows * dims), scores(panel * tile_rows);
  for (uint64_t block = first; block < last; block += tiles * tile_rows) {
    const uint64_t end = std::min<uint64_t>(last, block + tiles * tile_rows);
    pack_block(kernels, search.rows, block, end, packed.data(), scratch.data());
    for (uint64_t q0 = 0; q0 < search.query_count; q0 += panel) {
      const size_t count = std::min<uint64_t>(panel, search.query_count - q0);
      for (uint64_t row = block; row < end; row += tile_rows) {
        tile(packed_queries.data() + q0 * dims, packed.data() + (row - block) * dims, dims, scores.data());
        for (size_t q = 0; q < count; q++) {
          Best &of_query = best[q0 + q];
          const float *values = scores.data() + q * tile_rows;
          for (uint64_t bits = kernels.above(values, of_query.limit()); bits != 0; bits &= bits - 1) {
            const size_t r = __builtin_ctzll(bits);
            if (row + r < end) of_query.offer(values[r], row + r); // rows beyond the end are zeros that packing added
          }
        }
      }
    }
  }
}

void search_in_place(const Search &search, const std::vector<float> &scales, uint64_t first, uint64_t last, std::vector<Best> &best) {
  const uint32_t dims = search.rows.dims;
  const auto pair = search.metric == SHOAL_L2 ? search.kernels.l2 : search.kernels.dot;
  std::vector<float> scratch(dims), query(search.queries, search.queries + search.query_count * dims);
  for (size_t i = 0; i < query.size() && !scales.empty(); i++) query[i] *= scales[i / dims];
  // A dot product takes the row's scale afterwards; a distance needs the scaled row.
  const bool scale_after = search.metric != SHOAL_L2 && search.rows.scales != nullptr;
  for (uint64_t id = first; id < last; id++) {
    const float *row = scale_after ? stored_row(search.kernels, search.rows, id, scratch.data()) : scaled_row(search.kernels, search.rows, id, scratch.data());
    const float factor = scale_after ? search.rows.scales[id] : 1.0f;
    for (uint64_t q = 0; q < search.query_count; q++) best[q].offer(factor * pair(query.data() + q * dims, row, dims), id);
  }
}

/** The best `size` of all threads' candidates of one query. */
std::vector<Candidate> merged(const std::vector<std::vector<Best>> &parts, uint64_t query, size_t size) {
  std::vector<Candidate> all;
  for (const auto &part : parts) all.insert(all.end(), part[query].found().begin(), part[query].found().end());
  std::sort(all.begin(), all.end(), is_better);
  if (all.size() > size) all.resize(size);
  return all;
}

struct Scored {
  double score;
  uint64_t id;
};

/** Scores `candidates` in fp64 and writes the first k. */
uint32_t finish(const Search &search, uint64_t query, const std::vector<Candidate> &candidates, uint32_t k, uint64_t *ids, float *scores) {
  const float *values = search.queries + query * search.rows.dims;
  const double norm = norm_of(values, search.rows.dims);
  std::vector<float> scratch(search.rows.dims);
  std::vector<Scored> scored;
  for (const Candidate &candidate : candidates) {
    const float *stored = stored_row(search.kernels, search.rows, candidate.id, scratch.data());
    scored.push_back({exact_score(search.kernels, search.rows, search.metric, values, norm, stored, candidate.id), candidate.id});
  }
  const double sign = search.metric == SHOAL_L2 ? -1 : 1;
  std::sort(scored.begin(), scored.end(), [sign](const Scored &a, const Scored &b) { return sign * a.score > sign * b.score || (a.score == b.score && a.id < b.id); });
  const uint32_t found = static_cast<uint32_t>(std::min<size_t>(k, scored.size()));
  for (uint32_t i = 0; i < found; i++) ids[i] = scored[i].id, scores[i] = static_cast<float>(scored[i].score);
  return found;
}

}  // namespace
}  // namespace shoal

void shoal_topk(int isa, int threads, const float *queries, uint64_t query_count, const shoal_rows *rows, enum shoal_metric metric, uint32_t k, uint64_t *ids,
                float *scores, uint32_t *found) {
  using namespace shoal;
  const Search search{kernels_of(isa), queries, query_count, *rows, metric};
  // fp32 orders what differs by more than its rounding; the margin is for what does not.
  const size_t size = std::min<uint64_t>(rows->count, static_cast<uint64_t>(k) + std::max<uint32_t>(16, k / 8));
  const std::vector<float> scales = query_scales(queries, query_count, rows->dims, metric);
  const bool is_packed = query_count >= MIN_PACKED_QUERIES;
  const std::vector<float> packed = is_packed ? pack_queries(search.kernels, queries, query_count, rows->dims, scales.empty() ? nullptr : scales.data()) : std::vector<float>{};
  std::vector<std::vector<Best>> parts(threads, std::vector<Best>(query_count, Best(size)));
  const uint64_t tiles = (rows->count + search.kernels.tile_rows - 1) / search.kernels.tile_rows;
  in_parallel(threads, [&](int part) {
    const uint64_t first = tiles * part / threads * search.kernels.tile_rows;
    const uint64_t last = std::min<uint64_t>(rows->count, tiles * (part + 1) / threads * search.kernels.tile_rows);
    if (is_packed) search_packed(search, packed, first, last, parts[part]);
    else search_in_place(search, scales, first, last, parts[part]);
  });
  in_parallel(threads, [&](int part) {
    for (uint64_t q = query_count * part / threads; q < query_count * (part + 1) / threads; q++)
      found[q] = finish(search, q, merged(parts, q, size), k, ids + q * k, scores + q * k);
  });
}

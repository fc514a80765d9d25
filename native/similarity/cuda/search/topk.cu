// Exact top-k over parts of a collection on several devices, side by side, and over rows that pass through one: each is
// a search of its own (search.h), and what they find is merged here, in order and with ties to the lower row.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>
#include "../device/copies.h"
#include "search.h"

namespace shoal_cuda {
namespace {

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
        const bool is_mine =
            j == part.found[q] ||
            (i < to_.found[q] && !(query_.metric == SHOAL_L2 ? part.scores[at + j] < to_.scores[at + i]
                                                             : part.scores[at + j] > to_.scores[at + i]));
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

/** Several threads take part, or rows pass by. */
void refuse_hurried(const shoal_cuda_terms &terms) {
  if (terms.most_wait_us > 0) fail(SHOAL_CUDA_LATER, "rows that do not lie on one device would take too long");
}

void search_part(const shoal_cuda_rows &part, const Query &query, const shoal_cuda_terms &terms, const Best &best,
                 shoal_cuda_times &times) {
  if (part.rows.count == 0) return static_cast<void>(std::fill_n(best.found, query.count, 0u));
  Lease workspace(part.device, &terms);
  search(*workspace, part.rows, part.device_summary, query, terms, best, times);
}

/** A part on another device: a thread of its own, whose failure is thrown by `join`. */
class Aside {
 public:
  template <class Work>
  explicit Aside(const Work &work)
      : thread_([this, work] {
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

struct Piece {
  uint64_t first, count;
};

/** Most and fewest bytes of a piece. */
constexpr uint64_t MOST_PIECE_BYTES = 1ull << 30, LEAST_PIECE_BYTES = 64ull << 20;

/**
 * Whole chunks, two of the largest in 3/4 of `allowed`; and none larger than half of what is left, so that what is
 * searched when the last copy has ended is little: a third of 3 GB took 2 of the 70 ms that 1,000 queries had (H200,
 * 2026-11-22).
 */
std::vector<Piece> pieces_of(const shoal_rows &rows, uint64_t allowed) {
  shoal_rows some = rows;
  some.count = 1 << 10;
  const uint64_t per_row = std::max<uint64_t>(1, bytes_for(some, false) / some.count);
  const uint64_t most = std::max<uint64_t>(
                     1, std::min({rows.count, allowed * 3 / 8 / per_row, MOST_PIECE_BYTES / per_row})),
                 chunk = std::min<uint64_t>(most, chunk_rows_of(rows.dims * element_bytes(rows.dtype), rows.count));
  const uint64_t least = std::max<uint64_t>(chunk, LEAST_PIECE_BYTES / per_row);
  std::vector<Piece> pieces;
  for (uint64_t first = 0; first < rows.count; first += pieces.back().count) {
    const uint64_t left = rows.count - first, wanted = std::min(most, std::max(least, left / 2));
    pieces.push_back({first, std::min(left, wanted / chunk * chunk)});
  }
  return pieces;
}

/**
 * Whose turn it is: pieces are copied into two places in turn, by several threads, and searched by one. Over: nobody
 * waits any more.
 */
class Turns {
 public:
  explicit Turns(const std::vector<Piece> &pieces) : pieces_(pieces), arrived_(pieces.size()) {}

  size_t piece_of(uint64_t row) const {
    return static_cast<size_t>(std::upper_bound(pieces_.begin(), pieces_.end(), row,
                                                [](uint64_t of, const Piece &piece) { return of < piece.first; }) -
                               pieces_.begin()) -
           1;
  }

  void wait_for_room(size_t piece) {
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [&] { return is_over_ || piece < searched_ + 2; });
    if (is_over_) fail(SHOAL_CUDA_STOPPED, "the search of an earlier piece has ended the call");
  }

  /** `all()` is called once all rows of a piece are on their way, before it is searched. */
  template <class All>
  void arrived(size_t piece, uint64_t count, const All &all) {
    const std::lock_guard<std::mutex> guard(lock_);
    arrived_[piece] += count;
    if (arrived_[piece] < pieces_[piece].count) return;
    all();
    changed_.notify_all();
  }

  /** False: they will not come. */
  bool wait_for_rows(size_t piece) {
    std::unique_lock<std::mutex> guard(lock_);
    const auto is_there = [&] { return arrived_[piece] == pieces_[piece].count; };
    changed_.wait(guard, [&] { return is_over_ || is_there(); });
    return is_there();
  }

  void searched(size_t piece) {
    const std::lock_guard<std::mutex> guard(lock_);
    searched_ = piece + 1;
    changed_.notify_all();
  }

  void end() {
    const std::lock_guard<std::mutex> guard(lock_);
    is_over_ = true;
    changed_.notify_all();
  }

 private:
  const std::vector<Piece> &pieces_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<uint64_t> arrived_;
  size_t searched_ = 0;
  bool is_over_ = false;
};

/** Ends the turns when it goes. */
class Over {
 public:
  explicit Over(Turns &turns) : turns_(turns) {}
  ~Over() { turns_.end(); }

 private:
  Turns &turns_;
};

} // namespace
} // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" {

uint64_t shoal_cuda_topk_bytes(uint64_t rows, uint32_t dims, uint64_t query_count, uint32_t k) {
  if (rows == 0 || dims == 0 || query_count == 0 || k == 0) return 0;
  return search_bytes(static_cast<uint32_t>(rows), dims, query_count, k);
}

int shoal_cuda_topk(const shoal_cuda_rows *const *parts, uint32_t part_count, const float *queries,
                    uint64_t query_count, enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores,
                    uint32_t *found, const shoal_cuda_terms *terms) {
  return answer([&] {
    const Query query{queries, query_count, metric, k};
    check_query(query);
    shoal_cuda_terms limits = terms == nullptr ? shoal_cuda_terms{} : *terms;
    shoal_cuda_times times{};
    if (part_count == 1) {
      search_part(*parts[0], query, limits, {best, scores, found}, times);
    } else {
      refuse_hurried(limits);
      // Devices side by side, each with the parts that lie on it.
      std::vector<std::unique_ptr<Held>> held;
      std::vector<int> devices;
      for (uint32_t p = 0; p < part_count; p++) {
        held.emplace_back(new Held(query));
        if (std::find(devices.begin(), devices.end(), parts[p]->device) == devices.end())
          devices.push_back(parts[p]->device);
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

int shoal_cuda_topk_streamed(int device, const shoal_rows *rows, const float *queries, uint64_t query_count,
                             enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores, uint32_t *found,
                             const shoal_cuda_terms *terms) {
  return answer([&] {
    const Query query{queries, query_count, metric, k};
    check_query(query);
    check_shape(*rows);
    shoal_cuda_terms limits = terms == nullptr ? shoal_cuda_terms{} : *terms;
    refuse_hurried(limits);
    Lease workspace(device);
    // Two pieces and the work of a search share what is allowed.
    const uint64_t allowed = limits.work_bytes == 0 ? 4ull << 30 : limits.work_bytes;
    shoal_cuda_terms inner = limits;
    inner.work_bytes = allowed / 4;
    shoal_cuda_times times{};
    if (limits.times != nullptr) *limits.times = times;
    if (rows->count == 0) return static_cast<void>(std::fill_n(found, query_count, 0u));
    const std::vector<Piece> pieces = pieces_of(*rows, allowed);
    shoal_rows piece = *rows;
    piece.count = pieces[0].count;
    const size_t piece_bytes = bytes_for(piece, false);
    if (2 * piece_bytes > allowed)
      fail(SHOAL_CUDA_OUT_OF_MEMORY, "two pieces of one row each take %zu bytes, and %llu are allowed", 2 * piece_bytes,
           static_cast<unsigned long long>(allowed));
    char *const memory = workspace->work(2 * piece_bytes, std::max<uint64_t>(2 * piece_bytes, allowed / 4 * 3));
    Merge merge(query, best, scores, found);
    Held held(query);
    Turns turns(pieces);
    const auto rows_of = [&](size_t p, Summary **summary) {
      shoal_rows now = *rows;
      now.count = pieces[p].count;
      return lay_out(memory + p % 2 * piece_bytes, now, false, summary);
    };
    Aside searching([&] {
      const Over over(turns); // whatever ends this, nobody waits for it any more
      Lease other(device);
      for (size_t p = 0; p < pieces.size() && turns.wait_for_rows(p); p++) {
        Summary *summary;
        const Rows there = rows_of(p, &summary);
        shoal_cuda_times taken{};
        check(cudaStreamWaitEvent(other->stream, workspace->copied[p % 2].handle, 0), "a copy");
        measure(there, summary, other->stream);
        search(*other, there, summary, query, inner, held.best(), taken);
        add_times(times, taken, false);
        turns.searched(p); // the next copy but one may begin
        merge.add(held.best(), pieces[p].first);
      }
    });
    const auto begun = std::chrono::steady_clock::now();
    std::exception_ptr failure;
    try {
      const Over over(turns);
      const size_t row_bytes = rows->dims * element_bytes(rows->dtype);
      Summary *unused;
      const size_t stride = rows_of(0, &unused).stride;
      const Places places{std::min<size_t>(chunk_rows_of(row_bytes, rows->count), pieces[0].count), stride,
                          [&](size_t first, size_t count) {
                            const size_t p = turns.piece_of(first), at = first - pieces[p].first;
                            turns.wait_for_room(p);
                            Summary *summary;
                            const Rows now = rows_of(p, &summary);
                            char *const to = const_cast<char *>(now.data) + at * stride;
                            if (stride != row_bytes)
                              check(cudaMemsetAsync(to, 0, count * stride, workspace->copies), "padding");
                            if (rows->scales != nullptr)
                              check(cudaMemcpyAsync(const_cast<float *>(now.scales) + at, rows->scales + first,
                                                    count * 4, cudaMemcpyHostToDevice, workspace->copies),
                                    "scales");
                            return to;
                          },
                          [&](size_t first, size_t count) {
                            const size_t p = turns.piece_of(first);
                            turns.arrived(p, count, [&] {
                              check(cudaEventRecord(workspace->copied[p % 2].handle, workspace->copies), "an event");
                            });
                          }};
      check(cudaEventRecord(workspace->begun.handle, workspace->copies), "an event");
      copy_in(*workspace, workspace->copies, places, static_cast<const char *>(rows->data), rows->stride, row_bytes,
              rows->count, limits.stop);
      check(cudaEventRecord(workspace->loaded.handle, workspace->copies), "an event");
    } catch (...) {
      failure = std::current_exception();
    }
    searching.join(); // why a search ended says more than that it did
    if (failure) std::rethrow_exception(failure);
    check(cudaEventSynchronize(workspace->loaded.handle), "a copy");
    times.copy_us += microseconds(workspace->begun, workspace->loaded);
    times.copied_bytes += rows->count * (rows->dims * element_bytes(rows->dtype) + (rows->scales == nullptr ? 0 : 4));
    times.device_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count();
    if (limits.times != nullptr) *limits.times = times;
  });
}

} // extern "C"

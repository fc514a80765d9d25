// Exact top-k over rows in host memory, which pass through one device: pieces of them are copied into two places in
// turn, and while one is searched (search.h) the next is copied. Shapes: as similarity_cuda.h has them. Memory: two
// pieces and the work of a search, within `work_bytes`.
//
// Build: sh native/similarity/build.sh cuda
// Test on a machine with a GPU: sh native/similarity/build.sh cuda-test
#include <chrono>
#include <condition_variable>
#include <mutex>
#include "../device/copies.h"
#include "merge.h"

namespace shoal_cuda {
namespace {

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

class Streamed {
 public:
  /** `allowed`: bytes for two pieces and the work of a search, which share it. */
  Streamed(Workspace &workspace, const shoal_rows &rows, const Query &query, const shoal_cuda_terms &terms,
           uint64_t allowed)
      : workspace_(workspace),
        rows_(rows),
        query_(query),
        stop_(terms.stop),
        row_bytes_(rows.dims * element_bytes(rows.dtype)),
        pieces_(pieces_of(rows, allowed)),
        turns_(pieces_) {
    piece_bytes_ = bytes_for(host_piece(0), false);
    if (2 * piece_bytes_ > allowed)
      fail(SHOAL_CUDA_OUT_OF_MEMORY, "two pieces of one row each take %zu bytes, and %llu are allowed",
           2 * piece_bytes_, static_cast<unsigned long long>(allowed));
    memory_ = workspace.work(2 * piece_bytes_, std::max<uint64_t>(2 * piece_bytes_, allowed / 4 * 3));
    search_terms_ = terms;
    search_terms_.work_bytes = allowed / 4;
  }

  shoal_cuda_times run(const Best &best) {
    Merge merge(query_, best);
    Aside searching([&] { search_pieces(merge); });
    const auto begun = std::chrono::steady_clock::now();
    std::exception_ptr failure;
    try {
      copy_pieces();
    } catch (...) {
      failure = std::current_exception();
    }
    searching.join(); // why a search ended says more than that it did
    if (failure) std::rethrow_exception(failure);
    check(cudaEventSynchronize(workspace_.loaded.handle), "a copy");
    times_.copy_us += microseconds(workspace_.begun, workspace_.loaded);
    times_.copied_bytes += rows_.count * (row_bytes_ + (rows_.scales == nullptr ? 0 : 4));
    times_.device_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count();
    return times_;
  }

 private:
  shoal_rows host_piece(size_t p) const {
    shoal_rows piece = rows_;
    piece.count = pieces_[p].count;
    return piece;
  }

  /** Where piece p lies on the device. */
  Rows piece(size_t p, Summary **summary) const {
    return lay_out(memory_ + p % 2 * piece_bytes_, host_piece(p), false, summary);
  }
  const Event &copied(size_t p) const { return workspace_.copied[p % 2]; }

  /** On another thread, in a workspace of its own. */
  void search_pieces(Merge &merge) {
    const Over over(turns_); // whatever ends this, nobody waits for it any more
    Held held(query_);
    Lease other(workspace_.device);
    for (size_t p = 0; p < pieces_.size() && turns_.wait_for_rows(p); p++) {
      Summary *summary;
      const Rows there = piece(p, &summary);
      shoal_cuda_times taken{};
      check(cudaStreamWaitEvent(other->stream, copied(p).handle, 0), "a copy");
      measure(there, summary, other->stream);
      search(*other, there, summary, query_, search_terms_, held.best(), taken);
      add_times(times_, taken, false);
      turns_.searched(p); // the next copy but one may begin
      merge.add(held.best(), pieces_[p].first);
    }
  }

  void copy_pieces() {
    const Over over(turns_);
    Summary *unused;
    const size_t stride = piece(0, &unused).stride;
    const Places places{std::min<size_t>(chunk_rows_of(row_bytes_, rows_.count), pieces_[0].count), stride,
                        [&](size_t first, size_t count) { return place(first, count, stride); },
                        [&](size_t first, size_t count) { placed(first, count); }};
    check(cudaEventRecord(workspace_.begun.handle, workspace_.copies), "an event");
    copy_in_chunks(workspace_, workspace_.copies, places, {rows_.data, rows_.stride}, {row_bytes_, rows_.count}, stop_);
    check(cudaEventRecord(workspace_.loaded.handle, workspace_.copies), "an event");
  }

  /** Waits for room for these rows, whose padding and scales are brought, and returns where their data goes. */
  char *place(size_t first, size_t count, size_t stride) {
    const size_t p = turns_.piece_of(first), at = first - pieces_[p].first;
    turns_.wait_for_room(p);
    Summary *unused;
    const Rows now = piece(p, &unused);
    char *const to = const_cast<char *>(now.data) + at * stride;
    if (stride != row_bytes_) check(cudaMemsetAsync(to, 0, count * stride, workspace_.copies), "padding");
    if (rows_.scales != nullptr)
      check(cudaMemcpyAsync(const_cast<float *>(now.scales) + at, rows_.scales + first, count * 4,
                            cudaMemcpyHostToDevice, workspace_.copies),
            "scales");
    return to;
  }

  void placed(size_t first, size_t count) {
    const size_t p = turns_.piece_of(first);
    turns_.arrived(p, count, [&] { check(cudaEventRecord(copied(p).handle, workspace_.copies), "an event"); });
  }

  Workspace &workspace_;
  const shoal_rows &rows_;
  const Query &query_;
  const shoal_stop stop_;
  const size_t row_bytes_;
  const std::vector<Piece> pieces_;
  Turns turns_;
  size_t piece_bytes_;
  char *memory_;
  shoal_cuda_terms search_terms_;
  shoal_cuda_times times_{};
};

} // namespace
} // namespace shoal_cuda

using namespace shoal_cuda;

extern "C" int shoal_cuda_topk_streamed(int device, const shoal_rows *rows, const float *queries, uint64_t query_count,
                                        enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores,
                                        uint32_t *found, const shoal_cuda_terms *terms) {
  return answer([&] {
    const Query query{queries, query_count, metric, k};
    check_query(query);
    check_shape(*rows);
    const shoal_cuda_terms none{}, &limits = terms == nullptr ? none : *terms;
    refuse_hurried(limits);
    Lease workspace(device);
    shoal_cuda_times times{};
    if (limits.times != nullptr) *limits.times = times;
    if (rows->count == 0) return static_cast<void>(std::fill_n(found, query_count, 0u));
    Streamed streamed(*workspace, *rows, query, limits, limits.work_bytes == 0 ? 4ull << 30 : limits.work_bytes);
    times = streamed.run({best, scores, found});
    if (limits.times != nullptr) *limits.times = times;
  });
}

// What both kinds of top-k over more than one search share: results of each, which are merged in order and with ties to
// the lower row, threads beside the caller's, and times.
#pragma once
#include <algorithm>
#include <exception>
#include <thread>
#include <vector>
#include "search.h"

namespace shoal_cuda {

/** Best rows of parts, each in order and numbered from 0: those of parts before come first where scores are equal. */
class Merge {
 public:
  Merge(const Query &query, const Best &to) : query_(query), to_(to) { std::fill_n(to.found, query.count, 0u); }

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

inline void add_times(shoal_cuda_times &to, const shoal_cuda_times &more, bool side_by_side) {
  to.device_us = side_by_side ? std::max(to.device_us, more.device_us) : to.device_us + more.device_us;
  to.copy_us = side_by_side ? std::max(to.copy_us, more.copy_us) : to.copy_us + more.copy_us;
  to.kernel_us = side_by_side ? std::max(to.kernel_us, more.kernel_us) : to.kernel_us + more.kernel_us;
  to.copied_bytes += more.copied_bytes, to.redone += more.redone;
}

inline void check_query(const Query &query) {
  if (query.k == 0) fail(SHOAL_CUDA_INVALID, "k is 0: ask for 1 or more");
}

/** Several threads take part, or rows pass by. */
inline void refuse_hurried(const shoal_cuda_terms &terms) {
  if (terms.most_wait_us > 0) fail(SHOAL_CUDA_LATER, "rows that do not lie on one device would take too long");
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

} // namespace shoal_cuda

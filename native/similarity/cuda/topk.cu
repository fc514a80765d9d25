// Exact top-k over parts of a collection on several devices, side by side, and over rows that pass through one: each is a search of
// its own (search.h), and what they find is merged here, in order and with ties to the lower row.
#include <algorithm>
#include <chrono>
#include <thread>
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
  search(*slot, part.rows, part.device_summary, query, terms, best, times);
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
  return search_bytes(static_cast<uint32_t>(rows), dims, query_count, k);
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
    Event began[2], copied[2];
    Merge merge(query, best, scores, found);
    Held held(query);
    shoal_cuda_times times{}, taken{};
    Rows there[2];
    Summary *summary[2];
    uint64_t searched = 0;
    int searched_turn = 0;
    double copy_us = 0;
    std::unique_ptr<Aside> searching;
    const auto finish = [&] {
      if (!searching) return;
      searching->join();
      searching.reset();
      copy_us += microseconds(began[searched_turn], copied[searched_turn]);
      add_times(times, taken, false);
      merge.add(held.best(), searched);
    };
    const size_t row_bytes = rows->dims * element_bytes(rows->dtype);
    const auto begun = std::chrono::steady_clock::now();
    for (uint64_t first = 0, turn = 0; first < rows->count; first += piece_rows, turn ^= 1) {
      piece.count = std::min(piece_rows, rows->count - first);
      Rows &now = there[turn];
      now = lay_out(memory[turn].at(), piece, false, &summary[turn]);
      check(cudaEventRecord(began[turn].handle, slot->copies), "an event");
      if (now.stride != row_bytes) check(cudaMemsetAsync(memory[turn].at(), 0, piece.count * now.stride, slot->copies), "padding");
      copy_in(*slot, slot->copies, memory[turn].at(), now.stride, static_cast<const char *>(rows->data) + first * rows->stride, rows->stride, row_bytes, piece.count, limits.stop);
      if (rows->scales != nullptr) copy_in(*slot, slot->copies, reinterpret_cast<char *>(const_cast<float *>(now.scales)), 4, reinterpret_cast<const char *>(rows->scales + first), 4, 4, piece.count, limits.stop);
      check(cudaEventRecord(copied[turn].handle, slot->copies), "an event");
      times.copied_bytes += piece.count * (row_bytes + (rows->scales == nullptr ? 0 : 4));
      // The next piece's copy goes on behind the last bytes of this one: it is searched, once it is all there, by a thread of its own.
      finish();
      searched = first, searched_turn = static_cast<int>(turn);
      searching.reset(new Aside([&, turn] {
        Lease other(device);
        taken = {};
        check(cudaStreamWaitEvent(other->stream, copied[turn].handle, 0), "a copy");
        measure(there[turn], summary[turn], other->stream);
        search(*other, there[turn], summary[turn], query, inner, held.best(), taken);
      }));
    }
    finish();
    times.copy_us += copy_us;
    times.device_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count();
    if (limits.times != nullptr) *limits.times = times;
  });
}

}  // extern "C"

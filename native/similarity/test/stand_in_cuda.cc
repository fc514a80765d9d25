// The CUDA library's interface over the CPU kernels, for tests on machines without a GPU: the same answers, from a
// "device" that has as much memory as it is told, and fails when it is told. It keeps account of memory as the real one
// does (rows, graphs, work), and takes rows in pieces where work memory is short. No figure of its speed means
// anything.
//
// Told by environment variables, looked at with every call:
//   SHOAL_STAND_IN_BYTES       memory of the device (default 1 GiB)
//   SHOAL_STAND_IN_MOST_ROWS   uploading more rows, or computing on more of them at once, is out of memory
//   SHOAL_STAND_IN_MOST_WORK   so is being allowed more bytes of work than this
//   SHOAL_STAND_IN_LEAST_WORK  a call that may use less bytes of work (default 1,024) is refused, with the library's
//                              words
//   SHOAL_STAND_IN_LATER       set to anything: a call that may not wait is not done, and told so
//   SHOAL_STAND_IN_LOST        a path: while there is a file the device fails, and stays failed in this process
//   SHOAL_STAND_IN_DEVICES     how many devices there are (default 1)
//   SHOAL_STAND_IN_PINNED      how many bytes of pinned memory may be taken (default 0); those taken are written into
//                              the file of SHOAL_STAND_IN_TAKEN
//   SHOAL_STAND_IN_MIB_PER_S   speed of copies to the device
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>
#include "../include/similarity_cuda.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr uint64_t GIB = 1u << 30;
std::atomic<uint64_t> held{0};
std::atomic<bool> is_lost{false};
thread_local std::string words;

uint64_t told(const char *name, uint64_t otherwise) {
  const char *value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : std::strtoull(value, nullptr, 10);
}

std::atomic<uint64_t> pinned{0};
/** Beside what is taken, how much that is. */
constexpr size_t PINNED_HEAD = 64;

void tell_pinned() {
  const char *path = std::getenv("SHOAL_STAND_IN_TAKEN");
  if (path == nullptr || *path == '\0') return;
  if (FILE *const file = std::fopen(path, "w"))
    std::fprintf(file, "%llu", static_cast<unsigned long long>(pinned.load())), std::fclose(file);
}

/** Of the kernels' own, whatever the rows are. */
uint64_t least_work() { return told("SHOAL_STAND_IN_LEAST_WORK", 1024); }

int fail(int status, const std::string &why) {
  words = why;
  return status;
}

int out_of_memory(uint64_t bytes) {
  return fail(SHOAL_CUDA_OUT_OF_MEMORY, "the stand-in has no room for " + std::to_string(bytes) + " bytes");
}

int too_little(uint64_t least, const shoal_cuda_terms *terms) {
  return fail(SHOAL_CUDA_OUT_OF_MEMORY, "the smallest piece of this work takes " + std::to_string(least) +
                                            " bytes, and " + std::to_string(terms == nullptr ? 0 : terms->work_bytes) +
                                            " are allowed");
}

/** What every call begins with. */
int ready(int device, shoal_stop stop) {
  const char *path = std::getenv("SHOAL_STAND_IN_LOST");
  if (path != nullptr && *path != '\0' && access(path, F_OK) == 0) is_lost = true;
  if (is_lost) return fail(SHOAL_CUDA_LOST, "the stand-in was told to fail");
  if (device < 0 || static_cast<uint64_t>(device) >= told("SHOAL_STAND_IN_DEVICES", 1))
    return fail(SHOAL_CUDA_NO_DEVICE, "the stand-in has no device " + std::to_string(device));
  return stop != nullptr && *stop != 0 ? fail(SHOAL_CUDA_STOPPED, "stopped") : SHOAL_CUDA_OK;
}

/** Memory of the device, for as long as this lives. */
class Memory {
 public:
  explicit Memory(uint64_t bytes)
      : bytes_(bytes), fits_(held.fetch_add(bytes) + bytes <= told("SHOAL_STAND_IN_BYTES", GIB)) {}
  Memory(const Memory &) = delete;
  ~Memory() { held -= bytes_; }
  bool fits() const { return fits_; }

 private:
  uint64_t bytes_;
  bool fits_;
};

void copy_slowly(uint64_t bytes) {
  const uint64_t rate = told("SHOAL_STAND_IN_MIB_PER_S", 0);
  if (rate != 0) std::this_thread::sleep_for(std::chrono::microseconds(bytes * 1000000 / (rate << 20)));
}

uint64_t element(enum shoal_dtype dtype) { return dtype == SHOAL_F32 ? 4 : dtype == SHOAL_F16 ? 2 : 1; }

/** Values, one length and one scale a row, and the fp16 form. */
uint64_t bytes_of(uint64_t count, uint32_t dims, enum shoal_dtype dtype, int has_half) {
  return count * (dims * (element(dtype) + (has_half && dtype != SHOAL_F16 ? 2 : 0)) + 8);
}

} // namespace

struct shoal_cuda_rows {
  Memory memory;
  std::vector<char> data;
  std::vector<float> scales, inverse;
  shoal_rows rows;

  explicit shoal_cuda_rows(const shoal_rows &from, uint64_t bytes) : memory(bytes), rows(from) {}

  /** Copies, and works out what the CPU kernels want beside the rows. */
  void fill(const shoal_rows &from) {
    const uint64_t width = from.dims * element(from.dtype);
    data.resize(from.count * width);
    for (uint64_t r = 0; r < from.count; r++)
      std::memcpy(data.data() + r * width, static_cast<const char *>(from.data) + r * from.stride, width);
    rows.data = data.data();
    rows.stride = width;
    if (from.scales != nullptr) scales.assign(from.scales, from.scales + from.count);
    rows.scales = nullptr;
    std::vector<double> lengths(from.count);
    shoal_lengths(0, 1, &rows, lengths.data());
    inverse.resize(from.count);
    rows.longest = 0;
    for (uint64_t r = 0; r < from.count; r++) {
      const double scale = scales.empty() ? 1 : scales[r], length = lengths[r] * scale;
      inverse[r] = length < SHOAL_MIN_LENGTH ? 0 : static_cast<float>(scale / length);
      if (length > rows.longest) rows.longest = length;
    }
    rows.longest *= 1 + 1e-6;
  }

  /** Rows [first, first + count) as the CPU kernels take them for this metric. */
  shoal_rows part(uint64_t first, uint64_t count, enum shoal_metric metric) const {
    shoal_rows some = rows;
    some.data = data.data() + first * rows.stride;
    some.count = count;
    some.scales = metric == SHOAL_COSINE ? inverse.data() + first : scales.empty() ? nullptr : scales.data() + first;
    return some;
  }
};

struct shoal_cuda_graph {
  Memory memory;
  std::vector<uint32_t> begin, source;
  std::vector<float> weight;
  explicit shoal_cuda_graph(uint64_t bytes) : memory(bytes) {}
};

namespace {

/** Rows of one piece with so many bytes of work for each; 0: not even one. */
uint64_t rows_within(uint64_t count, uint64_t row_bytes, const shoal_cuda_terms *terms) {
  const uint64_t allowed = terms == nullptr ? 0 : terms->work_bytes;
  if (allowed == 0) return std::min(count, told("SHOAL_STAND_IN_MOST_ROWS", count));
  return allowed < least_work() ? 0 : std::min(count, (allowed - least_work()) / std::max<uint64_t>(1, row_bytes));
}

/** OUT_OF_MEMORY or LATER where the test asked for it. */
int check_limits(uint64_t rows_at_once, const shoal_cuda_terms *terms) {
  if (std::getenv("SHOAL_STAND_IN_LATER") != nullptr && terms != nullptr && terms->most_wait_us > 0)
    return fail(SHOAL_CUDA_LATER, "the stand-in was told to be late");
  const uint64_t most_work = told("SHOAL_STAND_IN_MOST_WORK", UINT64_MAX);
  if (most_work != UINT64_MAX && terms != nullptr && (terms->work_bytes == 0 || terms->work_bytes > most_work))
    return out_of_memory(terms->work_bytes);
  return rows_at_once > told("SHOAL_STAND_IN_MOST_ROWS", UINT64_MAX) ? out_of_memory(rows_at_once) : SHOAL_CUDA_OK;
}

class Clock {
 public:
  void write(const shoal_cuda_terms *terms, uint64_t copied) const {
    if (terms == nullptr || terms->times == nullptr) return;
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun_).count();
    *terms->times = {us, 0, us, copied, 0};
  }

 private:
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

/** The best of each query over pieces of rows that come in order. */
class Merger {
 public:
  Merger(uint64_t queries, uint32_t k, enum shoal_metric metric)
      : k_(k), sign_(metric == SHOAL_L2 ? -1 : 1), best_(queries) {}

  void add(const shoal_rows &piece, uint64_t first, const float *queries, enum shoal_metric metric, shoal_stop stop) {
    const uint32_t k = static_cast<uint32_t>(std::min<uint64_t>(k_, piece.count));
    std::vector<uint32_t> rows(best_.size() * k), found(best_.size());
    std::vector<double> scores(best_.size() * k);
    shoal_topk(0, 1, queries, best_.size(), &piece, metric, k, rows.data(), scores.data(), found.data(), stop);
    if (stop != nullptr && *stop != 0) return;
    for (size_t q = 0; q < best_.size(); q++) {
      for (uint32_t i = 0; i < found[q]; i++)
        best_[q].push_back({scores[q * k + i], static_cast<uint32_t>(first + rows[q * k + i])});
      // Stable: rows of earlier pieces have the lower numbers.
      std::stable_sort(best_[q].begin(), best_[q].end(),
                       [this](const Scored &a, const Scored &b) { return sign_ * a.score > sign_ * b.score; });
      if (best_[q].size() > k_) best_[q].resize(k_);
    }
  }

  void write(uint32_t *rows, double *scores, uint32_t *found) const {
    for (size_t q = 0; q < best_.size(); q++) {
      found[q] = static_cast<uint32_t>(best_[q].size());
      for (size_t i = 0; i < best_[q].size(); i++)
        rows[q * k_ + i] = best_[q][i].row, scores[q * k_ + i] = best_[q][i].score;
    }
  }

 private:
  struct Scored {
    double score;
    uint32_t row;
  };
  uint32_t k_;
  double sign_;
  std::vector<std::vector<Scored>> best_;
};

int stopped(shoal_stop stop) {
  return stop != nullptr && *stop != 0 ? fail(SHOAL_CUDA_STOPPED, "stopped") : SHOAL_CUDA_OK;
}
shoal_stop stop_of(const shoal_cuda_terms *terms) { return terms == nullptr ? nullptr : terms->stop; }

} // namespace

EXPORT int shoal_cuda_abi(void) { return SHOAL_CUDA_ABI; }
EXPORT const char *shoal_cuda_error(void) { return words.c_str(); }

EXPORT int shoal_cuda_device_count(int *count) {
  *count = static_cast<int>(told("SHOAL_STAND_IN_DEVICES", 1));
  return *count == 0 ? fail(SHOAL_CUDA_NO_DEVICE, "the stand-in was told to have no device") : ready(0, nullptr);
}

EXPORT int shoal_cuda_describe(int device, shoal_cuda_device *facts) {
  if (const int status = ready(device, nullptr)) return status;
  const uint64_t total = told("SHOAL_STAND_IN_BYTES", GIB);
  *facts = {"stand-in", 90, 1, total, total - std::min(total, held.load())};
  return SHOAL_CUDA_OK;
}

EXPORT uint64_t shoal_cuda_held_bytes(int) { return held; }
EXPORT void shoal_cuda_trim(int) {}

EXPORT int shoal_cuda_take_pinned(int device, uint64_t bytes, void **memory) {
  *memory = nullptr;
  if (const int status = ready(device, nullptr)) return status;
  if (pinned.fetch_add(bytes) + bytes > told("SHOAL_STAND_IN_PINNED", 0)) return pinned -= bytes, out_of_memory(bytes);
  uint64_t *const taken = static_cast<uint64_t *>(std::malloc(bytes + PINNED_HEAD));
  *taken = bytes, tell_pinned();
  *memory = reinterpret_cast<char *>(taken) + PINNED_HEAD;
  return SHOAL_CUDA_OK;
}

EXPORT void shoal_cuda_give_pinned(void *memory) {
  uint64_t *const taken = reinterpret_cast<uint64_t *>(static_cast<char *>(memory) - PINNED_HEAD);
  pinned -= *taken, tell_pinned();
  std::free(taken);
}

EXPORT uint64_t shoal_cuda_rows_bytes(const shoal_rows *rows, int has_half) {
  return bytes_of(rows->count, rows->dims, rows->dtype, has_half);
}

EXPORT int shoal_cuda_upload(int device, const shoal_rows *rows, int has_half, shoal_cuda_rows **uploaded,
                             shoal_stop stop) {
  if (const int status = ready(device, stop)) return status;
  const uint64_t bytes = shoal_cuda_rows_bytes(rows, has_half);
  if (rows->count > told("SHOAL_STAND_IN_MOST_ROWS", UINT64_MAX)) return out_of_memory(bytes);
  shoal_cuda_rows *made = new shoal_cuda_rows(*rows, bytes);
  if (!made->memory.fits()) return delete made, out_of_memory(bytes);
  copy_slowly(bytes);
  made->fill(*rows);
  if (const int status = stopped(stop)) return delete made, status;
  *uploaded = made;
  return SHOAL_CUDA_OK;
}

EXPORT void shoal_cuda_free_rows(shoal_cuda_rows *rows) { delete rows; }

EXPORT uint64_t shoal_cuda_topk_bytes(uint64_t rows, uint32_t, uint64_t query_count, uint32_t k) {
  return least_work() + rows * 4 + query_count * std::min<uint64_t>(k, rows) * 12;
}

EXPORT int shoal_cuda_topk(const shoal_cuda_rows *const *parts, uint32_t part_count, const float *queries,
                           uint64_t query_count, enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores,
                           uint32_t *found, const shoal_cuda_terms *terms) {
  const Clock clock;
  Merger merger(query_count, k, metric);
  uint64_t first = 0;
  for (uint32_t p = 0; p < part_count; p++) {
    if (const int status = ready(0, stop_of(terms))) return status;
    const uint64_t count = parts[p]->rows.count, step = rows_within(count, 4, terms);
    if (step == 0) return too_little(least_work(), terms);
    if (const int status = check_limits(step, terms)) return status;
    const Memory work(least_work() + step * 4);
    if (!work.fits()) return out_of_memory(least_work() + step * 4);
    for (uint64_t at = 0; at < count; at += step) {
      merger.add(parts[p]->part(at, std::min(step, count - at), metric), first + at, queries, metric, stop_of(terms));
      if (const int status = stopped(stop_of(terms))) return status;
    }
    first += count;
  }
  merger.write(best, scores, found);
  clock.write(terms, 0);
  return SHOAL_CUDA_OK;
}

EXPORT int shoal_cuda_topk_streamed(int device, const shoal_rows *rows, const float *queries, uint64_t query_count,
                                    enum shoal_metric metric, uint32_t k, uint32_t *best, double *scores,
                                    uint32_t *found, const shoal_cuda_terms *terms) {
  if (const int status = ready(device, stop_of(terms))) return status;
  const Clock clock;
  const uint64_t row_bytes = bytes_of(1, rows->dims, rows->dtype, 0) + 4;
  // while one piece is searched, the next is copied
  const uint64_t step = rows_within(rows->count, 2 * row_bytes, terms);
  if (step == 0) return too_little(least_work() + 2 * row_bytes, terms);
  if (const int status = check_limits(step, terms)) return status;
  const Memory work(least_work() + 2 * step * row_bytes);
  if (!work.fits()) return out_of_memory(least_work() + 2 * step * row_bytes);
  Merger merger(query_count, k, metric);
  for (uint64_t at = 0; at < rows->count; at += step) {
    shoal_rows piece = *rows;
    piece.data = static_cast<const char *>(rows->data) + at * rows->stride;
    piece.count = std::min(step, rows->count - at);
    piece.scales = rows->scales == nullptr ? nullptr : rows->scales + at;
    copy_slowly(piece.count * row_bytes);
    shoal_cuda_rows there(piece, 0);
    there.fill(piece);
    merger.add(there.part(0, piece.count, metric), at, queries, metric, stop_of(terms));
    if (const int status = stopped(stop_of(terms))) return status;
  }
  merger.write(best, scores, found);
  clock.write(terms, rows->count * row_bytes);
  return SHOAL_CUDA_OK;
}

EXPORT int shoal_cuda_rescore(const shoal_cuda_rows *rows, const float *queries, uint64_t query_count,
                              enum shoal_metric metric, const uint32_t *begin, const uint32_t *candidates,
                              double *scores, const shoal_cuda_terms *terms) {
  if (const int status = ready(0, stop_of(terms))) return status;
  const Clock clock;
  if (rows_within(1, 12, terms) == 0) return too_little(least_work() + 12, terms);
  if (const int status = check_limits(0, terms)) return status;
  const shoal_rows all = rows->part(0, rows->rows.count, metric);
  shoal_rescore(0, 1, queries, query_count, &all, metric, begin, candidates, scores, stop_of(terms));
  clock.write(terms, 0);
  return stopped(stop_of(terms));
}

EXPORT int shoal_cuda_matrix(const shoal_cuda_rows *rows, const float *queries, uint64_t query_count,
                             enum shoal_metric metric, float *scores, const shoal_cuda_terms *terms) {
  if (const int status = ready(0, stop_of(terms))) return status;
  const Clock clock;
  const uint64_t step = rows_within(rows->rows.count, 4 * query_count, terms);
  if (step == 0) return too_little(least_work() + 4 * query_count, terms);
  if (const int status = check_limits(step, terms)) return status;
  const Memory work(least_work() + 4 * query_count * step);
  if (!work.fits()) return out_of_memory(least_work() + 4 * query_count * step);
  const shoal_rows all = rows->part(0, rows->rows.count, metric);
  shoal_matrix(0, 1, queries, query_count, &all, metric, scores, stop_of(terms));
  clock.write(terms, 0);
  return stopped(stop_of(terms));
}

EXPORT uint64_t shoal_cuda_graph_bytes(uint64_t nodes, uint64_t edges) { return 4 * (nodes + 1) + 8 * edges; }

EXPORT int shoal_cuda_upload_graph(int device, const shoal_graph *graph, shoal_cuda_graph **uploaded, shoal_stop stop) {
  if (const int status = ready(device, stop)) return status;
  const uint64_t edges = graph->begin[graph->nodes], bytes = shoal_cuda_graph_bytes(graph->nodes, edges);
  shoal_cuda_graph *made = new shoal_cuda_graph(bytes);
  if (!made->memory.fits()) return delete made, out_of_memory(bytes);
  copy_slowly(bytes);
  made->begin.assign(graph->begin, graph->begin + graph->nodes + 1);
  made->source.assign(graph->source, graph->source + edges);
  made->weight.assign(graph->weight, graph->weight + edges);
  *uploaded = made;
  return SHOAL_CUDA_OK;
}

EXPORT void shoal_cuda_free_graph(shoal_cuda_graph *graph) { delete graph; }

EXPORT int shoal_cuda_spread(const shoal_cuda_graph *graph, uint32_t columns, uint32_t steps, float decay,
                             float threshold, const float *seeds, float *totals, const shoal_cuda_terms *terms) {
  if (const int status = ready(0, stop_of(terms))) return status;
  const Clock clock;
  const uint64_t nodes = graph->begin.size() - 1, bytes = 3 * nodes * columns * sizeof(float);
  if (terms != nullptr && terms->work_bytes != 0 && bytes > terms->work_bytes) return out_of_memory(bytes);
  if (const int status = check_limits(0, terms)) return status;
  const Memory work(bytes);
  if (!work.fits()) return out_of_memory(bytes);
  const shoal_graph whole{nodes, graph->begin.data(), graph->source.data(), graph->weight.data()};
  std::vector<float> scratch(2 * nodes * columns);
  std::memmove(totals, seeds, nodes * columns * sizeof(float));
  shoal_spread(0, 1, &whole, columns, 0, steps * (nodes + graph->source.size()), decay, threshold, totals,
               scratch.data(), stop_of(terms));
  clock.write(terms, 0);
  return stopped(stop_of(terms));
}

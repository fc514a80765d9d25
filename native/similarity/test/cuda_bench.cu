// The CUDA library on the clock: every bar with its bytes or operations, beside what this card copies. Answers are
// checked before the clock starts. Times are the device's own (events), medians of the runs; inputs are larger than the
// second-level cache or pass through it in turn. Usage: cuda_bench [link topk one large-k f32 rescore spread
// small-spread big matrix cpu two]…; all of them when none is named.
#include <cuda_runtime.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>
#include "../include/similarity_cuda.h"
#include "row_values.h"

namespace {

std::vector<std::string> parts;
bool is_wanted(const char *part) { return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end(); }

void must(int status, const char *what) {
  if (status == SHOAL_CUDA_OK) return;
  std::printf("WRONG %s: status %d, %s\n", what, status, shoal_cuda_error());
  std::exit(1);
}
void must(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  std::printf("WRONG %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class Work>
double median_of(int runs, const Work &work) {
  std::vector<double> times;
  for (int i = 0; i < runs; i++) times.push_back(work());
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

const int THREADS = static_cast<int>(std::max(1u, std::min(32u, std::thread::hardware_concurrency())));

template <class Work>
void side_by_side(size_t count, const Work &work) {
  std::vector<std::thread> threads;
  for (int t = 0; t < THREADS; t++)
    threads.emplace_back([&, t] { work(count * t / THREADS, count * (t + 1) / THREADS, t); });
  for (auto &thread : threads) thread.join();
}

struct Fast {
  uint64_t state;
  uint64_t operator()() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
  }
};

/** Normal values by table: a sixteenth of the time that drawing them takes. */
std::vector<float> table() {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values(65536);
  for (float &value : values) value = normal(random);
  return values;
}

std::vector<uint16_t> random_halves(size_t count, uint64_t seed) {
  const std::vector<float> values = table();
  std::vector<uint16_t> halves(65536), data(count);
  for (size_t i = 0; i < halves.size(); i++) halves[i] = half_of(values[i]);
  side_by_side(count / 4, [&](size_t first, size_t last, int t) {
    Fast random{seed * 7919 + static_cast<uint64_t>(t) * 104729 + 1};
    for (int i = 0; i < 20; i++) random();
    for (size_t i = first; i < last; i++) {
      const uint64_t bits = random();
      for (int j = 0; j < 4; j++) data[4 * i + j] = halves[bits >> (16 * j) & 0xffff];
    }
  });
  return data;
}

std::vector<float> random_floats(size_t count, uint64_t seed) {
  const std::vector<float> values = table();
  std::vector<float> data(count);
  Fast random{seed * 31337 + 11};
  for (int i = 0; i < 20; i++) random();
  for (float &value : data) value = values[random() & 0xffff];
  return data;
}

double copy_bandwidth = 0; // bytes per microsecond, read and written

void link() {
  const size_t bytes = 2ull << 30;
  char *a, *b, *host;
  must(cudaMalloc(&a, bytes), "memory"), must(cudaMalloc(&b, bytes), "memory");
  must(cudaHostAlloc(&host, bytes / 4, 0), "pinned memory");
  cudaEvent_t from, to;
  cudaEventCreate(&from), cudaEventCreate(&to);
  const auto timed = [&](const auto &work) {
    return median_of(11, [&] {
      float ms;
      cudaEventRecord(from), work(), cudaEventRecord(to);
      must(cudaEventSynchronize(to), "a copy");
      cudaEventElapsedTime(&ms, from, to);
      return ms * 1e3;
    });
  };
  must(cudaMemset(a, 1, bytes), "memory"), std::memset(host, 1, bytes / 4);
  copy_bandwidth =
      2 * static_cast<double>(bytes) / timed([&] { cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice); });
  const double in =
      static_cast<double>(bytes / 4) / timed([&] { cudaMemcpyAsync(a, host, bytes / 4, cudaMemcpyHostToDevice); });
  const double out =
      static_cast<double>(bytes / 4) / timed([&] { cudaMemcpyAsync(host, a, bytes / 4, cudaMemcpyDeviceToHost); });
  std::printf("copy on the device %.2f TB/s read and written; link %.1f GB/s in, %.1f out (pinned)\n",
              copy_bandwidth / 1e6, in / 1e3, out / 1e3);
  cudaFree(a), cudaFree(b), cudaFreeHost(host), cudaEventDestroy(from), cudaEventDestroy(to);
}

struct Result {
  std::vector<uint32_t> best, found;
  std::vector<double> scores;
  shoal_cuda_times times{};
  Result(size_t queries, size_t k) : best(queries * k), found(queries), scores(queries * k) {}
};

typedef std::vector<const shoal_cuda_rows *> Parts;

double search(const Parts &rows, const std::vector<float> &queries, size_t count, enum shoal_metric metric, size_t k,
              Result &result, uint64_t work_bytes = 0) {
  shoal_cuda_terms terms{work_bytes, nullptr, &result.times, 0};
  const double begun = seconds();
  must(shoal_cuda_topk(rows.data(), static_cast<uint32_t>(rows.size()), queries.data(), count, metric,
                       static_cast<uint32_t>(k), result.best.data(), result.scores.data(), result.found.data(), &terms),
       "topk");
  return (seconds() - begun) * 1e6;
}

/** The rows of a few queries against fp64 on this machine's processors. */
void check_best(const void *data, bool is_half, size_t rows, size_t dims, const std::vector<float> &queries,
                const std::vector<size_t> &which, enum shoal_metric metric, size_t k, const Result &result) {
  for (size_t q : which) {
    std::vector<std::pair<double, uint32_t>> order(rows);
    side_by_side(rows, [&](size_t first, size_t last, int) {
      for (size_t r = first; r < last; r++) {
        double dot = 0, rr = 0;
        for (size_t d = 0; d < dims; d++) {
          const double a = queries[q * dims + d], b = is_half
                                                          ? float_of(static_cast<const uint16_t *>(data)[r * dims + d])
                                                          : static_cast<const float *>(data)[r * dims + d];
          dot += a * b, rr += b * b;
        }
        order[r] = {metric == SHOAL_DOT ? -dot : -dot / std::sqrt(rr), static_cast<uint32_t>(r)};
      }
    });
    std::partial_sort(order.begin(), order.begin() + static_cast<long>(k), order.end());
    for (size_t i = 0; i < k; i++)
      if (result.found[q] != k || (result.best[q * k + i] != order[i].second &&
                                   std::fabs(order[i].first - order[std::min(i + 1, rows - 1)].first) > 1e-9)) {
        std::printf("WRONG query %zu place %zu: row %u, expected %u; found %u\n", q, i, result.best[q * k + i],
                    order[i].second, result.found[q]);
        return;
      }
  }
  std::printf("  answer checked: %zu queries, k %zu\n", which.size(), k);
}

shoal_cuda_rows *upload(const void *data, size_t rows, size_t dims, enum shoal_dtype type, bool has_half,
                        double *us = nullptr, int device = 0) {
  shoal_cuda_rows *there;
  const size_t element = type == SHOAL_F32 ? 4 : type == SHOAL_F16 ? 2 : 1;
  const shoal_rows described{data, rows, static_cast<uint32_t>(dims), dims * element, type, nullptr, 0};
  const double begun = seconds();
  must(shoal_cuda_upload(device, &described, has_half, &there, nullptr), "upload");
  if (us != nullptr) *us = (seconds() - begun) * 1e6;
  return there;
}

void time_topk(const char *name, const Parts &rows, const std::vector<float> &queries, size_t count, size_t row_count,
               size_t dims, size_t k, int runs, double row_bytes, enum shoal_metric metric = SHOAL_COSINE) {
  Result result(count, k);
  search(rows, queries, count, metric, k, result);
  std::vector<double> device, kernels, wall;
  for (int i = 0; i < runs; i++) {
    wall.push_back(search(rows, queries, count, metric, k, result));
    device.push_back(result.times.device_us), kernels.push_back(result.times.kernel_us);
  }
  const auto middle = [](std::vector<double> &of) { return std::sort(of.begin(), of.end()), of[of.size() / 2]; };
  const double on_device = middle(device), in_kernels = middle(kernels), on_wall = middle(wall);
  std::printf(
      "topk %-26s device %9.1f us (min %.1f), kernels %9.1f, wall %9.1f; %6.1f TFLOP/s, %.2f TB/s (%.2f of the copy); "
      "redone %llu\n",
      name, on_device, device[0], in_kernels, on_wall,
      2.0 * static_cast<double>(count * row_count * dims) / in_kernels / 1e6, row_bytes / in_kernels / 1e6,
      row_bytes / in_kernels / copy_bandwidth, static_cast<unsigned long long>(result.times.redone));
}

void topk() {
  const size_t rows = 1'000'000, dims = 384, k = 10;
  const std::vector<uint16_t> data = random_halves(rows * dims, 1);
  const std::vector<float> queries = random_floats(1000 * dims, 2);
  shoal_cuda_rows *there = upload(data.data(), rows, dims, SHOAL_F16, false);
  const double bytes = static_cast<double>(rows * dims * 2);
  if (is_wanted("topk") || is_wanted("one")) {
    Result many(1000, k), one(1, k), large(1000, 5000);
    search({there}, queries, 1000, SHOAL_COSINE, k, many);
    check_best(data.data(), true, rows, dims, queries, {0, 499, 999}, SHOAL_COSINE, k, many);
    search({there}, queries, 1, SHOAL_DOT, k, one);
    check_best(data.data(), true, rows, dims, queries, {0}, SHOAL_DOT, k, one);
    if (is_wanted("large-k")) {
      search({there}, queries, 1000, SHOAL_COSINE, 5000, large);
      check_best(data.data(), true, rows, dims, queries, {7}, SHOAL_COSINE, 5000, large);
    }
  }
  for (const char *kernel : {"hopper", "wide"}) {
    if (!is_wanted("topk")) break;
    setenv("SHOAL_CUDA_COARSE", kernel, 1);
    time_topk((std::string("1000 x 1M x 384 f16 ") + kernel).c_str(), {there}, queries, 1000, rows, dims, k, 15, bytes);
    time_topk((std::string("1 x 1M x 384 f16 ") + kernel).c_str(), {there}, queries, 1, rows, dims, k, 31, bytes);
  }
  unsetenv("SHOAL_CUDA_COARSE");
  if (is_wanted("one"))
    for (size_t count : {1, 8, 9, 32, 64, 128})
      time_topk((std::to_string(count) + " x 1M x 384 f16").c_str(), {there}, queries, count, rows, dims, k, 31, bytes);
  if (is_wanted("topk")) time_topk("1000 x 1M x 384 f16 l2", {there}, queries, 1000, rows, dims, k, 5, bytes, SHOAL_L2);
  if (is_wanted("large-k")) {
    time_topk("1000 x 1M x 384 f16 k5000", {there}, queries, 1000, rows, dims, 5000, 5, bytes);
    time_topk("1 x 1M x 384 f16 k5000", {there}, queries, 1, rows, dims, 5000, 9, bytes);
  }
  if (is_wanted("rescore")) {
    Fast random{77};
    for (size_t count : {size_t{1}, size_t{1000}}) {
      const size_t total = 100'000;
      std::vector<uint32_t> begin, candidates(total);
      for (size_t q = 0; q <= count; q++) begin.push_back(static_cast<uint32_t>(total * q / count));
      std::vector<double> scores(total), times, walls;
      shoal_cuda_times taken{};
      shoal_cuda_terms terms{0, nullptr, &taken, 0};
      for (int i = 0; i < 25; i++) {
        for (uint32_t &row : candidates) row = static_cast<uint32_t>(random() % rows); // others each time: 77 MB of 768
        const double begun = seconds();
        must(shoal_cuda_rescore(there, queries.data(), count, SHOAL_COSINE, begin.data(), candidates.data(),
                                scores.data(), &terms),
             "rescore");
        walls.push_back((seconds() - begun) * 1e6), times.push_back(taken.kernel_us);
      }
      double dot = 0, rr = 0, qq = 0;
      for (size_t d = 0; d < dims; d++) {
        const double a = queries[d], b = float_of(data[candidates[0] * dims + d]);
        dot += a * b, rr += b * b, qq += a * a;
      }
      if (std::fabs(scores[0] - dot / std::sqrt(rr * qq)) > 1e-9)
        std::printf("WRONG rescore: %g, expected %g\n", scores[0], dot / std::sqrt(rr * qq));
      std::sort(times.begin(), times.end()), std::sort(walls.begin(), walls.end());
      const double moved = static_cast<double>(total) * (dims * 2 + 12), bar = 1.5 * moved / copy_bandwidth + 10;
      std::printf(
          "rescore %zu x %zu of 1M x 384 f16: kernels %.1f us, bar %.1f us (1.5 x bytes / copy + 10): %s; wall %.1f, "
          "target 850\n",
          count, total / count, times[12], bar, times[12] <= bar ? "met" : "MISSED", walls[12]);
    }
  }
  shoal_cuda_free_rows(there);
  if (is_wanted("f32")) {
    std::vector<float> wide(rows * dims);
    side_by_side(rows, [&](size_t first, size_t last, int) {
      for (size_t i = first * dims; i < last * dims; i++) wide[i] = float_of(data[i]) * 1.0001f;
    });
    for (bool has_half : {true, false}) {
      shoal_cuda_rows *floats = upload(wide.data(), rows, dims, SHOAL_F32, has_half);
      Result many(1000, k);
      search({floats}, queries, 1000, SHOAL_COSINE, k, many);
      check_best(wide.data(), false, rows, dims, queries, {3}, SHOAL_COSINE, k, many);
      const std::string name = has_half ? "f32 + half" : "f32";
      time_topk(("1000 x 1M x 384 " + name).c_str(), {floats}, queries, 1000, rows, dims, k, 7, bytes * 2);
      time_topk(("1 x 1M x 384 " + name).c_str(), {floats}, queries, 1, rows, dims, k, 9, bytes * (has_half ? 1 : 2));
      shoal_cuda_free_rows(floats);
    }
  }
  if (is_wanted("matrix")) {
    const size_t few = 100'000;
    shoal_cuda_rows *some = upload(data.data(), few, dims, SHOAL_F16, false);
    for (size_t count : {size_t{8}, size_t{64}, size_t{1000}}) {
      const size_t bytes = count * few * 4;
      std::vector<float> scores(count * few);
      void *pinned = nullptr;
      for (int i = 0; i < 100 && pinned == nullptr; i++) shoal_cuda_take_pinned(0, bytes, &pinned);
      for (const char *into : {"memory that was used", "fresh memory", "pinned memory"}) {
        shoal_cuda_times taken{};
        shoal_cuda_terms terms{0, nullptr, &taken, 0};
        std::vector<double> device;
        const double wall = median_of(9, [&] {
          float *const fresh = into[0] == 'f' ? static_cast<float *>(std::malloc(bytes)) : nullptr,
                       *const to = into[0] == 'p'     ? static_cast<float *>(pinned)
                                   : fresh != nullptr ? fresh
                                                      : scores.data();
          const double begun = seconds();
          must(shoal_cuda_matrix(some, queries.data(), count, SHOAL_COSINE, to, &terms), "matrix");
          const double us = (seconds() - begun) * 1e6;
          device.push_back(taken.device_us);
          if (fresh != nullptr || into[0] == 'p') {
            if (std::memcmp(to, scores.data(), bytes) != 0) std::printf("WRONG matrix into %s\n", into);
          }
          std::free(fresh);
          return us;
        });
        std::sort(device.begin(), device.end());
        std::printf(
            "matrix %zu x 100K x 384 into %s: wall %.1f us, device %.1f, copies %.1f: %.1f GB/s out of the device\n",
            count, into, wall, device[device.size() / 2], taken.copy_us, static_cast<double>(bytes) / wall / 1e3);
      }
      shoal_cuda_give_pinned(pinned);
    }
    shoal_cuda_free_rows(some);
  }
  if (is_wanted("cpu")) {
    // The same search by the library's own search of small collections, to see from what size on a device is worth it.
    for (size_t few : {1000, 10'000, 100'000}) {
      shoal_cuda_rows *some = upload(data.data(), few, dims, SHOAL_F16, false);
      for (size_t count : {1, 8, 100})
        time_topk((std::to_string(count) + " x " + std::to_string(few) + " x 384").c_str(), {some}, queries, count, few,
                  dims, k, 15, static_cast<double>(few * dims * 2));
      shoal_cuda_free_rows(some);
    }
  }
  int devices = 0;
  cudaGetDeviceCount(&devices);
  if (is_wanted("two") && devices >= 2) {
    shoal_cuda_rows *first = upload(data.data(), rows / 2, dims, SHOAL_F16, false, nullptr, 0),
                    *second = upload(data.data() + rows / 2 * dims, rows / 2, dims, SHOAL_F16, false, nullptr, 1);
    Result many(1000, k);
    search({first, second}, queries, 1000, SHOAL_COSINE, k, many);
    check_best(data.data(), true, rows, dims, queries, {0, 999}, SHOAL_COSINE, k, many);
    time_topk("1000 x 1M on two devices", {first, second}, queries, 1000, rows, dims, k, 9, bytes);
    shoal_cuda_free_rows(first), shoal_cuda_free_rows(second);
  }
}

/** `seeds_each`: of each column; 0: every node is one. */
void spread_one(size_t nodes, size_t degree, size_t columns, size_t steps, double target, size_t seeds_each = 10) {
  Fast random{nodes + columns};
  for (int i = 0; i < 20; i++) random();
  std::vector<uint32_t> begin(nodes + 1), source;
  source.reserve(nodes * degree);
  for (size_t n = 0; n < nodes; n++) {
    const size_t first = source.size();
    for (size_t e = 0, count = random() % (2 * degree + 1); e < count; e++)
      source.push_back(static_cast<uint32_t>(random() % nodes));
    std::sort(source.begin() + static_cast<long>(first), source.end());
    begin[n + 1] = static_cast<uint32_t>(source.size());
  }
  std::vector<float> weight(source.size());
  for (float &value : weight) value = static_cast<float>(random() % 1000) / 10000.0f / static_cast<float>(degree) * 20;
  const shoal_graph graph{nodes, begin.data(), source.data(), weight.data()};
  shoal_cuda_graph *there = nullptr;
  double uploaded = 0;
  for (int i = 0; i < 2; i++) { // the first one also takes what all others find
    shoal_cuda_free_graph(there);
    const double begun = seconds();
    must(shoal_cuda_upload_graph(0, &graph, &there, nullptr), "upload of a graph");
    uploaded = (seconds() - begun) * 1e3;
  }
  std::vector<float> seeds(nodes * columns, 0.0f), activation(seeds), expected, scratch(2 * seeds.size());
  for (size_t column = 0; column < columns; column++)
    for (size_t i = 0; i < seeds_each; i++) seeds[random() % nodes * columns + column] = 1;
  if (seeds_each == 0) std::fill(seeds.begin(), seeds.end(), 1.0f);
  shoal_cuda_times taken{}, none{};
  shoal_cuda_terms terms{0, nullptr, &taken, 0}, empty{0, nullptr, &none, 0};
  std::vector<double> times, walls, idle, device;
  for (int i = 0; i < 25; i++) {
    activation = seeds;
    // copies the seeds alone
    must(shoal_cuda_spread(there, static_cast<uint32_t>(columns), 0, 0.8f, 1e-6f, activation.data(), activation.data(),
                           &empty),
         "spread");
    activation = seeds;
    const double begun = seconds();
    must(shoal_cuda_spread(there, static_cast<uint32_t>(columns), static_cast<uint32_t>(steps), 0.8f, 1e-6f,
                           seeds.data(), activation.data(), &terms),
         "spread");
    walls.push_back((seconds() - begun) * 1e6), times.push_back(taken.kernel_us), idle.push_back(none.kernel_us),
        device.push_back(taken.device_us);
  }
  std::vector<double> total(seeds.begin(), seeds.end());
  std::vector<float> last = seeds, next(seeds.size());
  for (size_t s = 0; s < steps; s++) {
    side_by_side(nodes, [&](size_t from, size_t to, int) {
      for (size_t n = from; n < to; n++)
        for (size_t column = 0; column < columns; column++) {
          double sum = 0;
          for (uint32_t e = begin[n]; e < begin[n + 1]; e++) {
            const float value = last[source[e] * columns + column];
            if (value >= 1e-6f) sum += static_cast<double>(weight[e]) * (value * 0.8f);
          }
          next[n * columns + column] = static_cast<float>(sum), total[n * columns + column] += sum;
        }
    });
    std::swap(last, next);
  }
  size_t wrong = 0;
  for (size_t i = 0; i < total.size(); i++)
    wrong += !(std::fabs(activation[i] - total[i]) <= 1e-5 * std::max(1.0, total[i]));
  // a value beside the threshold may fall on either side
  if (wrong > total.size() / 10000) std::printf("WRONG spread: %zu of %zu values\n", wrong, total.size());
  std::sort(times.begin(), times.end()), std::sort(walls.begin(), walls.end()), std::sort(idle.begin(), idle.end()),
      std::sort(device.begin(), device.end());
  const double us = times[times.size() / 2];
  // Each edge once (source, weight, the columns it brings), each node's columns written, read and written.
  const double edges = static_cast<double>(source.size()), cells = static_cast<double>(nodes * columns) * 4;
  const double moved = static_cast<double>(steps) *
                       (edges * (8.0 + 4 * static_cast<double>(columns)) + static_cast<double>(nodes) * 4 + 3 * cells);
  const double bar = 1.5 * moved / copy_bandwidth + 10;
  std::printf(
      "spread %zu nodes %zu edges %zu columns %zu steps, %s: kernels %.1f us (%.1f with no step at all), bar %.1f: %s; "
      "%.2f TB/s; device %.1f, wall %.1f%s; upload %.2f ms\n",
      nodes, source.size(), columns, steps, seeds_each == 0 ? "all give" : "10 seeds", us, idle[idle.size() / 2], bar,
      us <= bar ? "met" : "MISSED", moved / us / 1e6, device[device.size() / 2], walls[walls.size() / 2],
      target > 0 ? ", target 450" : "", uploaded);
  shoal_cuda_free_graph(there);
}

/** Rows that pass through: from memory of any kind, and from pinned memory. */
void stream() {
  const size_t dims = 768, k = 10;
  for (size_t rows : {size_t{500'000}, size_t{2'000'000}}) {
    const std::vector<uint16_t> data = random_halves(rows * dims, 3);
    const std::vector<float> queries = random_floats(1000 * dims, 4);
    const double bytes = static_cast<double>(rows * dims * 2);
    const shoal_rows described{data.data(), rows, dims, dims * 2, SHOAL_F16, nullptr, 0};
    double us;
    shoal_cuda_rows *there = upload(data.data(), rows, dims, SHOAL_F16, false, &us);
    std::printf("upload of %.1f GB: %.1f GB/s\n", bytes / 1e9, bytes / us / 1e3);
    Result resident(1000, k);
    search({there}, queries, 1000, SHOAL_COSINE, k, resident);
    shoal_cuda_free_rows(there);
    for (bool is_pinned : {false, true}) {
      const double begun = seconds();
      if (is_pinned)
        must(
            cudaHostRegister(const_cast<uint16_t *>(data.data()), static_cast<size_t>(bytes), cudaHostRegisterPortable),
            "locking");
      if (is_pinned) std::printf("locking %.1f GB took %.1f ms\n", bytes / 1e9, (seconds() - begun) * 1e3);
      for (size_t count : {size_t{1000}, size_t{64}, size_t{1}}) {
        Result streamed(count, k);
        shoal_cuda_terms terms{6ull << 30, nullptr, &streamed.times, 0};
        const double wall = median_of(7, [&] {
          const double from = seconds();
          must(shoal_cuda_topk_streamed(0, &described, queries.data(), count, SHOAL_COSINE, k, streamed.best.data(),
                                        streamed.scores.data(), streamed.found.data(), &terms),
               "streamed");
          return (seconds() - from) * 1e6;
        });
        if (!std::equal(streamed.best.begin(), streamed.best.end(), resident.best.begin()))
          std::printf("WRONG streamed: other rows than resident\n");
        std::printf(
            "streamed %zu x %.1fM x 768 f16 from %s memory: %.2f ms, link %.1f GB/s; copies %.2f ms, kernels %.2f ms, "
            "%.3f of the time without a copy\n",
            count, static_cast<double>(rows) / 1e6, is_pinned ? "pinned" : "ordinary", wall / 1e3, bytes / wall / 1e3,
            streamed.times.copy_us / 1e3, streamed.times.kernel_us / 1e3,
            std::max(0.0, wall - streamed.times.copy_us) / wall);
      }
      if (is_pinned) cudaHostUnregister(const_cast<uint16_t *>(data.data()));
    }
  }
}

void big() {
  const size_t rows = 10'000'000, dims = 768, k = 10;
  double begun = seconds();
  const std::vector<uint16_t> data = random_halves(rows * dims, 3);
  std::printf("10M x 768 f16 made in %.1f s\n", seconds() - begun);
  const std::vector<float> queries = random_floats(1000 * dims, 4);
  double us;
  shoal_cuda_rows *there = upload(data.data(), rows, dims, SHOAL_F16, false, &us);
  const double bytes = static_cast<double>(rows * dims * 2);
  std::printf("upload of %.1f GB: %.1f ms, %.1f GB/s\n", bytes / 1e9, us / 1e3, bytes / us / 1e3);
  Result resident(1000, k), streamed(1000, k);
  search({there}, queries, 1000, SHOAL_COSINE, k, resident);
  std::printf("held on the device: %.2f GB of 24\n", static_cast<double>(shoal_cuda_held_bytes(0)) / 1e9);
  time_topk("1000 x 10M x 768 f16", {there}, queries, 1000, rows, dims, k, 3, bytes);
  time_topk("1 x 10M x 768 f16", {there}, queries, 1, rows, dims, k, 7, bytes);
  shoal_cuda_free_rows(there);
  shoal_cuda_trim(0);
  const shoal_rows described{data.data(), rows, dims, dims * 2, SHOAL_F16, nullptr, 0};
  for (size_t count : {size_t{1000}, size_t{1}}) {
    shoal_cuda_terms terms{6ull << 30, nullptr, &streamed.times, 0};
    begun = seconds();
    must(shoal_cuda_topk_streamed(0, &described, queries.data(), count, SHOAL_COSINE, k, streamed.best.data(),
                                  streamed.scores.data(), streamed.found.data(), &terms),
         "streamed");
    us = (seconds() - begun) * 1e6;
    if (!std::equal(streamed.best.begin(), streamed.best.begin() + static_cast<long>(count * k), resident.best.begin()))
      std::printf("WRONG streamed: other rows than resident\n");
    const double copy = streamed.times.copy_us, kernel = streamed.times.kernel_us;
    std::printf(
        "streamed %zu x 10M x 768 within 6 GB: %.1f ms; link %.1f GB/s; copies %.1f ms, kernels %.1f ms, %.2f of the "
        "kernels hidden, %.3f of the time without a copy\n",
        count, us / 1e3, bytes / us / 1e3, copy / 1e3, kernel / 1e3,
        std::max(0.0, std::min(1.0, (copy + kernel - us) / kernel)), std::max(0.0, us - copy) / us);
  }
}

} // namespace

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) parts.push_back(argv[i]);
  shoal_cuda_device facts;
  must(shoal_cuda_describe(0, &facts), "device 0");
  std::printf("%s, compute capability %d, %d threads of this machine\n", facts.name, facts.compute, THREADS);
  link();
  for (const char *part : {"topk", "one", "large-k", "rescore", "f32", "matrix", "cpu", "two"})
    if (is_wanted(part)) {
      topk();
      break;
    }
  if (is_wanted("spread") || is_wanted("small-spread")) {
    spread_one(10'000, 20, 1, 3, 450);
    spread_one(10'000, 20, 16, 3, 450);
  }
  if (is_wanted("spread")) {
    spread_one(1'000'000, 20, 1, 3, 0);
    spread_one(1'000'000, 20, 16, 3, 0);
    spread_one(10'000, 20, 1, 3, 450, 0);
    spread_one(1'000'000, 20, 1, 3, 0, 0);
    spread_one(1'000'000, 20, 16, 3, 0, 0);
  }
  if (is_wanted("stream")) stream();
  if (is_wanted("big")) big();
  return 0;
}

// Exact top-k against the peak of the machine's multiply-adds, measured in the same run. Usage: similarity_bench [rows]
// [queries] [dims] [k]; one line for each number of threads and instruction set. The answer is checked before the clock starts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>
#include "../include/similarity.h"

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class Work>
double median_of(int runs, const Work &work) {
  std::vector<double> times;
  for (int i = 0; i < runs; i++) {
    const double begun = seconds();
    work();
    times.push_back(seconds() - begun);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

#define PEAK(NAME, BYTES, CHAINS, TARGET)                                                          \
  TARGET float NAME(long steps) {                                                                  \
    typedef float V __attribute__((vector_size(BYTES)));                                           \
    V sum[CHAINS], a = V{} + 0.999f, b = V{} + 0.001f;                                             \
    for (int i = 0; i < CHAINS; i++) sum[i] = V{} + static_cast<float>(i);                         \
    for (long s = 0; s < steps; s++)                                                               \
      _Pragma("GCC unroll 24") for (int i = 0; i < CHAINS; i++) sum[i] = sum[i] * a + b;           \
    float total = 0;                                                                               \
    for (int i = 0; i < CHAINS; i++) for (unsigned l = 0; l < BYTES / 4; l++) total += sum[i][l];  \
    return total;                                                                                  \
  }
#if defined(__x86_64__)
PEAK(peak_avx512, 64, 24, __attribute__((target("avx512f,avx512dq,fma"))))
PEAK(peak_avx2, 32, 12, __attribute__((target("avx2,fma"))))
#endif
PEAK(peak_portable, 16, 12, )

/** GFLOP/s of `threads` loops that do nothing but multiply-adds. */
double peak(const char *isa, int threads) {
  const long steps = 4'000'000;
  long flops = 0;
  volatile float sink = 0;
  const auto one = [&] {
#if defined(__x86_64__)
    if (std::strcmp(isa, "avx512") == 0) return flops = 24 * 16 * 2, peak_avx512(steps);
    if (std::strcmp(isa, "avx2") == 0) return flops = 12 * 8 * 2, peak_avx2(steps);
#endif
    return flops = 12 * 4 * 2, peak_portable(steps);
  };
  const double time = median_of(5, [&] {
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++) all.emplace_back([&] { sink = one(); });
    for (auto &thread : all) thread.join();
  });
  return static_cast<double>(flops) * steps * threads / time / 1e9;
}

}  // namespace

int main(int argc, char **argv) {
  const auto argument = [&](int i, size_t otherwise) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise; };
  const size_t rows = argument(1, 100'000), queries = argument(2, 1'000), dims = argument(3, 384), k = argument(4, 10);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> data(rows * dims), query(queries * dims);
  for (float &value : data) value = normal(random);
  for (float &value : query) value = normal(random);
  const shoal_rows base{data.data(), rows, static_cast<uint32_t>(dims), dims * 4, SHOAL_F32, nullptr};
  std::vector<uint64_t> ids(queries * k), first;
  std::vector<float> scores(queries * k);
  std::vector<uint32_t> found(queries);
  const int most = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int isa = 0; isa < shoal_isa_count(); isa++)
    for (int threads = 1; threads <= std::min(2, most); threads++) {
      const auto search = [&] { shoal_topk(isa, threads, query.data(), queries, &base, SHOAL_DOT, static_cast<uint32_t>(k), ids.data(), scores.data(), found.data()); };
      search();
      if (first.empty()) first = ids;
      if (ids != first) return std::printf("%s gives other rows than %s\n", shoal_isa_name(isa), shoal_isa_name(0)), 1;
      const double before = peak(shoal_isa_name(isa), threads);
      const double time = median_of(queries > 8 ? 5 : 51, search);
      const double machine = (before + peak(shoal_isa_name(isa), threads)) / 2;
      const double rate = 2.0 * static_cast<double>(queries * rows * dims) / time / 1e9;
      std::printf("%-8s %d thread%s  %10.1f us  %6.1f GFLOP/s  peak %6.1f  share %.3f\n", shoal_isa_name(isa), threads, threads > 1 ? "s" : " ", time * 1e6, rate, machine, rate / machine);
    }
  return 0;
}

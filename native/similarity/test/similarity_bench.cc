// Exact top-k against the peak of the machine's multiply-adds, measured in the same run. Usage: similarity_bench [rows]
// [queries] [dims] [k]; one line for each number of threads and instruction set. The answer is checked before the clock
// starts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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

} // namespace

int main(int argc, char **argv) {
  const auto argument = [&](int i, size_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
  };
  const size_t rows = argument(1, 100'000), queries = argument(2, 1'000), dims = argument(3, 384), k = argument(4, 10);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> data(rows * dims), query(queries * dims);
  for (float &value : data) value = normal(random);
  for (float &value : query) value = normal(random);
  const shoal_rows base{data.data(), rows, static_cast<uint32_t>(dims), dims * 4, SHOAL_F32, nullptr, 40};
  std::vector<uint32_t> ids(queries * k), first;
  std::vector<double> scores(queries * k);
  std::vector<uint32_t> found(queries);
  const int most = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int isa = 0; isa < shoal_isa_count(); isa++)
    for (int threads = 1; threads <= std::min(2, most); threads++) {
      const auto search = [&] {
        shoal_topk(isa, threads, query.data(), queries, &base, SHOAL_DOT, static_cast<uint32_t>(k), ids.data(),
                   scores.data(), found.data(), nullptr);
      };
      search();
      if (first.empty()) first = ids;
      if (ids != first) return std::printf("%s gives other rows than %s\n", shoal_isa_name(isa), shoal_isa_name(0)), 1;
      const double before = shoal_peak(isa, threads);
      const double time = median_of(queries > 8 ? 5 : 51, search);
      const double machine = (before + shoal_peak(isa, threads)) / 2;
      const double rate = 2.0 * static_cast<double>(queries * rows * dims) / time / 1e9;
      std::printf("%-8s %d thread%s  %10.1f us  %6.1f GFLOP/s  peak %6.1f  share %.3f\n", shoal_isa_name(isa), threads,
                  threads > 1 ? "s" : " ", time * 1e6, rate, machine, rate / machine);
    }
  return 0;
}

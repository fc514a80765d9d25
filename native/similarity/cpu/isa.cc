// Which instruction sets this machine runs, best first.
#include <cassert>
#include <chrono>
#include <vector>
#include "../include/similarity.h"
#include "kernels.h"
#include "threads.h"

namespace shoal {

static const std::vector<const Kernels *> &supported() {
  static const std::vector<const Kernels *> found = [] {
    std::vector<const Kernels *> kernels;
#if defined(__x86_64__)
    __builtin_cpu_init();
    for (const Kernels *candidate : {&avx512_kernels, &avx2_kernels})
      if (candidate->is_supported()) kernels.push_back(candidate);
#endif
    kernels.push_back(&portable_kernels);
    return kernels;
  }();
  return found;
}

const Kernels &kernels_of(int isa) {
  assert(isa >= 0 && isa < static_cast<int>(supported().size()));
  return *supported()[isa];
}

} // namespace shoal

int shoal_isa_count(void) { return static_cast<int>(shoal::supported().size()); }
const char *shoal_isa_name(int isa) { return shoal::kernels_of(isa).name; }

double shoal_peak(int isa, int threads) {
  const auto &kernels = shoal::kernels_of(isa);
  constexpr long STEPS = 20'000'000; // some 40 ms: short of that, what a neighbour takes for a moment decides
  long flops = 0;
  volatile float sink = 0;
  const auto begun = std::chrono::steady_clock::now();
  shoal::in_blocks(threads, static_cast<uint64_t>(threads), [&](auto next) {
    for (uint64_t block; next(&block);) {
      long each;
      sink = kernels.peak(STEPS, &each);
      if (block == 0) flops = each;
    }
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return static_cast<double>(flops) * STEPS * threads / seconds / 1e9;
}

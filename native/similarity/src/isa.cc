// Which instruction sets this machine runs, best first.
#include <cassert>
#include <vector>
#include "../include/similarity.h"
#include "kernels.h"

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

}  // namespace shoal

int shoal_isa_count(void) { return static_cast<int>(shoal::supported().size()); }
const char *shoal_isa_name(int isa) { return shoal::kernels_of(isa).name; }

// One run: from token ids to vectors, in one lane.
#pragma once
#include <utility>
#include <vector>
#include "state.h"

namespace shoal {

/** When each step of a profiled run began, as events on its stream. */
class Steps {
 public:
  std::vector<std::pair<const char *, cudaEvent_t>> marks;
  ~Steps() {
    for (auto &mark : marks) cudaEventDestroy(mark.second);
  }
  void mark(const char *name, cudaStream_t stream) {
    cudaEvent_t event;
    check(cudaEventCreate(&event), "cudaEventCreate");
    marks.emplace_back(name, event);
    check(cudaEventRecord(event, stream), "cudaEventRecord");
  }
};

/** Returns when the vectors are in `embeddings`. `steps`: null, or where the steps of the run are marked. */
void run(shoal_encoder &e, int32_t index, const int32_t *ids, const int32_t *lengths, int32_t rows, int32_t width,
         float *embeddings, Steps *steps = nullptr);

} // namespace shoal

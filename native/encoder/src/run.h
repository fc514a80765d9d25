// One run: from token ids to vectors, in one stream.
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

/** Token ids of a micro-batch: `ids` is rows × width, `lengths` says how many of each row are tokens. */
struct Batch {
  const int32_t *ids, *lengths;
  int32_t rows, width;
};

/**
 * Runs a micro-batch in the stream of this number, and returns when the vectors are in `embeddings`. `steps`: null, or
 * where the steps of the run are marked.
 */
void run(shoal_encoder &e, int32_t index, const Batch &batch, float *embeddings, Steps *steps = nullptr);

} // namespace shoal
